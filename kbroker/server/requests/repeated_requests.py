"""Recognises requests by their bytes: most requests equal the client's last one, except for the offset or the records.

A recognised request is not decoded, and its response is not encoded. Recognition needs two things: the shape of the
connection's last request of that API (the positions of its fields), and a key (the bytes that do not change). Any other
request is decoded and goes to its handler; the attempt to recognise it has changed nothing. See `repeated_produce`,
`repeated_fetch` and `repeated_list_offsets`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.requests.client_session import ClientSession
    from kbroker.server.requests.request import Request, Route
    from kbroker.server.wire.request_slot import RequestSlot

__all__ = ["HEAD_SIZE", "KEY_POSITION", "MAX_KEY_SIZE", "PLACEHOLDERS", "KnownRequest", "RepeatedRequests", "struct_of"]

HEAD_SIZE: Final = 4  # API key and version
KEY_POSITION: Final = 8  # after API key, version and correlation id
# Written in place of offsets when a response is encoded once as a template, and searched for in its bytes.
PLACEHOLDERS: Final = (0x5E70FF5E70000001, 0x5E70FF5E70000002, 0x5E70FF5E70000003)
MAX_KEY_SIZE: Final = 1024  # longer keys are not stored: a client must not fill the memory with long names
_MIN_CAPACITY: Final = 64
_MAX_KNOWN: Final = 16384


class KnownRequest:
    """Request of one kind of client for one partition, learnt from a decoded request."""

    __slots__ = ("head", "partition", "route")

    def __init__(self, route: Route, head: bytes, partition: Partition) -> None:
        self.route = route
        self.head = head
        self.partition = partition


class RepeatedRequests(ABC):
    """Known requests of one API."""

    __slots__ = ("_capacity", "context", "known")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.known: dict[bytes, KnownRequest] = {}
        self._capacity = _MIN_CAPACITY

    @abstractmethod
    def handle(self, session: ClientSession, frame: memoryview, slot: RequestSlot) -> bool:
        """Answers the request if it is recognised. Returns False if it must be decoded; then nothing has changed."""

    @abstractmethod
    def learn(self, session: ClientSession, frame: memoryview, request: Request) -> None:
        """Stores a request that was decoded and handled, so that the next one can be recognised."""

    def forget(self) -> None:
        self.known.clear()

    def remember(self, key: bytes, known: KnownRequest) -> None:
        """Stores a request. When the table has doubled, requests of deleted partitions are dropped first."""
        if len(self.known) >= self._capacity:
            present = {known_key: item for known_key, item in self.known.items() if not item.partition.is_gone}
            self.known = present if len(present) < _MAX_KNOWN else {}
            self._capacity = max(_MIN_CAPACITY, 2 * len(self.known))
        self.known[key] = known


@lru_cache(maxsize=1024)
def struct_of(layout: str) -> Struct:
    return Struct(layout)
