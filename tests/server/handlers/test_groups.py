"""Requests of classic members as bytes: joins, syncs, heartbeats, leaves, and the lookup of coordinators."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import leave_group
from tests.server.conftest import StartBroker
from tests.server.handlers.group_harness import FIND_COORDINATOR, HEARTBEAT, LEAVE, SYNC, GroupBroker


@pytest.fixture
async def groups(start_broker: StartBroker, nursery: trio.Nursery) -> GroupBroker:
    broker = GroupBroker(await start_broker(offsets_topic_num_partitions=4))
    broker.start(nursery)
    await broker.coordinator.shards.ensure_topic()
    return broker


class Later:
    """Response of a request that waits."""

    def __init__(self, nursery: trio.Nursery, asking: Any) -> None:
        self.value: Any = None
        nursery.start_soon(self._wait, asking)

    @property
    def is_waiting(self) -> bool:
        return self.value is None

    async def _wait(self, asking: Any) -> None:
        self.value = await asking


@pytest.mark.parametrize("version", range(7))
async def test_the_first_find_coordinator_creates_the_topic(
    start_broker: StartBroker, nursery: trio.Nursery, version: int
) -> None:
    broker = GroupBroker(await start_broker(offsets_topic_num_partitions=4))
    broker.start(nursery)
    await wait_all_tasks_blocked()
    asked: dict[str, Any] = {"key": "group"} if version < 4 else {"coordinator_keys": ["group", "other"]}
    answer = await broker.ask(FIND_COORDINATOR, version, **asked)
    found = [answer] if version < 4 else answer.coordinators
    assert [(row.error_code, row.node_id, row.host, row.port) for row in found] == [(0, 1, "127.0.0.1", 9092)] * len(
        found
    )
    assert len(found) == (1 if version < 4 else 2)
    topic = broker.broker.image.topics["__consumer_offsets"]
    assert len(topic.partitions) == 4
    assert topic.configs["cleanup.policy"] == "compact"
    assert (await broker.join(version=3)).error_code == 0


async def test_a_coordinator_is_returned_with_the_clients_listener(groups: GroupBroker) -> None:
    answer = await groups.broker.ask(FIND_COORDINATOR, 3, listener="EXTERNAL", key="group")
    assert (answer.host, answer.port) == ("kbroker.example", 19092)


@pytest.mark.parametrize("key_type", [2, 9])
async def test_only_groups_and_transactions_have_a_coordinator(groups: GroupBroker, key_type: int) -> None:
    answer = await groups.ask(FIND_COORDINATOR, 6, key_type=key_type, coordinator_keys=["x"])
    told = [(coordinator.key, coordinator.error_code, coordinator.node_id) for coordinator in answer.coordinators]
    assert told == [("x", ErrorCode.INVALID_REQUEST, -1)]


async def test_without_the_offsets_topic_a_join_is_refused(start_broker: StartBroker) -> None:
    broker = GroupBroker(await start_broker())
    assert (await broker.join()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", range(10))
async def test_a_member_joins_in_every_version(groups: GroupBroker, version: int) -> None:
    answer = await groups.join(version=version)
    if version >= 4:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        answer = await groups.join(member_id=answer.member_id, version=version)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.leader == answer.member_id == "me-1"
    assert [(member.member_id, member.metadata) for member in answer.members] == [("me-1", b"subscription")]


@pytest.mark.parametrize("version", [0, 6, 7, 9])
async def test_a_refused_join_is_encoded_in_every_version(groups: GroupBroker, version: int) -> None:
    answer = await groups.join(member_id="unknown", version=version)
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "unknown")
    assert answer.protocol_name == (None if version >= 7 else "")
    answer = await groups.join("", version=version)
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(6))
async def test_an_assignment_is_returned_in_every_version(groups: GroupBroker, version: int) -> None:
    joined = await groups.join(version=3)
    answer = await groups.sync(joined.member_id, 1, {joined.member_id: b"mine"}, version=version)
    assert (answer.error_code, answer.assignment) == (0, b"mine")


async def test_from_v5_on_a_sync_needs_its_protocol(groups: GroupBroker) -> None:
    joined = await groups.join(version=3)
    asked = {"group_id": "group", "member_id": joined.member_id, "generation_id": 1}
    assert (await groups.ask(SYNC, 5, **asked)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (await groups.ask(SYNC, 4, **asked)).error_code == ErrorCode.NONE


async def test_members_wait_for_each_other(groups: GroupBroker, nursery: trio.Nursery) -> None:
    leader = await groups.settle()
    joining = Later(nursery, groups.join(version=3))
    await wait_all_tasks_blocked()
    assert joining.is_waiting
    heartbeat = await groups.ask(HEARTBEAT, 4, group_id="group", member_id=leader, generation_id=1)
    assert heartbeat.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = await groups.join(member_id=leader)
    await wait_all_tasks_blocked()
    assert rejoined.generation_id == joining.value.generation_id == 2
    assert len(rejoined.members) == 2
    syncing = Later(nursery, groups.sync(joining.value.member_id, 2))
    await wait_all_tasks_blocked()
    assert syncing.is_waiting
    await groups.sync(leader, 2, {joining.value.member_id: b"yours"})
    await wait_all_tasks_blocked()
    assert syncing.value.assignment == b"yours"


async def test_a_silent_member_is_removed_after_its_session_timeout(
    groups: GroupBroker, autojump_clock: MockClock
) -> None:
    member = await groups.settle()
    for _ in range(3):
        await trio.sleep(9)
        answer = await groups.ask(HEARTBEAT, 4, group_id="group", member_id=member, generation_id=1)
        assert answer.error_code == 0
    await trio.sleep(10.1)
    answer = await groups.ask(HEARTBEAT, 4, group_id="group", member_id=member, generation_id=1)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_member_that_does_not_rejoin_delays_a_rebalance_by_at_most_its_timeout(
    groups: GroupBroker, autojump_clock: MockClock
) -> None:
    await groups.settle()
    began = trio.current_time()
    joined = await groups.join(version=3)
    assert joined.generation_id == 2
    assert trio.current_time() - began < 10.1


@pytest.mark.parametrize("version", range(6))
async def test_a_member_leaves_in_every_version(groups: GroupBroker, version: int) -> None:
    member = await groups.settle()
    asked: dict[str, Any] = {"member_id": member}
    if version >= 3:
        asked = {"members": [leave_group.MemberIdentity(member_id=member_id) for member_id in (member, "unknown")]}
    answer = await groups.ask(LEAVE, version, group_id="group", **asked)
    assert answer.error_code == 0
    if version >= 3:
        assert [(member.member_id, member.error_code) for member in answer.members] == [(member, 0), ("unknown", 25)]
    else:
        again = await groups.ask(LEAVE, version, group_id="group", **asked)
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_during_a_load_heartbeats_succeed_and_other_requests_are_refused(groups: GroupBroker) -> None:
    member = await groups.settle()
    groups.restart()
    heartbeat = await groups.ask(HEARTBEAT, 4, group_id="group", member_id=member, generation_id=1)
    assert heartbeat.error_code == 0
    assert (await groups.join()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await groups.sync(member, 1)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_group_is_loaded_after_a_restart(
    groups: GroupBroker, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    member = await groups.settle()
    groups.restart()
    groups.start(nursery)
    await groups.wait_loaded()
    answer = await groups.ask(HEARTBEAT, 4, group_id="group", member_id=member, generation_id=1)
    assert answer.error_code == 0
    assert (await groups.sync(member, 1)).assignment == b"everything"
    await trio.sleep(10.1)
    answer = await groups.ask(HEARTBEAT, 4, group_id="group", member_id=member, generation_id=1)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_waiting_requests_get_a_response_when_the_broker_stops(
    groups: GroupBroker, nursery: trio.Nursery
) -> None:
    await groups.settle()
    joining = Later(nursery, groups.join(version=3))
    await wait_all_tasks_blocked()
    groups.coordinator.shards.stop()
    await wait_all_tasks_blocked()
    assert joining.value.error_code == ErrorCode.NOT_COORDINATOR


async def test_joining_a_group_needs_a_permission(groups: GroupBroker) -> None:
    groups.broker.allow((AclOperation.READ, "group"))
    assert (await groups.join("group")).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert (await groups.join("other")).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    answer = await groups.ask(FIND_COORDINATOR, 3, key="group")
    assert answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
