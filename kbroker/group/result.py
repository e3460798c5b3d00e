"""The result of a request to a group: records to append, responses to send after that, and the next deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kbroker.protocol.keyed_batch import KeyAndValue

__all__ = [
    "AnyPendingResponse",
    "ConsumerTimeouts",
    "GroupCoordinatorConfig",
    "GroupResult",
    "Now",
    "PatternsToMatch",
]

AnyPendingResponse = Any
"""The coordinator's PendingResponse: opaque here, handed back with the response."""


class Now(NamedTuple):
    wall_ms: int
    """Wall clock, for timestamps in records."""
    elapsed_ms: int
    """Monotonic clock, for deadlines."""


class GroupCoordinatorConfig(NamedTuple):
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 0x7FFFFFFF
    initial_rebalance_delay_ms: int = 0
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    new_member_join_timeout_ms: int = 300_000
    """Deadline of a member's first join, in case its client has disconnected. Kafka's constant: five minutes."""
    consumer_max_size: int = 0x7FFFFFFF
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first one is the default."""
    may_upgrade: bool = True
    """Whether a classic group with members may become a consumer group (group.consumer.migration.policy)."""
    may_downgrade: bool = True


class ConsumerTimeouts(NamedTuple):
    """The timeouts of one group, from its own configs or the broker's."""

    session_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000


class PatternsToMatch(NamedTuple):
    """Patterns to match in the background, because there are too many topics. The shard gets the topics later."""

    group_id: str
    regexes: tuple[str, ...]
    may_see: Callable[[str], bool]


class GroupResult:
    """`replies` are sent once `records` are committed. `wakes`: group ids with the elapsed time of a deadline.

    `unassigned`: a group whose assignment has to be computed in the background.
    """

    __slots__ = ("patterns", "records", "replies", "unassigned", "wakes")

    def __init__(self) -> None:
        self.records: list[KeyAndValue] = []
        self.replies: list[tuple[AnyPendingResponse, Any]] = []
        self.wakes: list[tuple[str, int]] = []
        self.patterns: PatternsToMatch | None = None
        self.unassigned: str | None = None

    def __repr__(self) -> str:
        return f"GroupResult(records={self.records!r}, replies={self.replies!r}, wakes={self.wakes!r})"
