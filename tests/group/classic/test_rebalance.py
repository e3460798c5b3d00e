"""How a classic group gets from members that join to an assignment for each."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.group.classic.states import GroupState
from kbroker.protocol.error_codes import ErrorCode
from tests.group.world import World

SMALL = {"max_size": 2}


def test_a_new_member_is_given_an_id_first() -> None:
    world = World()
    first = world.join()
    assert (first.code, first.response.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "client-id1")
    second = world.join("client-id1")
    assert (second.code, second.response.generation_id) == (0, 1)


def test_before_v4_a_new_member_is_taken_at_once() -> None:
    answer = World().join(version=3)
    assert (answer.code, answer.response.member_id, answer.response.leader) == (0, "client-id1", "client-id1")


@pytest.mark.parametrize("members", [{"client_id": "Ж" * 16_383}, {"instance_id": "x" * 32_767}])
def test_the_id_of_a_member_with_a_very_long_name_fits_into_a_string(members: dict[str, Any]) -> None:
    answer = World().join(version=5, **members)
    assert answer.response.member_id.endswith("-id1")
    assert len(answer.response.member_id.encode()) < 32_767


def test_the_only_member_leads_and_sees_itself() -> None:
    world = World()
    member_id, answer = world.join_new()
    response = answer.response
    assert (response.leader, response.protocol_name, response.protocol_type) == (member_id, "range", "consumer")
    assert [(member.member_id, member.metadata) for member in response.members] == [(member_id, b"subscription")]


def test_only_the_leader_sees_the_members() -> None:
    world = World()
    leader, _ = world.join_new()
    follower, joined = world.join_new()
    rejoined = world.join(leader)
    assert {member.member_id for member in rejoined.response.members} == {leader, follower}
    assert joined.response.members == []


def test_a_join_waits_until_every_member_has_rejoined() -> None:
    world = World()
    leader, _, third = world.settle(3)
    _, joined = world.join_new()
    rejoins = [world.join(leader), world.join(third)]
    assert joined.is_waiting
    assert world.state is GroupState.PREPARING_REBALANCE
    assert all(rejoin.is_waiting for rejoin in rejoins)


def test_a_member_that_does_not_rejoin_in_time_is_left_behind() -> None:
    world = World()
    leader, slow = world.settle(2)
    joiner, joined = world.join_new(rebalance_timeout_ms=60_000)
    rejoined = world.join(leader)
    for _ in range(30):
        world.advance(2000)
        world.heartbeat(slow, 2)
    assert joined.response.generation_id == rejoined.response.generation_id == 3
    assert {member.member_id for member in rejoined.response.members} == {leader, joiner}
    assert world.heartbeat(slow, 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_id_holds_up_the_others_for_its_session_timeout_only() -> None:
    world = World()
    (leader,) = world.settle(1)
    world.join(session_timeout_ms=7000)
    rejoined = world.join(leader)
    assert rejoined.is_waiting
    world.advance(7000)
    assert rejoined.code == 0


def test_another_leader_is_chosen_if_the_leader_does_not_rejoin() -> None:
    world = World()
    _, second = world.settle(2)
    _, joined = world.join_new()
    rejoined = world.join(second)
    world.advance(10_000)
    assert rejoined.response.leader == second == joined.response.leader


def test_the_assignment_reaches_every_member() -> None:
    world = World()
    leader, _ = world.join_new()
    follower, joined = world.join_new()
    world.join(leader)
    waiting = world.sync(follower, 2)
    assert waiting.is_waiting
    done = world.sync(leader, 2, {leader: b"mine", follower: b"yours"})
    assert (done.response.assignment, waiting.response.assignment) == (b"mine", b"yours")
    assert (done.response.protocol_name, done.response.protocol_type) == ("range", "consumer")
    assert joined.response.leader == leader


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    world = World()
    leader, _ = world.join_new()
    follower, _ = world.join_new()
    world.join(leader)
    world.sync(leader, 2, {leader: b"all"})
    assert world.sync(follower, 2).response.assignment == b""


def test_a_sync_of_another_generation_is_refused() -> None:
    world = World()
    leader, _ = world.join_new()
    assert world.sync(leader, 2).code == ErrorCode.ILLEGAL_GENERATION
    assert world.sync(leader, 0).code == ErrorCode.ILLEGAL_GENERATION


def test_a_sync_of_a_stranger_is_refused() -> None:
    world = World()
    assert world.sync("nobody", 1).code == ErrorCode.UNKNOWN_MEMBER_ID
    world.join_new()
    assert world.sync("nobody", 1).code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_that_names_another_protocol_is_refused() -> None:
    world = World()
    leader, _ = world.join_new()
    assert world.sync(leader, 1, protocol_type="connect").code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.sync(leader, 1, protocol_name="sticky").code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.sync(leader, 1, protocol_type="consumer", protocol_name="range").code == 0


def test_a_join_during_the_sync_sends_everybody_back() -> None:
    world = World()
    leader, _ = world.join_new()
    follower, _ = world.join_new()
    world.join(leader)
    waiting = world.sync(follower, 2)
    world.join_new()
    assert waiting.code == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.sync(leader, 2, {leader: b"late"}).code == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(leader, 2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_never_syncs_is_removed_and_the_rest_rebalance() -> None:
    world = World()
    leader, _ = world.join_new(rebalance_timeout_ms=20_000)
    silent, _ = world.join_new(rebalance_timeout_ms=20_000)
    world.join(leader, rebalance_timeout_ms=20_000)
    world.sync(leader, 2, {leader: b"x", silent: b"y"})
    for _ in range(10):
        world.advance(2000)
        world.heartbeat(leader, 2)
        code = world.heartbeat(silent, 2)
    assert code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(leader).response.generation_id == 3


def test_a_leader_that_dies_between_join_and_sync_does_not_hold_the_group() -> None:
    world = World()
    leader, _ = world.join_new()
    follower, _ = world.join_new()
    world.join(leader)
    waiting = world.sync(follower, 2)
    world.advance(10_000)
    assert waiting.code == ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(follower)
    assert (again.response.leader, again.response.generation_id) == (follower, 3)


def test_a_follower_that_rejoins_unchanged_is_told_what_is() -> None:
    world = World()
    leader, follower = world.settle(2)
    answer = world.join(follower)
    assert (answer.code, answer.response.generation_id, answer.response.leader) == (0, 2, leader)
    assert world.state is GroupState.STABLE


def test_a_follower_with_another_subscription_starts_a_rebalance() -> None:
    world = World()
    _, follower = world.settle(2)
    assert world.join(follower, protocols=[("range", b"other")]).is_waiting
    assert world.state is GroupState.PREPARING_REBALANCE


def test_a_leader_that_rejoins_starts_a_rebalance() -> None:
    world = World()
    leader, _ = world.settle(2)
    assert world.join(leader).is_waiting


def test_a_leader_that_lost_its_answer_gets_it_again() -> None:
    world = World()
    leader, first = world.join_new()
    again = world.join(leader)
    assert again.response == first.response


def test_a_join_that_is_sent_twice_is_answered_twice() -> None:
    world = World()
    leader, follower = world.settle(2)
    first = world.join(leader)
    second = world.join(leader)
    assert (first.code, second.is_waiting) == (ErrorCode.REBALANCE_IN_PROGRESS, True)
    world.join(follower)
    assert second.code == 0


def test_the_protocol_that_most_prefer_is_chosen() -> None:
    world = World()
    both, others = [("range", b"r"), ("sticky", b"s")], [("sticky", b"s"), ("range", b"r")]
    first, _ = world.join_new(protocols=both)
    second, _ = world.join_new(protocols=others)
    world.join(first, protocols=both)
    _, joined = world.join_new(protocols=others)
    world.join(first, protocols=both)
    world.join(second, protocols=others)
    assert joined.response.protocol_name == "sticky"


def test_a_protocol_that_one_member_lacks_is_not_chosen() -> None:
    world = World()
    first, _ = world.join_new(protocols=[("sticky", b"s"), ("range", b"r")])
    _, joined = world.join_new(protocols=[("range", b"r")])
    world.join(first, protocols=[("sticky", b"s"), ("range", b"r")])
    assert joined.response.protocol_name == "range"


def test_a_member_without_a_shared_protocol_is_refused() -> None:
    world = World()
    world.settle(1)
    assert world.join(protocols=[("sticky", b"")]).code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocol_type="connect").code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.state is GroupState.STABLE


def test_a_first_member_without_any_protocol_is_refused() -> None:
    world = World()
    assert world.join(protocols=[]).code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocol_type="").code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (world.state, world.log) == (GroupState.DEAD, [])


def test_session_timeouts_have_bounds() -> None:
    world = World()
    assert world.join(session_timeout_ms=5999).code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.join(session_timeout_ms=1_800_001).code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.join(session_timeout_ms=6000).code == ErrorCode.MEMBER_ID_REQUIRED


def test_an_id_that_was_never_given_out_is_refused() -> None:
    world = World()
    assert world.join("made-up").code == ErrorCode.UNKNOWN_MEMBER_ID
    world.settle(1)
    assert world.join("made-up").code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_nobody_else() -> None:
    world = World(**SMALL)
    members = world.settle(2)
    assert world.join().code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.heartbeat(members[0], 2) == 0


def test_a_full_group_takes_a_member_again_that_left() -> None:
    world = World(**SMALL)
    first, second = world.settle(2)
    world.leave((second, None))
    world.join(first)
    _, joined = world.join_new()
    world.join(first)
    assert joined.code == 0


def test_of_a_group_that_has_become_too_large_the_last_are_shut_out() -> None:
    world = World()
    members = world.settle(3)
    world.config = world.config._replace(max_size=2)
    world.restart()
    answers = [world.join(member) for member in members]
    assert [answer.code for answer in answers] == [0, 0, ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_the_first_rebalance_can_wait_for_more_members() -> None:
    world = World(initial_rebalance_delay_ms=3000)
    leader, first = world.join_new()
    world.advance(2000)
    _, second = world.join_new()
    world.advance(1000)
    assert first.is_waiting  # somebody came: the wait is longer
    world.advance(3000)
    assert first.response.generation_id == second.response.generation_id == 1
    assert len(first.response.members) == 2
    assert second.response.leader == leader


def test_the_first_rebalance_waits_no_longer_than_the_rebalance_timeout() -> None:
    world = World(initial_rebalance_delay_ms=3000)
    _, first = world.join_new(rebalance_timeout_ms=7000)
    for _ in range(7):
        world.join_new(rebalance_timeout_ms=7000)
        world.advance(1000)
    assert first.code == 0


def test_generations_go_on_after_the_group_was_empty() -> None:
    world = World()
    (member,) = world.settle(1)
    world.leave((member, None))
    assert world.state is GroupState.EMPTY
    _, answer = world.join_new()
    assert answer.response.generation_id == 3


def test_an_empty_group_may_begin_with_another_protocol() -> None:
    world = World()
    (member,) = world.settle(1)
    world.leave((member, None))
    _, answer = world.join_new(protocol_type="connect", protocols=[("sessioned", b"")])
    assert (answer.code, answer.response.protocol_type) == (0, "connect")


def test_a_thousand_members_that_join_at_once_settle() -> None:
    world = World(initial_rebalance_delay_ms=3000)
    joins = [world.join_new() for _ in range(1000)]
    world.advance(6000)
    generations = {answer.response.generation_id for _, answer in joins}
    assert generations == {1}
    leader = joins[0][1].response.leader
    syncs = [world.sync(member_id, 1) for member_id, _ in joins if member_id != leader]
    world.sync(leader, 1, {member_id: b"part" for member_id, _ in joins})
    assert {sync.response.assignment for sync in syncs} == {b"part"}
