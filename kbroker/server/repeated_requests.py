"""A client's next request is mostly its last one with another offset or other records: it is recognised by its bytes.

What is recognised need not be decoded, nor its answer encoded. It is known by its shape (where its connection's last
request had what) and by a key (the bytes that both have in common). Whatever is not as it was takes the ordinary way
through its handler, and has changed nothing before. Which requests these are: `repeated_produce`, `repeated_fetch`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.connection import Connection
    from kbroker.server.context import Context
    from kbroker.server.request import Request, Route
    from kbroker.server.request_slot import RequestSlot

__all__ = ["HEAD_SIZE", "KEY_POSITION", "LONGEST_KEY", "PLACES", "KnownRequest", "RepeatedRequests", "struct_of"]

HEAD_SIZE: Final = 4  # API key and version
KEY_POSITION: Final = 8  # behind them and the correlation id
PLACES: Final = (0x5E70FF5E70000001, 0x5E70FF5E70000002, 0x5E70FF5E70000003)  # stand for the offsets of an answer
LONGEST_KEY: Final = 1024  # names are not that long unless somebody wants to fill our memory
_FEW_KNOWN: Final = 64
_MOST_KNOWN: Final = 16384


class KnownRequest:
    """What one kind of client asks of one partition."""

    __slots__ = ("head", "partition", "route")

    def __init__(self, route: Route, head: bytes, partition: Partition) -> None:
        self.route = route
        self.head = head
        self.partition = partition


class RepeatedRequests(ABC):
    """Of one API."""

    __slots__ = ("_room", "context", "known")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.known: dict[bytes, KnownRequest] = {}
        self._room = _FEW_KNOWN

    @abstractmethod
    def handle(self, connection: Connection, frame: memoryview, slot: RequestSlot) -> bool:
        """False: it has to be decoded, and nothing has happened yet."""

    @abstractmethod
    def learn(self, connection: Connection, frame: memoryview, request: Request) -> None:
        """From a request that had to be decoded and was handled: the next one may be like it."""

    def expect(self, connection: Connection, shape: Struct) -> None:
        """The next request of that connection. One whose requests come in many shapes by turns is given up: it would be
        learnt again and again."""
        if connection.shape is not shape:
            connection.shape = shape
            connection.repeated = self
            connection.shapes_left -= 1

    def forget(self) -> None:
        self.known.clear()

    def remember(self, key: bytes, known: KnownRequest) -> None:
        """What belongs to partitions that have gone is dropped whenever as much again has been learnt."""
        if len(self.known) >= self._room:
            present = {each: request for each, request in self.known.items() if not request.partition.is_gone}
            self.known = present if len(present) < _MOST_KNOWN else {}
            self._room = max(_FEW_KNOWN, 2 * len(self.known))
        self.known[key] = known


@lru_cache(maxsize=1024)
def struct_of(layout: str) -> Struct:
    return Struct(layout)
