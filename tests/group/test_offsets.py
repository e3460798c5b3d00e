"""Committed offsets: who may commit, what is kept, for how long."""

from __future__ import annotations

import pytest

from kbroker.errors import Refusal
from kbroker.group.classic.states import GroupState
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.consumer_protocol import SUBSCRIPTION
from kbroker.protocol.error_codes import ErrorCode
from tests.group.world import GROUP, World

MINUTE_MS = 60_000
RETENTION = {"offsets_retention_ms": 10 * MINUTE_MS}


def subscription(*topics: str) -> bytes:
    return b"\0\0" + codec(SUBSCRIPTION, 0).to_bytes(SUBSCRIPTION(topics=list(topics)))


def refusal(world: World, **commit: object) -> int:
    with pytest.raises(Refusal) as caught:
        world.commit(1, **commit)  # type: ignore[arg-type]
    return caught.value.code


def expire(world: World, group_id: str = GROUP) -> None:
    world.append(world.shard.offsets.expire(group_id, world.now))


def test_an_offset_comes_back_with_its_epoch_and_note() -> None:
    world = World()
    assert world.commit(42, metadata="a note — ünïcode") == {}
    assert world.shard.offsets.committed(GROUP)["topic", 0] == (42, 3, "a note — ünïcode", world.now.wall_ms, -1)


def test_a_null_note_is_an_empty_one() -> None:
    world = World()
    world.commit(42, metadata=None)
    assert world.shard.offsets.committed(GROUP)["topic", 0][2] == ""


def test_a_commit_without_a_group_makes_one() -> None:
    world = World()
    world.commit(42)
    assert world.state is GroupState.EMPTY
    assert [(group.group_id, group.protocol_type) for group in world.shard.list_groups()] == [(GROUP, "")]


def test_a_later_commit_wins_even_if_it_goes_back() -> None:
    world = World()
    world.commit(42)
    world.commit(7)
    assert world.offset() == 7
    world.restart()
    assert world.offset() == 7


