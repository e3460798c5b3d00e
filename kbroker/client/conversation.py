"""Requests and responses in turn over a watched socket: no task runs for any of them.

A turn of the loop costs more than a small request. So the watch of the socket calls `_on_readable`, which takes the
response and sends the next request; the task that holds the conversation sleeps until its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from kbroker.client.frames import Frames

__all__ = ["Conversation"]

Members = dict[str, Any]


class Conversation:
    def __init__(
        self,
        frames: Frames,
        encode: Callable[[Members], bytes],
        decode: Callable[[bytes | memoryview], Any],
        go_on: Callable[[Any], Members | None],
    ) -> None:
        self._frames = frames
        self._encode = encode
        self._decode = decode
        self._go_on = go_on
        self._wakeup = trio.Event()
        self._asked_at = 0.0
        self._unsent: memoryview | None = None
        self._is_over = False
        self._last: Any = None
        self._failure: Exception | None = None

    async def hold(self, members: Members, timeout_s: float) -> Any:
        """Sends this request, then those that `go_on` returns for each response. Returns the response without one.

        Raises trio.TooSlowError if a response takes longer than `timeout_s`.
        """
        self._ask(members)
        self._frames.listen(self._on_readable)
        try:
            while True:
                with trio.move_on_at(self._asked_at + timeout_s):
                    await self._wakeup.wait()
                if self._is_over:
                    break
                if self._unsent is not None:
                    self._wakeup, rest, self._unsent = trio.Event(), self._unsent, None
                    with trio.fail_after(timeout_s):
                        await self._frames.stream.send_all(rest)
                elif trio.current_time() >= self._asked_at + timeout_s:
                    raise trio.TooSlowError
        finally:
            self._frames.unlisten()
        if self._failure is not None:
            raise self._failure
        return self._last

    def _ask(self, members: Members) -> None:
        self._asked_at = trio.current_time()
        rest = self._frames.send_now(self._encode(members))
        if rest:
            self._unsent = rest
            self._wakeup.set()

    def _on_readable(self) -> None:
        try:
            frame = self._frames.take()
            if frame is None:
                return
            self._last = self._decode(frame)
            members = self._go_on(self._last)
            if members is not None:
                self._ask(members)
                return
        except Exception as failure:  # the task raises it
            self._failure = failure
        self._is_over = True
        self._frames.unlisten()
        self._wakeup.set()
