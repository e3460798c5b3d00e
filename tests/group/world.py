"""A shard with a log in memory and a clock that is moved by hand: commands in, answers out."""

from __future__ import annotations

import itertools
from typing import Any

from kbroker.group.classic.classic_group import ClassicGroup
from kbroker.group.classic.states import GroupState
from kbroker.group.consumer.topics import TopicSource
from kbroker.group.hard_state import HardState
from kbroker.group.result import ConsumerTimeouts, GroupCoordinatorConfig, GroupResult, Now
from kbroker.group.shard import GroupShard
from kbroker.protocol.keyed_batch import KeyAndValue
from kbroker.protocol.messages import heartbeat, join_group, offset_commit, sync_group

GROUP = "group"
WALL_MS = 1_700_000_000_000


class Answer:
    """The response to a request. A second response is a bug."""

    def __init__(self) -> None:
        self.response: Any = None

    def give(self, response: Any) -> None:
        assert self.response is None, f"answered twice: {self.response} and {response}"
        self.response = response

    @property
    def code(self) -> int:
        assert self.response is not None, "still waiting"
        return int(self.response.error_code)

    @property
    def is_waiting(self) -> bool:
        return self.response is None


class World:
    def __init__(self, **config: Any) -> None:
        self.config = GroupCoordinatorConfig(**config)
        self.topics = TopicSource()
        self.timeouts = ConsumerTimeouts()
        self.elapsed_ms = 0
        self.log: list[KeyAndValue] = []
        self.wakes: list[tuple[int, str]] = []
        ids = itertools.count(1)
        self.new_id = lambda: f"id{next(ids)}"
        self.shard = self._new_shard()

    def _new_shard(self) -> GroupShard:
        return GroupShard(self.config, self.new_id, self.topics, lambda group_id: self.timeouts)

    @property
    def now(self) -> Now:
        return Now(WALL_MS + self.elapsed_ms, self.elapsed_ms)

    def apply(self, result: GroupResult) -> None:
        self.append(result.records)
        self.wakes += [(due_ms, group_id) for group_id, due_ms in result.wakes]
        for pending, response in result.replies:
            pending.give(response)

    def append(self, records: list[KeyAndValue]) -> None:
        self.log += records
        self.shard.replay(records)

    def check_log(self) -> None:
        """Replayed from its beginning it makes the state that the shard has."""
        replayed = HardState()
        for key, value in self.log:
            replayed.replay(key, value)
        assert replayed == self.shard.hard

    def advance(self, milliseconds: int) -> None:
        """Moves the clock, and wakes groups at their deadlines."""
        end = self.elapsed_ms + milliseconds
        while self.wakes and min(self.wakes)[0] <= end:
            wake = min(self.wakes)
            self.wakes.remove(wake)
            self.elapsed_ms = max(self.elapsed_ms, wake[0])
            self.apply(self.shard.wake(wake[1], self.now))
        self.elapsed_ms = end

    def restart(self) -> None:
        """Another broker, or the same one again: nothing but the log is left."""
        self.shard = self._new_shard()
        self.shard.replay(self.log)
        self.wakes.clear()
        self.apply(self.shard.on_loaded(self.now))

    # Requests

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        version: int = 9,
        group_id: str = GROUP,
        protocol_type: str = "consumer",
        protocols: Any = (("range", b"subscription"),),
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        client_id: str = "client",
    ) -> Answer:
        body = join_group.REQUEST(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[join_group.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        answer = Answer()
        self.apply(self.shard.join(body, version, client_id, "/host", answer, self.now))
        return answer

    def join_new(self, **options: Any) -> tuple[str, Answer]:
        """Both joins of a dynamic member: the one that is given an id, and the one that uses it."""
        first = self.join(**options)
        member_id = first.response.member_id
        return member_id, self.join(member_id, **options)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Answer:
        body = sync_group.REQUEST(
            group_id=GROUP,
            member_id=member_id,
            generation_id=generation,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                sync_group.SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
        )
        answer = Answer()
        self.apply(self.shard.sync(body, answer, self.now))
        return answer

    def heartbeat(self, member_id: str, generation: int, *, instance_id: str | None = None) -> int:
        body = heartbeat.REQUEST(
            group_id=GROUP, member_id=member_id, generation_id=generation, group_instance_id=instance_id
        )
        return int(self.shard.heartbeat(body, self.now))

    def leave(self, *leaving: tuple[str, str | None]) -> list[int]:
        answer = Answer()
        self.apply(self.shard.leave(GROUP, list(leaving), answer, self.now))
        return [int(member.error_code) for member in answer.response.members]

    def commit(
        self,
        offset: int,
        *,
        topic: str = "topic",
        partition: int = 0,
        metadata: str | None = "",
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        version: int = 9,
        group_id: str = GROUP,
        retention_time_ms: int = -1,
    ) -> dict[tuple[str, int], int]:
        """The refused partitions; Refusal as a whole."""
        asked = offset_commit.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=3, committed_metadata=metadata
        )
        body = offset_commit.REQUEST(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=instance_id,
            generation_id_or_member_epoch=generation,
            retention_time_ms=retention_time_ms,
            topics=[offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[asked])],
        )
        records, refused = self.shard.offsets.commit(body, version, self.now)
        self.append(records)
        return {partition: int(code) for partition, code in refused.items()}

    # What there is

    @property
    def group(self) -> ClassicGroup | None:
        return self.shard.describe(GROUP)

    @property
    def state(self) -> GroupState:
        group = self.group
        return GroupState.DEAD if group is None else group.state

    def offset(self, topic: str = "topic", partition: int = 0, group_id: str = GROUP) -> int | None:
        found = self.shard.offsets.committed(group_id).get((topic, partition))
        return None if found is None else found[0]

    def settle(self, count: int, **options: Any) -> list[str]:
        """A stable group of so many members, the leader first; each has its own name as its assignment."""
        first, answer = self.join_new(**options)
        members = [first]
        for _ in range(count - 1):
            member_id, joined = self.join_new(**options)
            members.append(member_id)
            rejoins = [self.join(member, **options) for member in members[:-1]]
            answer = rejoins[0]
            assert joined.code == 0, joined.response
        generation = answer.response.generation_id
        self.sync(first, generation, {member: member.encode() for member in members})
        for member in members[1:]:
            assert self.sync(member, generation).response.assignment == member.encode()
        assert self.state is GroupState.STABLE
        return members
