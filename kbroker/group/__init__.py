"""Consumer groups as pure state machines: members, generations, committed offsets. Has no event loop and no clock."""
