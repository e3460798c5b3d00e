"""Request whose response waits for several partitions, at most for its timeout. Needs no task while it waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["DelayedOperation"]


class DelayedOperation:
    """Sends `response` once every partition response in `pending` is completed.

    After the request's `timeout_ms`, calls `on_expiration` with each partition response that is still pending, and
    sends the response. A partition may report after that: its caller asks `is_pending` first.
    """

    __slots__ = ("_deadline", "_on_expiration", "_pending", "_request", "_response")

    def __init__(
        self,
        context: Context,
        request: Request,
        response: Any,
        pending: Iterable[Any],
        on_expiration: Callable[[Any], None],
    ) -> None:
        self._request = request
        self._response = response
        self._pending = {id(answer): answer for answer in pending}
        self._on_expiration = on_expiration
        self._deadline = context.deadlines.add(max(request.body.timeout_ms, 0) / 1000, self._expire)
        request.slot.on_cancel = self._deadline.cancel

    def is_pending(self, answer: Any) -> bool:
        return id(answer) in self._pending

    def complete(self, answer: Any) -> None:
        del self._pending[id(answer)]
        if not self._pending:
            self._deadline.cancel()
            self._request.reply(self._response)

    def _expire(self) -> None:
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            self._on_expiration(answer)
        self._request.reply(self._response)
