"""Path of a request from its frame to its handler and back: dispatch, the run, fetch sessions, repeated requests."""
