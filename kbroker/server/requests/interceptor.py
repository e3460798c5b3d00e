"""Hook before the handlers, for faults in tests. A broker in production has none, and pays nothing for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.protocol.registry import Api
from kbroker.server.requests.request import Handler

if TYPE_CHECKING:
    from kbroker.server.context import Context

__all__ = ["Interceptor"]


class Interceptor(Protocol):
    @property
    def is_idle(self) -> bool:
        """Whether it would pass on every request. Then repeated requests may bypass it."""
        ...

    def attach(self, context: Context) -> None:
        """Called once for each start of a broker, before it accepts connections."""
        ...

    def intercept(self, api: Api, handler: Handler) -> Handler:
        """Returns the handler to call instead. Called once for each API and version, with its first request."""
        ...
