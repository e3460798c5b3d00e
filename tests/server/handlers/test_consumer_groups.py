"""Groups of the consumer protocol: heartbeats, descriptions, lists and group configs, as bytes."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.config.broker import BrokerConfig
from kbroker.config.group import consumer_timeouts
from kbroker.controller.changes import EntityConfigsChanged, apply
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.group.result import ConsumerTimeouts
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import consumer_group_heartbeat as messages
from kbroker.protocol.messages import join_group
from tests.server.conftest import StartBroker
from tests.server.handlers.group_harness import DESCRIBE, HEARTBEAT, JOIN, LIST, GroupBroker

BEAT, CONSUMER_DESCRIBE = 68, 69
FIRST: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["orders"], "topic_partitions": []}


@pytest.fixture
async def groups(start_broker: StartBroker, nursery: trio.Nursery) -> GroupBroker:
    broker = GroupBroker(await start_broker(offsets_topic_num_partitions=4))
    broker.start(nursery)
    await broker.coordinator.shards.ensure_topic()
    await broker.broker.controller.create_topics([NewTopic("orders", partitions=3)])
    return broker


async def beat(groups: GroupBroker, epoch: int = 0, member_id: str = "m", version: int = 1, **members: Any) -> Any:
    asked = {**(FIRST if epoch == 0 else {}), **members}
    named = {"group_id": "group", "member_id": member_id, "member_epoch": epoch}
    return await groups.ask(BEAT, version, **{**named, **asked})


def partitions(answer: Any) -> list[int] | None:
    if answer.assignment is None:
        return None
    return sorted(index for topic in answer.assignment.topic_partitions for index in topic.partitions)


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_joins_in_every_version(groups: GroupBroker, version: int) -> None:
    answer = await beat(groups, version=version)
    assert (answer.error_code, answer.member_id, answer.member_epoch, partitions(answer)) == (0, "m", 1, [0, 1, 2])


async def test_before_v1_the_broker_generates_member_ids(groups: GroupBroker) -> None:
    assert (await beat(groups, member_id="", version=0)).member_id
    assert (await beat(groups, member_id="", version=1)).error_code == ErrorCode.INVALID_REQUEST


ONE = [messages.TopicPartitions(topic_id=b"t" * 16, partitions=[1])]


@pytest.mark.parametrize(
    "asked",
    [
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": ONE},
        {"subscribed_topic_names": None},
        {"member_epoch": -2},
        {"member_epoch": -3},
    ],
)
async def test_invalid_requests_are_refused(groups: GroupBroker, asked: dict[str, Any]) -> None:
    answer = await beat(groups, **asked)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message


async def test_errors_have_messages(groups: GroupBroker) -> None:
    answer = await beat(groups, server_assignor="mine")
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        "ServerAssignor mine is not supported. Supported assignors: uniform, range.",
    )
    answer = await beat(groups, subscribed_topic_regex="(")
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "missing" in answer.error_message
    assert (await beat(groups, 3)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_new_topics_and_partitions_reach_the_members(groups: GroupBroker) -> None:
    answer = await beat(groups, subscribed_topic_names=["orders", "later"])
    controller = groups.broker.controller
    await controller.create_topics([NewTopic("later", partitions=2)])
    answer = await beat(groups, answer.member_epoch)
    assert (answer.member_epoch, partitions(answer)) == (2, [0, 0, 1, 1, 2])


async def test_many_topics_are_matched_in_a_background_task(
    groups: GroupBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.group.consumer.consumer_group.NAMES_AT_ONCE", 0)
    monkeypatch.setattr("kbroker.group.consumer.patterns.NAMES_AT_ONCE", 1)
    answer = await beat(groups, subscribed_topic_names=None, subscribed_topic_regex="ord.*")
    assert (answer.member_epoch, partitions(answer)) == (1, [])
    await wait_all_tasks_blocked()
    answer = await beat(groups, 1)
    assert (answer.member_epoch, partitions(answer)) == (2, [0, 1, 2])


@pytest.mark.parametrize("version", [0, 1])
async def test_a_group_is_described_in_every_version(groups: GroupBroker, version: int) -> None:
    await beat(groups)
    asked = {"group_ids": ["group", "none", ""], "include_authorized_operations": True}
    found, missing, unnamed = (await groups.ask(CONSUMER_DESCRIBE, version, **asked)).groups
    assert (found.group_state, found.group_epoch, found.assignor_name) == ("Stable", 1, "uniform")
    (member,) = found.members
    assert (member.member_id, member.member_epoch, member.client_host[:1]) == ("m", 1, "/")
    (part,) = member.target_assignment.topic_partitions
    assert (part.topic_name, part.partitions) == ("orders", [0, 1, 2])
    assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group none not found.")
    assert unnamed.error_code == ErrorCode.INVALID_GROUP_ID


async def test_each_group_type_has_its_own_describe_api(groups: GroupBroker) -> None:
    await beat(groups)
    await groups.join("classic", version=3)
    (wrong,) = (await groups.ask(CONSUMER_DESCRIBE, 1, group_ids=["classic"])).groups
    assert (wrong.error_code, wrong.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group classic is not a consumer group.",
    )
    (wrong,) = (await groups.ask(DESCRIBE, 6, groups=["group"])).groups
    assert (wrong.error_code, wrong.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    listed = (await groups.ask(LIST, 5, types_filter=["Consumer"])).groups
    assert [(row.group_id, row.group_type, row.group_state) for row in listed] == [("group", "consumer", "Stable")]


async def test_a_group_may_have_its_own_timeouts(groups: GroupBroker) -> None:
    broker = BrokerConfig.from_properties({"group.consumer.heartbeat.interval.ms": "3000"})
    groups.coordinator._timeouts = lambda configs: ConsumerTimeouts(*consumer_timeouts(broker, configs))
    assert (await beat(groups)).heartbeat_interval_ms == 3000
    change = EntityConfigsChanged("groups/group", {"consumer.heartbeat.interval.ms": "900"})
    groups.coordinator.on_image(apply(groups.broker.image, [change]), [change])
    assert (await beat(groups, 1)).heartbeat_interval_ms == 900


def test_a_group_without_its_own_timeouts_uses_the_brokers() -> None:
    broker = BrokerConfig.from_properties({"group.consumer.session.timeout.ms": "50000"})
    assert consumer_timeouts(broker, {}) == (50_000, 5_000)
    assert consumer_timeouts(broker, {"consumer.session.timeout.ms": "60000"}) == (60_000, 5_000)


async def test_groups_and_topics_need_a_permission(groups: GroupBroker) -> None:
    await beat(groups)
    groups.broker.allow((AclOperation.READ, "group"))
    assert (await beat(groups, 1, subscribed_topic_names=["orders"])).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert partitions(await beat(groups, member_id="n", subscribed_topic_regex=".*", subscribed_topic_names=None)) == []
    groups.broker.allow((AclOperation.DESCRIBE, "group"))
    assert (await beat(groups, 1)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    (found,) = (await groups.ask(CONSUMER_DESCRIBE, 1, group_ids=["group"])).groups
    assert (found.error_code, found.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])


async def test_the_consumer_protocol_can_be_disabled(start_broker: StartBroker, nursery: trio.Nursery) -> None:
    broker = GroupBroker(await start_broker(group_coordinator_rebalance_protocols="classic"))
    broker.start(nursery)
    await broker.coordinator.shards.ensure_topic()
    assert (await beat(broker)).error_code == ErrorCode.UNSUPPORTED_VERSION
    (group,) = (await broker.ask(CONSUMER_DESCRIBE, 1, group_ids=["group"])).groups
    assert group.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (await broker.join(version=3)).error_code == 0


async def test_an_empty_group_id_is_refused(groups: GroupBroker) -> None:
    protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"")
    asked = {"group_id": "", "member_id": "", "protocol_type": "consumer", "session_timeout_ms": 10_000}
    answer = await groups.ask(JOIN, 9, **asked, rebalance_timeout_ms=1000, protocols=[protocol])
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID


async def test_metadata_too_large_for_the_log_is_refused_and_other_groups_work(groups: GroupBroker) -> None:
    other = await groups.join("other", version=3)
    huge = [join_group.JoinGroupRequestProtocol(name="range", metadata=bytes(2_000_000))]
    member = await groups.join("group", version=3, protocols=huge)
    synced = await groups.sync(member.member_id, member.generation_id, {member.member_id: b"x"})
    assert synced.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    named: dict[str, Any] = {
        "group_id": "another",
        "subscribed_topic_names": [f"{index}" * 10_000 for index in range(100, 200)],
    }
    assert (await beat(groups, **named)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    (gone,) = (await groups.ask(CONSUMER_DESCRIBE, 1, group_ids=["another"])).groups
    assert gone.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert partitions(await beat(groups, group_id="another")) == [0, 1, 2]
    alive = {"group_id": "other", "member_id": other.member_id, "generation_id": other.generation_id}
    assert (await groups.ask(HEARTBEAT, 4, **alive)).error_code == 0
