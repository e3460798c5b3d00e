"""Sends one HTTP request over a real socket; bytes in, bytes out."""

from __future__ import annotations

import trio

__all__ = ["exchange", "read_all"]


async def exchange(port: int, request: bytes) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request)
        return await read_all(stream)


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    received = bytearray()
    try:
        while data := await stream.receive_some():
            received += data
    except trio.BrokenResourceError:
        pass  # the server closed with unread bytes
    return bytes(received)
