"""Limits of each connection, and quotas of new ones: in total, per address, and per second. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.rate_window import RateWindow

__all__ = ["Admission", "ConnectionLimits", "ConnectionQuotas"]

_UNLIMITED = 2**31 - 1
_MIN_RATE = 0.001  # connections per second, used for a configured rate of 0


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
    # Buffers of the socket; -1 keeps the default of the system. A small send buffer keeps its bytes in the CPU's cache:
    # large fetches are twice as fast as with the megabytes that Linux would use.
    send_buffer_bytes: int = 102_400  # socket.send.buffer.bytes
    receive_buffer_bytes: int = -1  # socket.receive.buffer.bytes
    # Above either of these a connection is not read until responses are sent.
    max_in_flight: int = 1000
    max_unsent_bytes: int = 1024 * 1024
    # Longest time for the TLS handshake and the login. Kafka has no such limit.
    max_login_ms: int = 30_000
    # While others wait for memory, connections that hold memory without progress for so long are closed.
    max_stall_ms: int = 5_000
    # Longest wait for memory before the connection with the largest incomplete frame is closed, even if it progresses.
    max_memory_wait_ms: int = 30_000
    # For tests: overwrites each frame after its run, so that a view that is used too late is noticed.
    poison_buffers: bool = False


class Admission(enum.Enum):
    ADMITTED = enum.auto()
    FULL = enum.auto()  # wait until a connection is closed, as Kafka's acceptor does
    TOO_MANY_FROM_ADDRESS = enum.auto()  # close it
    TOO_FAST_FROM_ADDRESS = enum.auto()  # close it later: the client would reconnect at once


class ConnectionQuotas:
    """Counts connections against the limits. Changed limits do not close existing connections."""

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
        self._address_rates: dict[str, float] = {}
        self._not_before = 0.0
        self.count = 0

    def set_limits(self, limits: ConnectionLimits) -> None:
        if limits.max_connection_rate != self._limits.max_connection_rate:
            self._not_before = 0.0
        self._limits = limits

    def set_address_rate(self, address: str, rate: float | None) -> None:
        """Sets the maximum of new connections per second from an address; "" is the default for all other addresses."""
        if rate is None:
            self._address_rates.pop(address, None)
        else:
            self._address_rates[address] = rate
        if address:
            self._accepted_from.pop(address, None)
        else:
            self._accepted_from = {}

    @property
    def is_full(self) -> bool:
        return self.count >= self._limits.max_connections

    def must_wait(self, now: float) -> bool:
        """Whether no connection may be accepted now: too many are open, or too many were opened in the last seconds."""
        return self.is_full or now < self._not_before

    def admit(self, address: str, now: float) -> Admission:
        limits = self._limits
        if self.is_full:
            return Admission.FULL
        if self._address_rates and self._is_too_fast(address, now):
            return Admission.TOO_FAST_FROM_ADDRESS
        from_address = self._by_address.get(address, 0)
        if from_address >= self.max_from(address):
            return Admission.TOO_MANY_FROM_ADDRESS
        self._by_address[address] = from_address + 1
        self.count += 1
        if limits.max_connection_rate < _UNLIMITED:
            self._accepted.record(1, now)
            self._not_before = now + self._accepted.excess_ms(max(limits.max_connection_rate, _MIN_RATE), now) / 1000
        return Admission.ADMITTED

    def max_from(self, address: str) -> int:
        """Returns the maximum number of connections from one address."""
        limits = self._limits
        return limits.max_connections_per_ip_overrides.get(address, limits.max_connections_per_ip)

    def leave(self, address: str) -> None:
        self.count -= 1
        left = self._by_address[address] - 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]

    def forget_idle(self, now: float) -> None:
        for address in [address for address, window in self._accepted_from.items() if window.is_idle(now)]:
            del self._accepted_from[address]

    def _is_too_fast(self, address: str, now: float) -> bool:
        rate = self._address_rates.get(address, self._address_rates.get(""))
        if rate is None:
            return False
        window = self._accepted_from.setdefault(address, self._new_window())
        window.record(1, now)
        if not window.excess_ms(max(rate, _MIN_RATE), now):
            return False
        window.record(-1, now)
        return True

    def _new_window(self) -> RateWindow:
        return RateWindow(self._limits.rate_window_count, self._limits.rate_window_seconds)
