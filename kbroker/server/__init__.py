"""The trio shell: sockets, dispatch, one handler for each API, and the object that builds the broker.

Decides nothing about data: a handler asks the log, the controller or a coordinator, and never waits on the loop.
"""
