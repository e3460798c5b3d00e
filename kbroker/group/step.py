"""What a group makes of a request: records to append, answers that leave after that, and when to look again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["ConsumerTimeouts", "GroupConfig", "KeyAndValue", "Now", "PatternsToMatch", "Step", "Ticket"]

KeyAndValue = tuple[bytes, bytes | None]
"""A record of `__consumer_offsets`; without a value it is a tombstone."""

Ticket = Any
"""Who waits for an answer: opaque here, handed back with the answer."""


class Now(NamedTuple):
    wall_ms: int
    """What goes into records."""
    elapsed_ms: int
    """From a clock that only grows: what deadlines are made of."""


class GroupConfig(NamedTuple):
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 0x7FFFFFFF
    initial_rebalance_delay_ms: int = 0
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    new_member_join_timeout_ms: int = 300_000
    """A first join whose client has vanished meanwhile must not stay in the group for ever; Kafka's five minutes."""
    consumer_max_size: int = 0x7FFFFFFF
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first is the default."""
    may_upgrade: bool = True
    """Whether a classic group with members may become a consumer group, and the reverse."""
    may_downgrade: bool = True


class ConsumerTimeouts(NamedTuple):
    """Of one group: it may have configs of its own."""

    session_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000


class PatternsToMatch(NamedTuple):
    """There are too many topics to match these on the spot: the result comes later, as a request of its own."""

    group_id: str
    regexes: tuple[str, ...]
    may_see: Callable[[str], bool]


class Step:
    """`replies` leave once `records` are committed. `wakes`: groups and the elapsed time at which they want a look."""

    __slots__ = ("patterns", "records", "replies", "wakes")

    def __init__(self) -> None:
        self.records: list[KeyAndValue] = []
        self.replies: list[tuple[Ticket, Any]] = []
        self.wakes: list[tuple[str, int]] = []
        self.patterns: PatternsToMatch | None = None

    def __repr__(self) -> str:
        return f"Step(records={self.records!r}, replies={self.replies!r}, wakes={self.wakes!r})"
