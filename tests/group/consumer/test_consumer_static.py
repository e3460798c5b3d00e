"""Static members of consumer groups: an instance id leaves for a while with epoch -2, for good with -1."""

from __future__ import annotations

from kbroker.protocol.error_codes import ErrorCode
from tests.group.consumers import Consumer, ConsumerWorld, settle


def settled(world: ConsumerWorld) -> tuple[Consumer, Consumer]:
    a, b = Consumer(world, "a", instance_id="first"), Consumer(world, "b", instance_id="second")
    settle(a, b)
    assert (a.partitions, b.partitions) == ([0, 1], [2, 3])
    return a, b


def test_a_member_that_comes_back_has_its_old_assignment_and_nobody_notices() -> None:
    world = ConsumerWorld()
    a, b = settled(world)
    left = world.beat("b", -2, instance_id="second")
    assert (left.error_code, left.member_epoch) == (0, -2)
    a.beat()
    back = Consumer(world, "b2", instance_id="second")
    assert (back.partitions, back.epoch) == ([2, 3], 2)
    a.beat()
    assert (a.partitions, a.epoch) == ([0, 1], 2)
    assert b.beat() == ErrorCode.FENCED_INSTANCE_ID


def test_an_instance_that_has_not_left_is_not_replaced() -> None:
    world = ConsumerWorld()
    settled(world)
    assert world.join_consumer("b2", instance_id="second") == ErrorCode.UNRELEASED_INSTANCE_ID


def test_after_leaving_for_a_while_the_old_member_is_fenced() -> None:
    world = ConsumerWorld()
    _, b = settled(world)
    world.beat("b", -2, instance_id="second")
    assert b.beat() == ErrorCode.FENCED_MEMBER_EPOCH


def test_who_does_not_come_back_within_its_session_is_gone() -> None:
    world = ConsumerWorld()
    a, _ = settled(world)
    world.beat("b", -2, instance_id="second")
    world.advance(30_000)
    a.beat()
    assert a.partitions == [0, 1]
    world.advance(15_000)
    a.beat()
    assert a.partitions == [0, 1, 2, 3]


def test_leaving_for_good_frees_the_partitions_at_once() -> None:
    world = ConsumerWorld()
    a, _ = settled(world)
    world.beat("b", -1, instance_id="second")
    a.beat()
    assert a.partitions == [0, 1, 2, 3]
    assert world.beat("b", -1, instance_id="second") == ErrorCode.UNKNOWN_MEMBER_ID


def test_other_members_and_instances_are_told_so() -> None:
    world = ConsumerWorld()
    settled(world)
    assert world.beat("x", 2, instance_id="second") == ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("x", -2, instance_id="second") == ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("b", 2, instance_id="unknown") == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_absence_survives_a_restart_of_the_broker() -> None:
    world = ConsumerWorld()
    a, _ = settled(world)
    world.beat("b", -2, instance_id="second")
    world.restart()
    a.beat()
    back = Consumer(world, "b2", instance_id="second")
    assert (back.partitions, a.partitions) == ([2, 3], [0, 1])


def test_who_comes_back_after_a_change_gets_what_it_shall_have_now() -> None:
    world = ConsumerWorld()
    a, _ = settled(world)
    world.beat("b", -2, instance_id="second")
    c = Consumer(world, "c")
    back = Consumer(world, "b2", instance_id="second")
    settle(a, back, c)
    assert sorted(a.partitions + back.partitions + c.partitions) == [0, 1, 2, 3]
    assert back.partitions
    assert set(back.partitions) <= {2, 3}


def test_an_admin_sends_members_away_by_their_instance_ids() -> None:
    world = ConsumerWorld()
    a, b = settled(world)
    assert world.leave(("", "second"), ("", "unknown"), ("x", None)) == [0, 25, 25]
    a.beat()
    assert a.partitions == [0, 1, 2, 3]
    assert b.beat() == ErrorCode.UNKNOWN_MEMBER_ID
