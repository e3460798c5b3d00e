"""Groups over the wire: whichever protocol they speak, and however old the broker is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from kbroker.client.admin.groups import delete_group, describe_group, list_groups
from kbroker.client.cluster import Cluster
from kbroker.client.failures import BrokerRefusal, NoSuchGroup
from kbroker.client.offsets import GroupOffset, commit_group_offsets, group_offsets
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import (
    consumer_group_describe,
    delete_groups,
    describe_groups,
    find_coordinator,
    offset_commit,
    offset_fetch,
)
from kbroker.protocol.messages import list_groups as list_groups_messages
from tests.client.toy_broker import ADDRESS, ToyBroker, metadata_of

# Version 1, topic "a" with partition 3, no user data.
ASSIGNMENT = bytes.fromhex("0001 00000001 0001 61 00000001 00000003 ffffffff")


@pytest.fixture
async def broker() -> AsyncIterator[ToyBroker]:
    async with trio.open_nursery() as nursery:
        coordinator = {"node_id": 1, "host": ADDRESS.host, "port": ADDRESS.port}
        yield ToyBroker(
            nursery,
            {
                "Metadata": lambda _: metadata_of({"a": 1}),
                "FindCoordinator": lambda _: find_coordinator.RESPONSE(
                    coordinators=[find_coordinator.Coordinator(key="g", **coordinator)]
                ),
                "ListGroups": lambda _: list_groups_messages.RESPONSE(
                    groups=[
                        list_groups_messages.ListedGroup(
                            group_id=name, protocol_type="consumer", group_state=state, group_type=kind
                        )
                        for name, state, kind in (("b", "Stable", "consumer"), ("a", "Empty", "classic"))
                    ]
                ),
            },
        )
        nursery.cancel_scope.cancel()


@pytest.fixture
async def cluster(broker: ToyBroker) -> AsyncIterator[Cluster]:
    cluster = Cluster([ADDRESS], connect=broker.connect)
    await cluster.refresh([])
    yield cluster
    await cluster.aclose()


def classic(**members: Any) -> Any:
    given = {"group_id": "g", "group_state": "Stable", "protocol_type": "consumer", "protocol_data": "range"}
    return describe_groups.RESPONSE(groups=[describe_groups.DescribedGroup(**given | members)])


def member(**members: Any) -> Any:
    return describe_groups.DescribedGroupMember(
        member_id="m", client_id="c", client_host="/h", member_metadata=b"", **members
    )


def no_consumer_group(_request: Any) -> Any:
    absent = consumer_group_describe.DescribedGroup(
        group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND, group_state="Dead"
    )
    return consumer_group_describe.RESPONSE(groups=[absent])


async def test_groups_are_sorted_and_filtered_whatever_the_case(cluster: Cluster) -> None:
    assert [each.group_id for each in await list_groups(cluster)] == ["a", "b"]
    assert [each.group_id for each in await list_groups(cluster, states=["STABLE"])] == ["b"]
    assert [each.group_id for each in await list_groups(cluster, types=["classic"])] == ["a"]
    assert await list_groups(cluster, states=["Stable"], types=["classic"]) == []


async def test_a_consumer_group_is_described(broker: ToyBroker, cluster: Cluster) -> None:
    partitions = consumer_group_describe.TopicPartitions(topic_id=bytes(16), topic_name="a", partitions=[2, 1])
    found = consumer_group_describe.DescribedGroup(
        group_id="g",
        group_state="Reconciling",
        group_epoch=7,
        assignor_name="uniform",
        members=[
            consumer_group_describe.Member(
                member_id="m",
                client_id="c",
                client_host="/h",
                assignment=consumer_group_describe.Assignment(topic_partitions=[partitions]),
                target_assignment=consumer_group_describe.Assignment(),
            )
        ],
    )
    broker.answers["ConsumerGroupDescribe"] = lambda _: consumer_group_describe.RESPONSE(groups=[found])
    await broker.drop_connections()
    described = await describe_group(cluster, "g")
    assert (described.group_type, described.state, described.assignor) == ("consumer", "Reconciling", "uniform")
    assert (described.epoch, described.coordinator_id, described.coordinator) == (7, 1, ADDRESS)
    assert [each.assignment for each in described.members] == [{"a": (1, 2)}]


async def test_a_classic_group_is_described_after_it_was_no_consumer_group(broker: ToyBroker, cluster: Cluster) -> None:
    broker.answers["ConsumerGroupDescribe"] = no_consumer_group
    broker.answers["DescribeGroups"] = lambda _: classic(
        members=[member(member_assignment=ASSIGNMENT), member(member_assignment=b""), member(member_assignment=b"\0")]
    )
    await broker.drop_connections()
    described = await describe_group(cluster, "g")
    assert (described.group_type, described.assignor, described.epoch) == ("classic", "range", None)
    assert [each.assignment for each in described.members] == [{"a": (3,)}, {}, None]


async def test_only_consumers_assignments_are_read(broker: ToyBroker, cluster: Cluster) -> None:
    broker.answers["DescribeGroups"] = lambda _: classic(
        protocol_type="connect", members=[member(member_assignment=ASSIGNMENT)]
    )
    await broker.drop_connections()
    assert [each.assignment for each in (await describe_group(cluster, "g")).members] == [None]


async def test_a_group_of_another_kind_is_told_from_none(broker: ToyBroker, cluster: Cluster) -> None:
    broker.answers["DescribeGroups"] = lambda _: classic(group_state="Dead", error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    listed = list_groups_messages.ListedGroup(
        group_id="g", protocol_type="share", group_state="Stable", group_type="share"
    )
    broker.answers["ListGroups"] = lambda _: list_groups_messages.RESPONSE(groups=[listed])
    await broker.drop_connections()
    with pytest.raises(UserError, match="is a share group"):
        await describe_group(cluster, "g")


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND])
async def test_a_dead_group_is_not_there(broker: ToyBroker, cluster: Cluster, code: ErrorCode) -> None:
    broker.answers["DescribeGroups"] = lambda _: classic(group_state="Dead", error_code=code)
    await broker.drop_connections()
    with pytest.raises(NoSuchGroup):
        await describe_group(cluster, "g")


async def test_a_coordinator_that_is_loading_is_asked_again(
    broker: ToyBroker, cluster: Cluster, autojump_clock: trio.testing.MockClock
) -> None:
    codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.NONE]
    broker.answers["DeleteGroups"] = lambda _: delete_groups.RESPONSE(
        results=[delete_groups.DeletableGroupResult(group_id="g", error_code=codes.pop(0))]
    )
    await broker.drop_connections()
    await delete_group(cluster, "g")
    assert (codes, broker.asked["DeleteGroups"]) == ([], 3)


async def test_a_group_with_members_is_not_deleted(broker: ToyBroker, cluster: Cluster) -> None:
    result = delete_groups.DeletableGroupResult(group_id="g", error_code=ErrorCode.NON_EMPTY_GROUP)
    broker.answers["DeleteGroups"] = lambda _: delete_groups.RESPONSE(results=[result])
    await broker.drop_connections()
    with pytest.raises(BrokerRefusal, match="stop them first"):
        await delete_group(cluster, "g")


async def test_all_offsets_are_asked_for_and_committed_at_once(broker: ToyBroker, cluster: Cluster) -> None:
    asked: list[Any] = []

    def fetch(request: Any) -> Any:
        asked.append(request.groups[0].topics)
        partitions = [
            offset_fetch.OffsetFetchResponsePartitions(partition_index=0, committed_offset=7, metadata="m"),
            offset_fetch.OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1, metadata=None),
        ]
        topic = offset_fetch.OffsetFetchResponseTopics(name="a", partitions=partitions)
        return offset_fetch.RESPONSE(groups=[offset_fetch.OffsetFetchResponseGroup(group_id="g", topics=[topic])])

    def commit(request: Any) -> Any:
        asked.append([(each.name, [one.committed_offset for one in each.partitions]) for each in request.topics])
        return offset_commit.RESPONSE(
            topics=[
                offset_commit.OffsetCommitResponseTopic(
                    name=each.name,
                    partitions=[
                        offset_commit.OffsetCommitResponsePartition(partition_index=one.partition_index)
                        for one in each.partitions
                    ],
                )
                for each in request.topics
            ]
        )

    broker.answers |= {"OffsetFetch": fetch, "OffsetCommit": commit}
    await broker.drop_connections()
    assert await group_offsets(cluster, "g") == {"a": {0: GroupOffset(7, "m")}}
    await commit_group_offsets(cluster, "g", {"a": {0: GroupOffset(1), 1: GroupOffset(2)}, "b": {0: GroupOffset(3)}})
    assert asked == [None, [("a", [1, 2]), ("b", [3])]]
