"""Quotas as they act: what each request used, how long its client has to wait, and that it does wait.

As in Kafka the answer leaves at once and says how long; until then the connection is not read. While no quota is set
routes know nothing of this, and nothing is measured. Never decides which quota is whose: `quota_rates`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kbroker.clock import Clock
from kbroker.config import BrokerConfig
from kbroker.controller.changes import Change, EntityConfigsChanged
from kbroker.controller.image import Image
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.deadlines import Deadlines
from kbroker.server.quota_rates import CONSUME, PRODUCE, REQUEST, QuotaRates

if TYPE_CHECKING:
    from kbroker.server.request import Request, Route

__all__ = ["Quotas", "Usage"]

_PRODUCE_KEY: Final = 0
_NO_ACKS: Final = 0
_MAX_WAIT_MS: Final = 2**31 - 1
_THROTTLED: Final = "The throttling quota has been exceeded."


class Usage:
    """What one request has used so far."""

    __slots__ = ("began", "is_charged", "seconds", "size", "wait_ms")

    def __init__(self, began: float, size: int) -> None:
        self.began = began
        self.size = size
        self.seconds: float | None = None  # in its handler; None while that runs
        self.wait_ms = 0
        self.is_charged = False  # its handler has seen to that


class Quotas:
    def __init__(self, config: BrokerConfig, clock: Clock, deadlines: Deadlines) -> None:
        self._rates = QuotaRates(
            window_count=config.quota_window_num,
            window_seconds=config.quota_window_size_seconds,
            mutation_window_count=config.controller_quota_window_num,
            mutation_window_seconds=config.controller_quota_window_size_seconds,
        )
        self._max_request_wait_ms = config.quota_window_size_seconds * 1000
        self._clock = clock
        self._deadlines = deadlines
        self._began = 0.0
        self._size = 0
        self.on_switch: Callable[[], None] = lambda: None
        """Called when the first quota is set, and when the last one is gone."""

    @property
    def is_on(self) -> bool:
        return not self._rates.is_empty

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        if any(isinstance(each, EntityConfigsChanged) for each in changes):
            was_on = self.is_on
            self._rates.set_quotas(image.entity_configs)
            if self.is_on is not was_on:
                self.on_switch()

    def forget_idle(self) -> None:
        self._rates.forget_idle(self._clock.monotonic())

    def metered(self, route: Route) -> Route:
        """A route of which the time and the size of each request are known when it is answered."""
        decode, handler = route.decode, route.handler
        monotonic = self._clock.monotonic

        def decode_metered(buffer: Any, position: int = 0) -> tuple[Any, int]:
            # Between this and the handler nobody else has a turn.
            self._began, self._size = monotonic(), len(buffer)
            return decode(buffer, position)

        def handle_metered(context: Any, request: Request) -> Any:
            usage = request.usage = Usage(self._began, self._size)
            try:
                return handler(context, request)
            finally:
                usage.seconds = monotonic() - usage.began

        return route._replace(decode=decode_metered, handler=handle_metered, repeated=None, quotas=self)

    def settle(self, request: Request, response: Any | None) -> None:
        """Before a request is answered: what it used is charged, the client is told to wait, and made to."""
        usage = request.usage
        if not usage.is_charged:
            self._charge(request, usage)
        wait_ms = usage.wait_ms
        if wait_ms:
            if response is not None:
                response.throttle_time_ms = wait_ms
            request.slot.connection.mute(wait_ms / 1000, self._deadlines)

    def _charge(self, request: Request, usage: Usage) -> None:
        now = self._clock.monotonic()
        if request.route.api.key != _PRODUCE_KEY:
            self._wait(usage, self._charge_time(request, usage, now))
            return
        self._wait(usage, self._rates.charge(PRODUCE, *_who(request), usage.size, now))
        if request.body.acks != _NO_ACKS:
            self._wait(usage, self._charge_time(request, usage, now))

    def _charge_time(self, request: Request, usage: Usage, now: float) -> int:
        seconds = now - usage.began if usage.seconds is None else usage.seconds
        wait_ms = self._rates.charge(REQUEST, *_who(request), 100 * seconds, now)
        return min(wait_ms, self._max_request_wait_ms)

    def _wait(self, usage: Usage, wait_ms: int) -> None:
        usage.wait_ms = max(usage.wait_ms, min(wait_ms, _MAX_WAIT_MS))

    # For the handlers of what is limited otherwise

    def may_fetch(self, request: Request, size: int) -> bool:
        """Whether so many bytes may leave. Who has to wait gets none, and they do not count."""
        usage, now = request.usage, self._clock.monotonic()
        self._wait(usage, self._charge_time(request, usage, now))
        self._wait(usage, self._rates.charge(CONSUME, *_who(request), size, now))
        usage.is_charged = True
        if usage.wait_ms:
            self._rates.charge(CONSUME, *_who(request), -size, now)
        return not usage.wait_ms

    def fetch_limit(self, request: Request) -> float | None:
        """More than this at once would always be too much."""
        return self._rates.burst(CONSUME, *_who(request))

    def mutation_refusal(self, request: Request, count: int, *, is_strict: bool) -> Refusal | None:
        """So many partitions are about to be created or deleted. Clients that know no refusal just wait."""
        now = self._clock.monotonic()
        wait_ms = self._rates.charge_mutations(*_who(request), count, now, is_strict=is_strict)
        self._wait(request.usage, wait_ms)
        return Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _THROTTLED) if wait_ms and is_strict else None


def _who(request: Request) -> tuple[str, str]:
    return request.principal.partition(":")[2], request.client_id or ""
