"""Enforces quotas: measures each request, and throttles its client (KIP-219).

As in Kafka the response is sent at once with throttle_time_ms, and the connection is muted for that time. Without any
quota, routes are not metered and nothing is measured. Finding the quota of a client: quota_rates.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.controller.changes import Change, EntityConfigsChanged
from kbroker.controller.image import Image
from kbroker.errors import Refusal
from kbroker.protocol.compiler.runtime import MAX_ELEMENTS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.quotas.quota_rates import CONSUME, PRODUCE, REQUEST, QuotaRates
from kbroker.server.wire.deadlines import Deadlines

if TYPE_CHECKING:
    from kbroker.server.requests.request import Request, Route

__all__ = ["Quotas", "Usage"]

_PRODUCE_KEY: Final = 0
_NO_ACKS: Final = 0
_MAX_WAIT_MS: Final = 2**31 - 1
_THROTTLED: Final = "The throttling quota has been exceeded."


class Usage:
    """Use of quotas by one request so far."""

    __slots__ = ("began", "is_charged", "seconds", "size", "wait_ms")

    def __init__(self, began: float, size: int) -> None:
        self.began = began
        self.size = size
        self.seconds: float | None = None  # time in the handler; None while it runs
        self.wait_ms = 0
        self.is_charged = False  # True if the handler charged the request itself


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
        """Called when the first quota is set, and when the last one is removed."""

    @property
    def is_on(self) -> bool:
        return not self._rates.is_empty

    def on_image(self, _image: Image, changes: Sequence[Change]) -> None:
        was_on = self.is_on
        for change in changes:
            if isinstance(change, EntityConfigsChanged):
                self._rates.set_quotas(change.entity, change.configs)
        if self.is_on is not was_on:
            self.on_switch()

    def forget_idle(self) -> None:
        self._rates.forget_idle(self._clock.monotonic())

    def metered(self, route: Route) -> Route:
        """Returns a route that measures the time and size of each request."""
        decode, handler = route.decode, route.handler
        monotonic = self._clock.monotonic

        def decode_metered(buffer: Any, position: int = 0, max_elements: int = MAX_ELEMENTS, /) -> tuple[Any, int]:
            # Stored on self: no other request is decoded before the handler is called.
            self._began, self._size = monotonic(), len(buffer)
            return decode(buffer, position, max_elements)

        def handle_metered(context: Any, request: Request) -> Any:
            usage = request.usage = Usage(self._began, self._size)
            try:
                return handler(context, request)
            finally:
                usage.seconds = monotonic() - usage.began

        return route._replace(decode=decode_metered, handler=handle_metered, repeated=None, quotas=self)

    def begin_large(self, size: int) -> None:
        """Begins to measure a request that a thread has decoded. Called right before its handler."""
        self._began, self._size = self._clock.monotonic(), size

    def settle(self, request: Request, response: Any | None) -> None:
        """Charges the request and throttles its client. Called before the response is sent; None: there is none."""
        usage = request.usage
        if not usage.is_charged:
            self._charge(request, usage)
        wait_ms = usage.wait_ms
        if wait_ms:
            request.tally.times.throttle.observe(wait_ms)
            if response is not None:
                response.throttle_time_ms = wait_ms
            request.slot.connection.mute(wait_ms / 1000, self._deadlines)

    def _charge(self, request: Request, usage: Usage) -> None:
        now = self._clock.monotonic()
        if request.route.api.key != _PRODUCE_KEY:
            self._throttle(usage, self._charge_time(request, usage, now))
            return
        self._throttle(usage, self._rates.charge(PRODUCE, *_user_and_client_id(request), usage.size, now))
        if request.body.acks != _NO_ACKS:
            self._throttle(usage, self._charge_time(request, usage, now))

    def _charge_time(self, request: Request, usage: Usage, now: float) -> int:
        seconds = now - usage.began if usage.seconds is None else usage.seconds
        wait_ms = self._rates.charge(REQUEST, *_user_and_client_id(request), 100 * seconds, now)
        return min(wait_ms, self._max_request_wait_ms)

    def _throttle(self, usage: Usage, wait_ms: int) -> None:
        usage.wait_ms = max(usage.wait_ms, min(wait_ms, _MAX_WAIT_MS))

    # For handlers that charge more than time and size

    def may_fetch(self, request: Request, size: int) -> bool:
        """Whether `size` bytes may be sent now. Throttled bytes are not charged."""
        usage, now = request.usage, self._clock.monotonic()
        self._throttle(usage, self._charge_time(request, usage, now))
        self._throttle(usage, self._rates.charge(CONSUME, *_user_and_client_id(request), size, now))
        usage.is_charged = True
        if usage.wait_ms:
            self._rates.charge(CONSUME, *_user_and_client_id(request), -size, now)
        return not usage.wait_ms

    def fetch_limit(self, request: Request) -> float | None:
        """Returns the largest response in bytes that can ever be within the quota, or None without a quota."""
        return self._rates.burst(CONSUME, *_user_and_client_id(request))

    def mutation_refusal(self, request: Request, count: int, *, is_strict: bool) -> Refusal | None:
        """Charges partitions to create or delete. Returns a Refusal if `is_strict` and over the quota.

        Not strict for old versions, whose clients do not know THROTTLING_QUOTA_EXCEEDED: they are only throttled.
        """
        now = self._clock.monotonic()
        wait_ms = self._rates.charge_mutations(*_user_and_client_id(request), count, now, is_strict=is_strict)
        self._throttle(request.usage, wait_ms)
        return Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _THROTTLED) if wait_ms and is_strict else None


def _user_and_client_id(request: Request) -> tuple[str, str]:
    return request.principal.partition(":")[2], request.client_id or ""
