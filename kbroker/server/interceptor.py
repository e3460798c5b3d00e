"""What may stand before the handlers: faults for tests. A broker that serves people has none and pays nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.protocol.registry import Api
from kbroker.server.request import Handler

if TYPE_CHECKING:
    from kbroker.server.context import Context

__all__ = ["Interceptor"]


class Interceptor(Protocol):
    @property
    def is_idle(self) -> bool:
        """It would let every request pass: those that are recognised may pass it by."""
        ...

    def attach(self, context: Context) -> None:
        """Once for each start of a broker, before it accepts connections."""
        ...

    def intercept(self, api: Api, handler: Handler) -> Handler:
        """What is called in the handler's place. Asked once for each API and version, when it is first used."""
        ...
