"""Offsets of open transactions: kept apart until the marker comes, in memory as in the log."""

from __future__ import annotations

import pytest

from kbroker.errors import Refusal
from kbroker.group.hard_state import HardState
from kbroker.group.records import offset_record, offset_tombstone
from kbroker.group.result import GroupCoordinatorConfig, Now
from kbroker.group.shard import GroupShard
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import txn_offset_commit

A, B = 1, 2
T0, T1 = ("t", 0), ("t", 1)


def record(offset: int, partition: int = 0, group: str = "g") -> tuple[bytes, bytes | None]:
    return offset_record(group, "t", partition, (offset, -1, "", 1000, -1))


def offsets(hard: HardState, group: str = "g") -> dict[tuple[str, int], int]:
    return {key: pending[0] for key, pending in hard.offsets.get(group, {}).items()}


def test_a_commit_makes_them_count_and_an_abort_forgets_them() -> None:
    hard = HardState()
    hard.replay(*record(1))
    hard.replay_pending(A, [record(5), record(6, 1)])
    hard.replay_pending(B, [record(9, group="other")])
    assert (offsets(hard), hard.pending_partitions("g")) == ({T0: 1}, {T0, T1})
    hard.end_transaction(B, is_commit=False)
    assert "other" not in hard
    hard.end_transaction(A, is_commit=True)
    assert (offsets(hard), hard.pending_partitions("g")) == ({T0: 5, T1: 6}, set())
    assert not hard.pending


def test_a_transaction_without_offsets_ends_too() -> None:
    hard = HardState()
    hard.end_transaction(A, is_commit=True)
    assert hard == HardState()


def test_a_group_that_has_only_pending_offsets_is_there() -> None:
    hard = HardState()
    hard.replay_pending(A, [record(5)])
    assert "g" in hard
    assert list(hard.open_groups) == ["g"]


def test_a_plain_commit_wins_over_what_came_before_it() -> None:
    hard = HardState()
    hard.replay_pending(A, [record(5), record(6, 1)])
    hard.replay(*record(7))
    assert hard.pending_partitions("g") == {T0, T1}, "not stable before the marker"
    hard.end_transaction(A, is_commit=True)
    assert offsets(hard) == {T0: 7, T1: 6}


def test_what_is_deleted_does_not_come_back_with_the_marker() -> None:
    hard = HardState()
    hard.replay_pending(A, [record(5)])
    hard.replay(*offset_tombstone("g", "t", 0))
    hard.end_transaction(A, is_commit=True)
    assert offsets(hard) == {}


def test_two_states_differ_by_what_is_pending() -> None:
    one, other = HardState(), HardState()
    one.replay_pending(A, [record(5)])
    assert one != other
    other.replay_pending(A, [record(5)])
    assert one == other


def shard_with_pending(retention_ms: int = 1_000_000) -> GroupShard:
    shard = GroupShard(GroupCoordinatorConfig(offsets_retention_ms=retention_ms), lambda: "id")
    shard.replay([record(1), record(2, 1)])
    shard.hard.replay_pending(A, [record(5)])
    return shard


def test_what_a_transaction_may_still_change_does_not_expire() -> None:
    shard = shard_with_pending(retention_ms=10)
    later = Now(1_000_000, 0)
    assert shard.offsets.expire("g", later) == [offset_tombstone("g", "t", 1)]
    shard.hard.end_transaction(A, is_commit=False)
    shard.replay(shard.offsets.expire("g", later))
    assert "g" not in shard.hard


def test_a_group_that_is_deleted_takes_its_open_offsets_along() -> None:
    shard = shard_with_pending()
    shard.replay(shard.delete("g"))
    shard.hard.end_transaction(A, is_commit=True)
    assert "g" not in shard.hard


def test_a_topic_that_is_deleted_takes_its_open_offsets_along() -> None:
    shard = shard_with_pending()
    shard.hard.replay_pending(A, [record(7, 2)])
    shard.replay(shard.offsets.remove_topics("g", frozenset({"t"})))
    shard.hard.end_transaction(A, is_commit=True)
    assert offsets(shard.hard) == {}


def commit_body(**members: object) -> object:
    return txn_offset_commit.REQUEST(transactional_id="pay", group_id="g", topics=[], **members)


def test_whoever_names_no_member_may_commit_and_a_stranger_may_not() -> None:
    shard = shard_with_pending()
    assert shard.offsets.commit_in_transaction(commit_body(), Now(1000, 0)) == ([], {})
    with pytest.raises(Refusal) as refused:
        shard.offsets.commit_in_transaction(commit_body(member_id="m", generation_id=3), Now(1000, 0))
    assert refused.value.code == ErrorCode.UNKNOWN_MEMBER_ID
