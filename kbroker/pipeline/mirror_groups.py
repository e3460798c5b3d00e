"""Consumer groups of a mirror: translates committed offsets, so that a group can move to the target and back.

A commit of the mirror has the text `kbroker.mirrored-from <cluster id>:<offset>` as its metadata. It says which commit
of the other cluster it follows, so the mirror needs no state of its own:

    source commit  target commit           what the mirror does
    -------------  ----------------------  --------------------------------------------------------------
    own            none, or follows other  commits in the target (also backwards, after a reset of the group)
    follows other  own                     commits in the source
    own            own                     the group moved: the commit that is behind follows the other one

A group with members in a cluster keeps its offsets there: brokers refuse the commit, and the mirror tries again later.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kbroker.client.admin.groups import list_groups
from kbroker.client.cluster import Cluster
from kbroker.client.failures import BrokerRefusal
from kbroker.client.offsets import GroupOffset, commit_group_offsets, group_offsets
from kbroker.pipeline.mirror_copies import ORIGIN_HEADER, CopiedPartition, Copies, RecordCopy, find_copy, last_copy

__all__ = ["GroupMover", "MovedOffset", "Side", "followed_offset"]

_LOG: Final = logging.getLogger(__name__)


class MovedOffset(NamedTuple):
    """Offset that the mirror committed."""

    group: str
    topic: str
    partition: int
    offset: int
    is_in_target: bool


class Side(NamedTuple):
    """One of the two clusters."""

    cluster: Cluster
    cluster_id: str


def followed_offset(commit: GroupOffset, cluster_id: str) -> int | None:
    """Returns the offset of the other cluster that this commit follows; None if the group committed itself."""
    found = re.fullmatch(rf"{re.escape(ORIGIN_HEADER)} {re.escape(cluster_id)}:(\d+)", commit.metadata)
    return None if found is None else int(found[1])


class GroupMover:
    """Translates the offsets of groups between the two clusters of a mirror.

    `topics`: the mirrored topics that both clusters have, with the number of partitions that both have.
    """

    def __init__(
        self,
        source: Side,
        target: Side,
        *,
        topics: Mapping[str, int],
        pattern: str,
        is_two_way: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._topics = topics
        self._pattern = re.compile(pattern)
        self._is_two_way = is_two_way

    async def move_groups(self) -> list[MovedOffset]:
        """Looks at all groups once; returns the new commits."""
        names = {group.group_id for side in (self._source, self._target) for group in await list_groups(side.cluster)}
        moved: list[MovedOffset] = []
        for name in sorted(name for name in names if self._pattern.fullmatch(name)):
            moved += await self._move_group(name)
        return moved

    async def _move_group(self, group: str) -> list[MovedOffset]:
        source_commits = await group_offsets(self._source.cluster, group)
        target_commits = await group_offsets(self._target.cluster, group)
        to_target: dict[str, dict[int, GroupOffset]] = {}
        to_source: dict[str, dict[int, GroupOffset]] = {}
        for topic, partition in _partitions(source_commits, target_commits):
            if topic not in self._topics or partition >= self._topics[topic]:
                continue
            last = await last_copy(self._copies_in(self._target, self._source, topic, partition))
            if last is None:
                continue
            source = source_commits.get(topic, {}).get(partition)
            target = target_commits.get(topic, {}).get(partition)
            forward, back = await self._decide(topic, partition, source, target, last)
            if forward is not None and forward != target:
                to_target.setdefault(topic, {})[partition] = forward
            if back is not None and back != source:
                to_source.setdefault(topic, {})[partition] = back
        return [
            *await _commit(self._target.cluster, group, to_target, is_in_target=True),
            *await _commit(self._source.cluster, group, to_source, is_in_target=False),
        ]

    async def _decide(
        self, topic: str, partition: int, source: GroupOffset | None, target: GroupOffset | None, last: RecordCopy
    ) -> tuple[GroupOffset | None, GroupOffset | None]:
        """Returns the commits to make in the target and in the source."""
        target_follows = None if target is None else followed_offset(target, self._source.cluster_id)
        source_follows = None if source is None else followed_offset(source, self._target.cluster_id)
        if source is not None and (target is None or target_follows is not None):
            if source_follows is not None or target_follows == source.offset:
                return None, None
            return await self._commit_for_target(topic, partition, source.offset, last), None
        assert target is not None
        if source_follows == target.offset:
            return None, None
        back = await self._commit_for_source(topic, partition, target.offset, last)
        if source is None or source_follows is not None or back.offset > source.offset:
            return None, back
        forward = await self._commit_for_target(topic, partition, source.offset, last)
        return (forward, None) if forward.offset > target.offset else (None, None)

    async def _commit_for_target(self, topic: str, partition: int, offset: int, last: RecordCopy) -> GroupOffset:
        """Returns the position in the target before the first record that the group has not read in the source."""
        unread = await find_copy(self._copies_in(self._target, self._source, topic, partition), offset)
        positions = [] if unread is None else [unread.offset]
        if self._is_two_way:
            positions += await _unread_originals(self._copies_in(self._source, self._target, topic, partition), offset)
        # A group ahead of the mirror is translated again when the mirror has caught up.
        followed = min(offset, last.source_offset + 1)
        return _following(self._source, followed, min(positions, default=last.offset + 1))

    async def _commit_for_source(self, topic: str, partition: int, offset: int, last: RecordCopy) -> GroupOffset:
        """Returns the position in the source before the first record that the group has not read in the target."""
        positions = await _unread_originals(self._copies_in(self._target, self._source, topic, partition), offset)
        if self._is_two_way:
            unread = await find_copy(self._copies_in(self._source, self._target, topic, partition), offset)
            positions += [] if unread is None else [unread.offset]
        return _following(self._target, offset, min(positions, default=last.source_offset + 1))

    @staticmethod
    def _copies_in(holder: Side, origin: Side, topic: str, partition: int) -> Copies:
        return CopiedPartition(holder.cluster, topic, partition, origin=origin.cluster_id)


def _following(followed: Side, followed_at: int, offset: int) -> GroupOffset:
    return GroupOffset(offset, f"{ORIGIN_HEADER} {followed.cluster_id}:{followed_at}")


async def _unread_originals(copies: Copies, offset: int) -> list[int]:
    """Returns the source offset of the first copy at `offset` or later, as a list of at most one."""
    first, end = await copies.bounds()
    copy = await copies.first_copy(max(first, offset), end)
    return [] if copy is None else [copy.source_offset]


def _partitions(*commits: dict[str, dict[int, GroupOffset]]) -> Iterable[tuple[str, int]]:
    return sorted({(topic, index) for side in commits for topic, offsets in side.items() for index in offsets})


async def _commit(
    cluster: Cluster, group: str, offsets: dict[str, dict[int, GroupOffset]], *, is_in_target: bool
) -> list[MovedOffset]:
    if not offsets:
        return []
    try:
        await commit_group_offsets(cluster, group, offsets)
    except BrokerRefusal as refusal:
        _LOG.info("Offsets of group %s were not translated: %s", group, refusal)
        return []
    return [
        MovedOffset(group, topic, partition, commit.offset, is_in_target)
        for topic, partitions in offsets.items()
        for partition, commit in partitions.items()
    ]
