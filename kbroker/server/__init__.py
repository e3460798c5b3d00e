"""The trio shell: sockets, dispatch, one handler for each API, and the composition root `broker.py`.

Decides nothing about data: a handler calls the log, the controller or a coordinator, and never blocks the event loop.
"""
