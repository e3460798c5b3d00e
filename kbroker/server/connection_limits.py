"""What one connection may do, and how many there may be: in all, from one address, and in a second. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.server.quota_rates import RateWindow

__all__ = ["Admission", "ConnectionLimits", "ConnectionQuotas"]

_UNLIMITED = 2**31 - 1
_SLOWEST = 0.001  # in a second, where 0 was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_request_size: int = 100 * 1024 * 1024  # socket.request.max.bytes
    queued_max_request_bytes: int = 256 * 1024 * 1024  # queued.max.request.bytes; Kafka has no limit by default
    max_idle_ms: int = 600_000  # connections.max.idle.ms; negative: never
    max_connections: int = _UNLIMITED  # max.connections
    max_connections_per_ip: int = _UNLIMITED  # max.connections.per.ip
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    max_connection_rate: float = _UNLIMITED  # max.connection.creation.rate
    rate_window_count: int = 11  # quota.window.num
    rate_window_seconds: float = 1  # quota.window.size.seconds
    # What the system buffers for a connection; -1 leaves it to the system. A small send buffer keeps what is on its way
    # in the CPU's cache: large fetches are twice as fast as with the megabytes that Linux would take.
    send_buffer_bytes: int = 102_400  # socket.send.buffer.bytes
    receive_buffer_bytes: int = -1  # socket.receive.buffer.bytes
    # Over either of these a connection is not read any more until responses have left.
    max_in_flight: int = 1000
    max_unsent_bytes: int = 1024 * 1024
    # How long somebody may wait for memory before the largest frame that does not complete is closed.
    max_memory_wait_ms: int = 30_000
    # Overwrites each frame after its handler has returned, so that a view that was kept shows. For tests.
    poison_buffers: bool = False


class Admission(enum.Enum):
    ADMITTED = enum.auto()
    FULL = enum.auto()  # wait until somebody leaves, as Kafka's acceptor does
    TOO_MANY_FROM_ADDRESS = enum.auto()  # close it
    TOO_FAST_FROM_ADDRESS = enum.auto()  # close it, but not at once: it would only come back


class ConnectionQuotas:
    """Its limits may change at any time; whoever is there stays."""

    __slots__ = (
        "_accepted",
        "_accepted_from",
        "_address_rates",
        "_by_address",
        "_limits",
        "_not_before",
        "count",
    )

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._by_address: dict[str, int] = {}
        self._accepted = self._new_window()
        self._accepted_from: dict[str, RateWindow] = {}
        self._address_rates: Mapping[str, float] = {}
        self._not_before = 0.0
        self.count = 0

    def set_limits(self, limits: ConnectionLimits) -> None:
        if limits.max_connection_rate != self._limits.max_connection_rate:
            self._not_before = 0.0
        self._limits = limits

    def set_address_rates(self, rates: Mapping[str, float]) -> None:
        """New connections in a second by address; "" stands for whoever has no rate of their own."""
        self._address_rates = rates
        self._accepted_from.clear()

    def must_wait(self, now: float) -> bool:
        """Nobody is to be accepted now: there are too many, or they come too fast."""
        return self.count >= self._limits.max_connections or now < self._not_before

    def admit(self, address: str, now: float) -> Admission:
        limits = self._limits
        if self.count >= limits.max_connections:
            return Admission.FULL
        if self._address_rates and self._is_too_fast(address, now):
            return Admission.TOO_FAST_FROM_ADDRESS
        from_address = self._by_address.get(address, 0)
        if from_address >= limits.max_connections_per_ip_overrides.get(address, limits.max_connections_per_ip):
            return Admission.TOO_MANY_FROM_ADDRESS
        self._by_address[address] = from_address + 1
        self.count += 1
        if limits.max_connection_rate < _UNLIMITED:
            self._accepted.record(1, now)
            self._not_before = now + self._accepted.excess_ms(max(limits.max_connection_rate, _SLOWEST), now) / 1000
        return Admission.ADMITTED

    def leave(self, address: str) -> None:
        self.count -= 1
        left = self._by_address[address] - 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]

    def forget_idle(self, now: float) -> None:
        for address in [each for each, window in self._accepted_from.items() if window.is_idle(now)]:
            del self._accepted_from[address]

    def _is_too_fast(self, address: str, now: float) -> bool:
        rate = self._address_rates.get(address, self._address_rates.get(""))
        if rate is None:
            return False
        window = self._accepted_from.setdefault(address, self._new_window())
        window.record(1, now)
        if not window.excess_ms(max(rate, _SLOWEST), now):
            return False
        window.record(-1, now)
        return True

    def _new_window(self) -> RateWindow:
        return RateWindow(self._limits.rate_window_count, self._limits.rate_window_seconds)
