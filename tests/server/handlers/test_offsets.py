"""Committed offsets, and the group APIs of admin clients, as bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.coordinator.pending_response import PendingResponse
from kbroker.group.records import offset_record
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_commit, offset_delete, offset_fetch
from kbroker.protocol.record_batch import iter_headers
from tests.log.batches import read_bytes
from tests.server.conftest import StartBroker
from tests.server.handlers.group_harness import (
    DELETE,
    DESCRIBE,
    LIST,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    GroupBroker,
)


@pytest.fixture
async def groups(start_broker: StartBroker, nursery: trio.Nursery) -> GroupBroker:
    broker = GroupBroker(await start_broker(offsets_topic_num_partitions=4))
    broker.start(nursery)
    await broker.coordinator.shards.ensure_topic()
    await broker.broker.create_topic("topic", 3)
    return broker


async def fetch(groups: GroupBroker, version: int, topics: Any = (("topic", [0, 1]),), group: str = "group") -> Any:
    """Returns (error, {(topic, partition): (offset, metadata, error)}) of one group."""
    if version < 8:
        asked = None
        if topics is not None:
            asked = [
                offset_fetch.OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in topics
            ]
        answer = await groups.ask(OFFSET_FETCH, version, group_id=group, topics=asked)
        code = answer.error_code if version >= 2 else 0
    else:
        asked = None
        if topics is not None:
            asked = [
                offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics
            ]
        one = offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=asked)
        response = await groups.ask(OFFSET_FETCH, version, groups=[one])
        (answer,) = response.groups
        code = answer.error_code
    found = {
        (topic.name, partition.partition_index): (partition.committed_offset, partition.metadata, partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
    }
    return code, found


@pytest.mark.parametrize("version", range(10))
async def test_an_offset_is_committed_in_every_version(groups: GroupBroker, version: int) -> None:
    assert await groups.commit(42, version=version) == 0
    assert await fetch(groups, 9) == (0, {("topic", 0): (42, "note", 0), ("topic", 1): (-1, "", 0)})


@pytest.mark.parametrize("version", range(10))
async def test_an_offset_is_fetched_in_every_version(groups: GroupBroker, version: int) -> None:
    await groups.commit(42)
    assert await fetch(groups, version) == (0, {("topic", 0): (42, "note", 0), ("topic", 1): (-1, "", 0)})


@pytest.mark.parametrize("version", [2, 7, 8, 9])
async def test_null_topics_mean_all_committed_offsets(groups: GroupBroker, version: int) -> None:
    await groups.commit(42, partition=2)
    assert await fetch(groups, version, None) == (0, {("topic", 2): (42, "note", 0)})


async def test_a_member_commits_with_its_generation(groups: GroupBroker) -> None:
    member = await groups.settle()
    assert await groups.commit(1, member_id=member, generation_id_or_member_epoch=1) == 0
    code = await groups.commit(2, member_id=member, generation_id_or_member_epoch=7)
    assert code == ErrorCode.ILLEGAL_GENERATION
    assert await groups.commit(2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await fetch(groups, 9))[1]["topic", 0][0] == 1


async def test_partitions_that_do_not_exist_are_refused_and_the_others_kept(groups: GroupBroker) -> None:
    topics = [
        offset_commit.OffsetCommitRequestTopic(
            name=name,
            partitions=[
                offset_commit.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=5, committed_metadata="x" * (5000 if index == 1 else 1)
                )
                for index in indexes
            ],
        )
        for name, indexes in (("topic", [0, 1, 3]), ("absent", [0]))
    ]
    answer = await groups.ask(OFFSET_COMMIT, 9, group_id="group", topics=topics)
    codes = {
        (topic.name, partition.partition_index): partition.error_code
        for topic in answer.topics
        for partition in topic.partitions
    }
    assert codes == {
        ("topic", 0): 0,
        ("topic", 1): ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ("topic", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert await fetch(groups, 9, None) == (0, {("topic", 0): (5, "x", 0)})


async def test_commits_that_arrive_together_are_written_as_one_batch(groups: GroupBroker) -> None:
    async with trio.open_nursery() as nursery:
        for index in range(3):
            nursery.start_soon(partial(groups.commit, 9, partition=index))
    partition = groups.coordinator.shards.partition_for("group")
    log = groups.broker.log("__consumer_offsets", partition)
    batches = [header.record_count for _, header in iter_headers(read_bytes(log, 0))]
    assert batches == [3]


async def test_a_fetch_sees_an_earlier_commit_of_the_same_run(groups: GroupBroker) -> None:
    told: list[Any] = []
    record = offset_record("group", "topic", 0, (77, -1, "", 0, -1))
    groups.coordinator.shards.find("group").enqueue([record], PendingResponse(told.append, told.append), "done")
    assert (await fetch(groups, 9))[1]["topic", 0][0] == 77
    assert told == ["done"]


async def test_many_groups_are_fetched_at_once(groups: GroupBroker) -> None:
    for number in range(5):
        await groups.commit(number, group_id=f"group-{number}")
    asked = [offset_fetch.OffsetFetchRequestGroup(group_id=f"group-{number}", topics=None) for number in range(6)]
    answer = await groups.ask(OFFSET_FETCH, 8, groups=asked)
    found = {
        group.group_id: [topic.partitions[0].committed_offset for topic in group.topics] for group in answer.groups
    }
    assert found == {f"group-{number}": [number] for number in range(5)} | {"group-5": []}


@pytest.mark.parametrize("version", [1, 2, 8])
async def test_during_a_load_an_offset_fetch_is_refused(groups: GroupBroker, version: int) -> None:
    groups.restart()
    code, found = await fetch(groups, version)
    codes = {row[2] for row in found.values()} if version < 2 else {code}
    assert codes == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert await groups.commit(1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_offsets_are_loaded_after_a_restart(groups: GroupBroker, nursery: trio.Nursery) -> None:
    await groups.commit(42)
    groups.restart()
    groups.start(nursery)
    await groups.wait_loaded()
    assert (await fetch(groups, 9))[1]["topic", 0] == (42, "note", 0)


async def test_offsets_are_deleted_with_their_topic(groups: GroupBroker) -> None:
    await groups.broker.create_topic("other")
    await groups.commit(1)
    await groups.commit(1, topic="other")
    await groups.broker.controller.delete_topics(["other"])
    await wait_all_tasks_blocked()
    assert (await fetch(groups, 9, None))[1].keys() == {("topic", 0)}


async def test_expired_offsets_are_deleted(groups: GroupBroker, autojump_clock: MockClock) -> None:
    await groups.commit(1, version=3, retention_time_ms=0)
    await groups.commit(2, partition=1)
    await trio.sleep(601)
    assert (await fetch(groups, 9, None))[1].keys() == {("topic", 1)}


async def test_offsets_are_deleted(groups: GroupBroker) -> None:
    await groups.commit(1)
    topics = [
        offset_delete.OffsetDeleteRequestTopic(
            name=name, partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
        )
        for name in ("topic", "absent")
    ]
    answer = await groups.ask(OFFSET_DELETE, 0, group_id="group", topics=topics)
    codes = [topic.partitions[0].error_code for topic in answer.topics]
    assert (answer.error_code, codes) == (0, [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    assert (await fetch(groups, 9, None))[1] == {}
    answer = await groups.ask(OFFSET_DELETE, 0, group_id="unknown", topics=topics)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed_in_every_version(groups: GroupBroker, version: int) -> None:
    await groups.settle()
    await groups.commit(1, group_id="simple")
    answer = await groups.ask(LIST, version)
    listed = {group.group_id: group for group in answer.groups}
    assert {name: group.protocol_type for name, group in listed.items()} == {"group": "consumer", "simple": ""}
    if version >= 4:
        assert {name: group.group_state for name, group in listed.items()} == {"group": "Stable", "simple": "Empty"}
    if version >= 5:
        assert {row.group_type for row in listed.values()} == {"classic"}


async def test_groups_are_listed_by_state_and_type(groups: GroupBroker) -> None:
    await groups.settle()
    await groups.commit(1, group_id="simple")
    answer = await groups.ask(LIST, 5, states_filter=["stable"], types_filter=["Classic"])
    assert [group.group_id for group in answer.groups] == ["group"]
    answer = await groups.ask(LIST, 5, types_filter=["consumer"])
    assert answer.groups == []


@pytest.mark.parametrize("version", range(7))
async def test_groups_are_described_in_every_version(groups: GroupBroker, version: int) -> None:
    member = await groups.settle()
    answer = await groups.ask(DESCRIBE, version, groups=["group", "unknown"])
    found, absent = answer.groups
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    (described,) = found.members
    assert (described.member_id, described.client_id, described.client_host) == (member, "me", "/192.0.2.7")
    assert (described.member_metadata, described.member_assignment) == (b"subscription", b"everything")
    assert absent.group_state == "Dead"
    assert absent.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)


async def test_authorized_operations_are_returned_on_request(groups: GroupBroker) -> None:
    answer = await groups.ask(DESCRIBE, 5, groups=["group"], include_authorized_operations=True)
    assert answer.groups[0].authorized_operations == sum(1 << operation for operation in (3, 6, 8, 10, 11))


@pytest.mark.parametrize("version", range(3))
async def test_empty_groups_are_deleted(groups: GroupBroker, version: int) -> None:
    await groups.settle()
    await groups.commit(1, group_id="simple")
    answer = await groups.ask(DELETE, version, groups_names=["group", "simple", "unknown"])
    assert {result.group_id: result.error_code for result in answer.results} == {
        "group": ErrorCode.NON_EMPTY_GROUP,
        "simple": 0,
        "unknown": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert [group.group_id for group in (await groups.ask(LIST, 5)).groups] == ["group"]


async def test_a_commit_on_a_full_disk_is_refused(groups: GroupBroker) -> None:
    for gate in groups.broker.log_dirs.gates.values():
        gate.is_closed = True
    assert await groups.commit(1) == ErrorCode.NOT_COORDINATOR
    for gate in groups.broker.log_dirs.gates.values():
        gate.is_closed = False
    assert (await fetch(groups, 9, None))[1] == {}


async def test_offsets_need_a_permission(groups: GroupBroker) -> None:
    groups.broker.allow((AclOperation.READ, "group"), (AclOperation.DESCRIBE, "group"))
    assert await groups.commit(1) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert await groups.commit(1, group_id="other") == ErrorCode.GROUP_AUTHORIZATION_FAILED
    _, found = await fetch(groups, 9)
    assert {row[2] for row in found.values()} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert (await fetch(groups, 9, group="other"))[0] == ErrorCode.GROUP_AUTHORIZATION_FAILED
