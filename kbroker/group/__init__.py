"""Consumer groups as state machines over data: members, generations, committed offsets. Knows no loop and no clock."""