def test_a_member_commits_in_its_generation_only() -> None:
    world = World()
    (member,) = world.settle(1)
    assert world.commit(5, member_id=member, generation=1) == {}
    assert refusal(world, member_id=member, generation=2) == ErrorCode.ILLEGAL_GENERATION
    assert refusal(world, member_id="stranger", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.offset() == 5


def test_who_is_no_member_cannot_commit_to_a_group_in_use() -> None:
    world = World()
    world.settle(1)
    assert refusal(world) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.offset() is None


def test_a_member_may_commit_while_others_join_but_not_while_the_leader_assigns() -> None:
    world = World()
    leader, _ = world.settle(2)
    world.join_new()
    assert world.commit(5, member_id=leader, generation=2) == {}
    world = World()
    member, _ = world.join_new()
    assert refusal(world, member_id=member, generation=1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_of_a_group_that_is_gone_is_told_by_version() -> None:
    world = World()
    assert refusal(world, member_id="m", generation=1, version=9) == ErrorCode.GROUP_ID_NOT_FOUND
    assert refusal(world, member_id="m", generation=1, version=8) == ErrorCode.ILLEGAL_GENERATION
    world.commit(1)
    assert refusal(world, member_id="m", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_long_note_is_refused_for_its_partition_alone() -> None:
    world = World(offset_metadata_max_bytes=10)
    assert world.commit(1, metadata="x" * 11) == {("topic", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert world.offset() is None
    assert world.commit(1, metadata="x" * 10) == {}


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    world = World(**RETENTION)
    (member,) = world.settle(1)
    world.commit(5, member_id=member, generation=1)
    for _ in range(400):
        world.advance(5000)
        world.heartbeat(member, 1)
    world.leave((member, None))
    world.advance(10 * MINUTE_MS - 1)
    expire(world)
    assert world.offset() == 5
    world.advance(1)
    expire(world)
    assert (world.offset(), world.state) == (None, GroupState.DEAD)
    world.restart()
    assert world.state is GroupState.DEAD


def test_offsets_without_a_group_expire_after_their_commit() -> None:
    world = World(**RETENTION)
    world.commit(1, partition=0)
    world.advance(6 * MINUTE_MS)
    world.commit(2, partition=1)
    world.advance(5 * MINUTE_MS)
    expire(world)
    assert (world.offset(partition=0), world.offset(partition=1)) == (None, 2)
    assert world.state is GroupState.EMPTY


def test_a_group_in_use_keeps_what_it_reads_and_forgets_other_topics() -> None:
    world = World(**RETENTION)
    protocols = [("range", subscription("read"))]
    (member,) = world.settle(1, protocols=protocols, session_timeout_ms=1_800_000)
    world.commit(1, topic="read", member_id=member, generation=1)
    world.commit(1, topic="once", member_id=member, generation=1)
    world.advance(11 * MINUTE_MS)
    expire(world)
    assert (world.offset("read"), world.offset("once")) == (1, None)


def test_a_group_whose_subscriptions_cannot_be_read_keeps_everything() -> None:
    world = World(**RETENTION)
    (member,) = world.settle(1, protocols=[("range", b"?")], session_timeout_ms=1_800_000)
    world.commit(1, member_id=member, generation=1)
    world.advance(11 * MINUTE_MS)
    expire(world)
    assert world.offset() == 1


def test_a_retention_that_an_old_client_asked_for_wins() -> None:
    world = World(**RETENTION)
    world.commit(1, retention_time_ms=20 * MINUTE_MS)
    world.restart()
    world.advance(20 * MINUTE_MS - 1)
    expire(world)
    assert world.offset() == 1
    world.advance(1)
    expire(world)
    assert world.offset() is None


def test_a_retention_longer_than_time_itself_keeps_the_offset() -> None:
    world = World(**RETENTION)
    world.commit(1, retention_time_ms=(1 << 63) - 1)
    world.restart()
    world.advance(1_000_000 * MINUTE_MS)
    expire(world)
    assert world.offset() == 1


def test_an_empty_group_without_offsets_does_not_stay() -> None:
    world = World()
    (member,) = world.settle(1)
    world.leave((member, None))
    expire(world)
    assert world.state is GroupState.DEAD


def test_a_group_that_gave_out_an_id_is_not_deleted_under_its_feet() -> None:
    world = World()
    pending = world.join().response.member_id
    expire(world)
    assert world.join(pending).code == 0


def test_deleted_topics_take_their_offsets_along() -> None:
    world = World()
    world.commit(1, topic="stays")
    world.commit(1, topic="goes")
    world.append(world.shard.offsets.remove_topics(GROUP, frozenset({"goes"})))
    assert (world.offset("stays"), world.offset("goes")) == (1, None)


def test_offsets_are_deleted_unless_somebody_reads_the_topic() -> None:
    world = World()
    (member,) = world.settle(1, protocols=[("range", subscription("read"))])
    world.commit(1, topic="read", member_id=member, generation=1)
    world.commit(1, topic="once", member_id=member, generation=1)
    records, refused = world.shard.offsets.delete(GROUP, [("read", 0), ("once", 0), ("never", 0)])
    world.append(records)
    assert refused == {("read", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert (world.offset("read"), world.offset("once")) == (1, None)
    assert len(records) == 1


def test_offsets_of_others_than_consumers_are_deleted_only_from_an_empty_group() -> None:
    world = World()
    (member,) = world.settle(1, protocol_type="connect")
    with pytest.raises(Refusal) as caught:
        world.shard.offsets.delete(GROUP, [("topic", 0)])
    assert caught.value.code == ErrorCode.NON_EMPTY_GROUP
    world.leave((member, None))
    assert world.shard.offsets.delete(GROUP, [("topic", 0)]) == ([], {})


def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted() -> None:
    with pytest.raises(Refusal) as caught:
        World().shard.offsets.delete(GROUP, [])
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_is_deleted_with_its_offsets_when_it_is_empty() -> None:
    world = World()
    (member,) = world.settle(1)
    world.commit(1, member_id=member, generation=1)
    with pytest.raises(Refusal) as caught:
        world.shard.delete(GROUP)
    assert caught.value.code == ErrorCode.NON_EMPTY_GROUP
    world.leave((member, None))
    world.append(world.shard.delete(GROUP))
    assert (world.state, world.offset()) == (GroupState.DEAD, None)
    with pytest.raises(Refusal) as caught:
        world.shard.delete(GROUP)
    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_do_not_see_each_other() -> None:
    world = World()
    world.commit(1, group_id="one")
    world.commit(2, group_id="two")
    world.append(world.shard.delete("one"))
    assert (world.offset(group_id="one"), world.offset(group_id="two")) == (None, 2)
