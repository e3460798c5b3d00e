"""What one connection may do, and how many there may be: in all and from one address. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Admission", "ConnectionLimits", "ConnectionQuotas"]

_UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_request_size: int = 100 * 1024 * 1024  # socket.request.max.bytes
    queued_max_request_bytes: int = 256 * 1024 * 1024  # queued.max.request.bytes; Kafka has no limit by default
    max_idle_ms: int = 600_000  # connections.max.idle.ms; negative: never
    max_connections: int = _UNLIMITED  # max.connections
    max_connections_per_ip: int = _UNLIMITED  # max.connections.per.ip
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
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


class ConnectionQuotas:
    __slots__ = ("_by_address", "_limits", "count")

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._by_address: dict[str, int] = {}
        self.count = 0

    def is_full(self) -> bool:
        return self.count >= self._limits.max_connections

    def admit(self, address: str) -> Admission:
        if self.is_full():
            return Admission.FULL
        limits = self._limits
        from_address = self._by_address.get(address, 0)
        if from_address >= limits.max_connections_per_ip_overrides.get(address, limits.max_connections_per_ip):
            return Admission.TOO_MANY_FROM_ADDRESS
        self._by_address[address] = from_address + 1
        self.count += 1
        return Admission.ADMITTED

    def leave(self, address: str) -> None:
        self.count -= 1
        left = self._by_address[address] - 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]
