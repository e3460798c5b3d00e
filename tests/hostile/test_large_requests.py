"""Requests with very many elements: other tasks get their turn meanwhile, duplicates are answered once.

`canary.py` counts these turns.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from kbroker.config.broker import BrokerConfig
from kbroker.config.topic import TOPIC_CONFIGS
from kbroker.controller.changes import EntityConfigsChanged
from kbroker.controller.image import Image
from kbroker.errors import Refusal
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.messages import (
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_records,
    describe_configs,
    describe_producers,
    describe_topic_partitions,
    fetch,
    incremental_alter_configs,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    txn_offset_commit,
    update_metadata,
    write_txn_markers,
)
from kbroker.protocol.registry import api
from kbroker.server.context import Context
from kbroker.server.handlers import alter_replica_log_dirs as alter_replica_log_dirs_handler
from kbroker.server.handlers import update_metadata as update_metadata_handler
from kbroker.server.handlers.describe_configs import MAX_CONFIGS
from kbroker.server.handlers.fetch import MANY_TARGETS
from kbroker.server.quotas.request_quotas import Quotas
from kbroker.server.requests import large_messages
from kbroker.server.requests.fetch_session import FetchSessions
from kbroker.server.requests.large_messages import MAX_ELEMENTS_AT_ONCE
from kbroker.server.requests.request import Request
from kbroker.server.requests.thread_work import MAX_THREADS, ThreadWork
from kbroker.server.topics.topic_creation import BURST, PARTITIONS_PER_SECOND
from kbroker.server.wire.deadlines import Deadlines
from kbroker.server.wire.request_slot import RequestSlot
from kbroker.time_slice import turn_of_loop
from tests.hostile.canary import (
    FEW_TURNS,
    QUARTER_OF_A_SLICE,
    CountedWork,
    WorkOnTheLoop,
    ask_beside_canary,
    turns_beside,
)
from tests.log.batches import make_batch
from tests.server.conftest import StartBroker, broker, start_broker
from tests.server.handlers.group_harness import GroupBroker
from tests.server.handlers.harness import HandlerBroker, StillClock

__all__ = ["broker", "start_broker"]  # fixtures

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
UPDATE_METADATA = 6
OFFSET_COMMIT = 8
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
DESCRIBE_GROUPS = 15
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DELETE_RECORDS = 21
OFFSET_FOR_LEADER_EPOCH = 23
WRITE_TXN_MARKERS = 27
TXN_OFFSET_COMMIT = 28
DESCRIBE_CONFIGS = 32
ALTER_CONFIGS = 33
ALTER_REPLICA_LOG_DIRS = 34
CREATE_PARTITIONS = 37
DELETE_GROUPS = 42
DESCRIBE_CLIENT_QUOTAS = 48
INCREMENTAL_ALTER_CONFIGS = 44
ALTER_PARTITION_REASSIGNMENTS = 45
DESCRIBE_PRODUCERS = 61
DESCRIBE_TRANSACTIONS = 65
CONSUMER_GROUP_DESCRIBE = 69
DESCRIBE_TOPIC_PARTITIONS = 75

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
TOO_MANY_OFFSETS = ErrorCode.INVALID_COMMIT_OFFSET_SIZE


# DescribeConfigs


def config_resources(kind: int, *names: str, keys: list[str] | None = None) -> list[Any]:
    return [
        describe_configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for name in names
    ]


async def test_a_resource_that_is_described_many_times_gets_one_result(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    resources = config_resources(2, *["orders"] * 20_000)
    response, turns = await ask_beside_canary(broker, DESCRIBE_CONFIGS, 4, resources=resources)
    (result,) = response.results
    assert len(result.configs) == sum(not key.is_retired for key in TOPIC_CONFIGS.values())
    assert turns > 4_000  # 20,000 elements, four or five in a slice


async def test_a_repeated_resource_has_the_configs_of_all_its_lists(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    await broker.create_topic("b")
    some = [
        *config_resources(2, "orders", keys=["retention.ms"]),
        *config_resources(2, "b", keys=["retention.ms"]),
        *config_resources(2, "orders", keys=["retention.ms", "segment.bytes"]),
    ]
    response = await broker.ask(DESCRIBE_CONFIGS, 4, resources=some)
    described = [(result.resource_name, [config.name for config in result.configs]) for result in response.results]
    assert [(name, sorted(configs)) for name, configs in described] == [
        ("orders", ["retention.ms", "segment.bytes"]),
        ("b", ["retention.ms"]),
    ]
    response = await broker.ask(
        DESCRIBE_CONFIGS,
        4,
        resources=[*some, *config_resources(2, "orders"), *config_resources(2, "orders", keys=["x"])],
    )
    assert [len(result.configs) > 20 for result in response.results] == [True, False]


async def test_many_resources_are_described_in_slices(broker: HandlerBroker) -> None:
    names = [f"group-{number}" for number in range(400)]
    response, turns = await ask_beside_canary(broker, DESCRIBE_CONFIGS, 4, resources=config_resources(32, *names))
    assert [result.resource_name for result in response.results] == names
    assert all(result.error_code == 0 and result.configs for result in response.results)
    assert turns > 100


async def test_few_resources_are_described_at_once(broker: HandlerBroker) -> None:
    resources = config_resources(32, "a", "b")
    _, turns = await ask_beside_canary(broker, DESCRIBE_CONFIGS, 4, resources=resources)
    assert turns <= FEW_TURNS


@pytest.mark.parametrize("kind", [4, 32])
async def test_a_response_has_a_bounded_number_of_configs(
    broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    assert MAX_CONFIGS == 100_000
    monkeypatch.setattr("kbroker.server.handlers.describe_configs.MAX_CONFIGS", 500)
    await broker.create_topic("orders")
    names = ["0" * zeros + "1" for zeros in range(300)]  # one broker, as many groups as names
    resources = [*config_resources(kind, *names), *config_resources(2, "orders")]
    response = await broker.ask(DESCRIBE_CONFIGS, 4, resources=resources)
    *results, topic = response.results
    codes = [result.error_code for result in results]
    described = codes.index(ErrorCode.INVALID_REQUEST)
    assert set(codes[described:]) == {ErrorCode.INVALID_REQUEST}
    assert 500 <= sum(len(result.configs) for result in results) < 1000
    assert topic.error_code == 0, "topics are bounded by what exists"


# Metadata


def metadata_topics(*names: str) -> list[Any]:
    return [metadata.MetadataRequestTopic(name=name) for name in names]


@pytest.mark.parametrize("may_create", [False, True])
async def test_many_topics_are_looked_up_in_slices(start_broker: StartBroker, may_create: bool) -> None:
    broker = await start_broker(auto_create_topics_enable=True)
    await broker.create_topic("orders")
    names = [f"topic/{number}" for number in range(4_000)]  # invalid names: nothing is created
    response, turns = await ask_beside_canary(
        broker, METADATA, 12, topics=metadata_topics(*names, "orders"), allow_auto_topic_creation=may_create
    )
    assert [topic.name for topic in response.topics] == ["orders", *names]
    assert {topic.error_code for topic in response.topics[1:]} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert turns > 4_000 * (3 if may_create else 2) / 5


async def test_many_topic_ids_are_looked_up_in_slices(broker: HandlerBroker) -> None:
    ids = [number.to_bytes(16, "big") for number in range(1, 2_001)]
    topics = [metadata.MetadataRequestTopic(topic_id=topic_id) for topic_id in ids]
    response, turns = await ask_beside_canary(broker, METADATA, 12, topics=topics)
    assert [topic.topic_id for topic in response.topics] == ids
    assert {topic.error_code for topic in response.topics} == {ErrorCode.UNKNOWN_TOPIC_ID}
    assert turns > 2 * 2_000 / 5


async def test_a_topic_that_is_named_many_times_is_described_once(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    response, turns = await ask_beside_canary(broker, METADATA, 12, topics=metadata_topics(*["orders"] * 4_000))
    assert [topic.name for topic in response.topics] == ["orders"]
    assert turns > 4_000 / 5


async def test_slices_of_several_large_requests_take_turns(broker: HandlerBroker) -> None:
    topics = metadata_topics(*[f"topic-{number}" for number in range(1_500)])

    async def ask() -> None:
        await broker.ask(METADATA, 12, topics=topics, allow_auto_topic_creation=False)

    async def ask_four_times() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(ask)

    # A round of the loop has one slice, not one of each request: four requests take four times as many rounds.
    alone = await turns_beside(broker, ask)
    assert await turns_beside(broker, ask_four_times) > 3 * alone


async def test_automatic_creation_has_a_rate(start_broker: StartBroker) -> None:
    broker = await start_broker(auto_create_topics_enable=True, num_partitions=50)

    async def ask(prefix: str) -> list[int]:
        names = [f"{prefix}-{number}" for number in range(30)]
        response = await broker.ask(METADATA, 12, topics=metadata_topics(*names), allow_auto_topic_creation=True)
        return [topic.error_code for topic in sorted(response.topics, key=lambda topic: names.index(topic.name))]

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    at_once = BURST // 50
    assert await ask("a") == [0] * at_once + [unknown] * (30 - at_once)
    assert await ask("b") == [unknown] * 30
    broker.clock.seconds += 50 / PARTITIONS_PER_SECOND
    assert await ask("b") == [0] + [unknown] * 29
    broker.clock.seconds += 3600
    assert await ask("c") == [0] * at_once + [unknown] * (30 - at_once)


async def test_topics_that_cannot_be_created_do_not_count_against_the_rate(start_broker: StartBroker) -> None:
    broker = await start_broker(auto_create_topics_enable=True, default_replication_factor=3)
    names = [f"topic-{number}" for number in range(BURST)]
    response = await broker.ask(METADATA, 12, topics=metadata_topics(*names), allow_auto_topic_creation=True)
    assert {topic.error_code for topic in response.topics} == {ErrorCode.INVALID_REPLICATION_FACTOR}
    assert broker.context.auto_creation.take(BURST)
    assert not broker.context.auto_creation.take(1)


# CreateTopics and CreatePartitions

TOO_MANY = "Excessively large number of partitions per request."


def creatable_topics(count: int, partitions: int) -> list[Any]:
    return [
        create_topics.CreatableTopic(name=f"topic-{number}", num_partitions=partitions, replication_factor=1)
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "partitions"), [(10_001, 1), (5_001, -1), (3, 5_000)])
async def test_new_partitions_of_one_request_are_bounded_together(
    start_broker: StartBroker, count: int, partitions: int
) -> None:
    broker = await start_broker(num_partitions=2)
    response = await broker.ask(CREATE_TOPICS, 7, topics=creatable_topics(count, partitions), validate_only=False)
    assert len(response.topics) == count
    assert {(topic.error_code, topic.error_message) for topic in response.topics} == {
        (ErrorCode.POLICY_VIOLATION, TOO_MANY)
    }
    assert not broker.image.topics


async def test_many_new_topics_are_validated_in_slices(broker: HandlerBroker) -> None:
    topics = creatable_topics(1_000, 1)
    response, turns = await ask_beside_canary(broker, CREATE_TOPICS, 7, topics=topics, validate_only=True)
    assert [topic.name for topic in response.topics] == [topic.name for topic in topics]
    assert all(topic.error_code == 0 and len(topic.configs) > 20 for topic in response.topics)
    assert turns > 3 * 1_000 / 5  # three passes over the topics


async def test_topics_without_partitions_are_refused_in_slices(broker: HandlerBroker) -> None:
    response, turns = await ask_beside_canary(broker, CREATE_TOPICS, 7, topics=creatable_topics(12_000, 0))
    assert {topic.error_code for topic in response.topics} == {ErrorCode.INVALID_PARTITIONS}
    assert turns > 3 * 12_000 / 5


async def test_added_partitions_of_one_request_are_bounded_together(broker: HandlerBroker) -> None:
    for name in ("a", "b", "c"):
        await broker.create_topic(name)
    topics = [
        create_partitions.CreatePartitionsTopic(name=name, count=count, assignments=None)
        for name, count in (("a", 9_000), ("b", 2_000), ("c", 1_000))
    ]
    response = await broker.ask(CREATE_PARTITIONS, 3, topics=topics, validate_only=True)
    assert [(result.name, result.error_code) for result in response.results] == [
        ("a", 0),
        ("b", ErrorCode.POLICY_VIOLATION),
        ("c", 0),
    ]
    assert response.results[1].error_message == TOO_MANY


async def test_partitions_of_very_many_topics_are_refused_together(broker: HandlerBroker) -> None:
    topics = [create_partitions.CreatePartitionsTopic(name=f"t{n}", count=2, assignments=None) for n in range(10_001)]
    response = await broker.ask(CREATE_PARTITIONS, 3, topics=topics, validate_only=False)
    assert len(response.results) == 10_001
    assert {(result.error_code, result.error_message) for result in response.results} == {
        (ErrorCode.POLICY_VIOLATION, TOO_MANY)
    }


async def test_an_assignment_of_very_many_partitions_is_refused(broker: HandlerBroker) -> None:
    (topic,) = creatable_topics(1, -1)
    topic.assignments = [create_topics.CreatableReplicaAssignment(partition_index=n) for n in range(10_001)]
    response = await broker.ask(CREATE_TOPICS, 7, topics=[topic], validate_only=False)
    assert [(result.error_code, result.error_message) for result in response.topics] == [
        (ErrorCode.POLICY_VIOLATION, TOO_MANY)
    ]


# AlterConfigs


def altered_resource(name: str, config_count: int, *, is_incremental: bool) -> Any:
    if is_incremental:
        return incremental_alter_configs.AlterConfigsResource(
            resource_type=4,
            resource_name=name,
            configs=[
                incremental_alter_configs.AlterableConfig(name=f"custom.{number}", config_operation=0, value="x")
                for number in range(config_count)
            ],
        )
    return alter_configs.AlterConfigsResource(
        resource_type=4,
        resource_name=name,
        configs=[alter_configs.AlterableConfig(name=f"custom.{number}", value="x") for number in range(config_count)],
    )


@pytest.mark.parametrize("key", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
async def test_config_changes_of_one_request_are_bounded_together(broker: HandlerBroker, key: int) -> None:
    is_incremental = key == INCREMENTAL_ALTER_CONFIGS
    resources = [altered_resource(name, 5_001, is_incremental=is_incremental) for name in ("", "1")]
    response = await broker.ask(key, 1, resources=resources, validate_only=False)
    assert [(result.resource_name, result.error_code, result.error_message) for result in response.responses] == [
        (name, ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.") for name in ("", "1")
    ]
    assert not broker.image.entity_configs


@pytest.mark.parametrize("key", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
async def test_resources_without_changes_are_bounded_too(broker: HandlerBroker, key: int) -> None:
    is_incremental = key == INCREMENTAL_ALTER_CONFIGS
    resources = [altered_resource(f"{number}", 0, is_incremental=is_incremental) for number in range(10_001)]
    response, turns = await ask_beside_canary(broker, key, 1, resources=resources, validate_only=False)
    assert [result.error_code for result in response.responses] == [ErrorCode.POLICY_VIOLATION] * 10_001
    assert turns > 3 * 10_001 / 5  # they are counted, refused, and put into the response


async def test_a_resource_that_is_altered_many_times_is_refused_in_slices(broker: HandlerBroker) -> None:
    resources = [altered_resource("1", 0, is_incremental=True)] * 4_000
    response, turns = await ask_beside_canary(broker, INCREMENTAL_ALTER_CONFIGS, 1, resources=resources)
    assert {result.error_code for result in response.responses} == {ErrorCode.INVALID_REQUEST}
    assert turns > 2 * 4_000 / 5


# Groups


@pytest.fixture
async def groups(start_broker: StartBroker, nursery: trio.Nursery) -> GroupBroker:
    groups = GroupBroker(await start_broker(offsets_topic_num_partitions=4))
    groups.start(nursery)
    await groups.coordinator.shards.ensure_topic()
    return groups


async def test_many_coordinators_are_found_in_slices(groups: GroupBroker) -> None:
    keys = [f"group-{number}" for number in range(2_000)] + ["group-0"]
    response, turns = await ask_beside_canary(groups.broker, FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys)
    assert [(found.key, found.error_code) for found in response.coordinators] == [(key, 0) for key in keys]
    assert turns > 2_000 / 5


async def test_coordinators_are_found_in_slices_after_the_topic_was_created(start_broker: StartBroker) -> None:
    groups = GroupBroker(await start_broker(offsets_topic_num_partitions=4))
    keys = [f"group-{number}" for number in range(2_000)]
    response, turns = await ask_beside_canary(groups.broker, FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys)
    assert [(found.key, found.error_code) for found in response.coordinators] == [(key, 0) for key in keys]
    assert turns > 2_000 / 5


@pytest.mark.parametrize(("key", "field"), [(DESCRIBE_GROUPS, "groups"), (CONSUMER_GROUP_DESCRIBE, "group_ids")])
async def test_many_groups_are_described_in_slices_and_each_once(groups: GroupBroker, key: int, field: str) -> None:
    await groups.settle()
    names = ["group", *[f"group-{number}" for number in range(2_000)]]
    response, turns = await ask_beside_canary(groups.broker, key, 0, **{field: [*names, *["group"] * 2_000]})
    assert [group.group_id for group in response.groups] == names
    assert turns > 2_000 / 5


async def test_many_groups_are_deleted_in_slices(groups: GroupBroker) -> None:
    names = [f"group-{number}" for number in range(2_000)]
    response, turns = await ask_beside_canary(groups.broker, DELETE_GROUPS, 2, groups_names=[*names, *names])
    assert [result.group_id for result in response.results] == names
    assert {result.error_code for result in response.results} == {ErrorCode.GROUP_ID_NOT_FOUND}
    assert turns > 2_000 / 5


async def test_offsets_are_fetched_once_for_each_partition_and_in_slices(groups: GroupBroker) -> None:
    await groups.broker.create_topic("topic")
    assert await groups.commit(5) == 0
    topic = offset_fetch.OffsetFetchRequestTopics(name="topic", partition_indexes=[0] * 1_000 + [1])
    group = offset_fetch.OffsetFetchRequestGroup(group_id="group", topics=[topic, topic])
    everything = offset_fetch.OffsetFetchRequestGroup(group_id="group", topics=None)
    many = [group, everything, group, everything]
    response, turns = await ask_beside_canary(groups.broker, OFFSET_FETCH, 8, groups=many)
    (answer,) = response.groups
    (topic_answer,) = answer.topics
    offsets = [(partition.partition_index, partition.committed_offset) for partition in topic_answer.partitions]
    assert offsets == [(0, 5), (1, -1)]
    assert turns > 4 * 1_000 / 5


async def test_offsets_of_many_groups_are_fetched_in_slices(groups: GroupBroker) -> None:
    names = [f"group-{number}" for number in range(2_000)]
    many = [offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    response, turns = await ask_beside_canary(groups.broker, OFFSET_FETCH, 8, groups=many)
    assert [group.group_id for group in response.groups] == names
    assert turns > 2_000 / 5


async def test_offsets_of_one_group_are_fetched_in_slices(groups: GroupBroker) -> None:
    topic = offset_fetch.OffsetFetchRequestTopic(name="topic", partition_indexes=list(range(2_000)))
    response, turns = await ask_beside_canary(groups.broker, OFFSET_FETCH, 7, group_id="group", topics=[topic])
    assert [partition.partition_index for partition in response.topics[0].partitions] == list(range(2_000))
    assert turns > 2_000 / 5


# DescribeProducers


async def test_the_producers_of_a_partition_are_described_once_and_in_slices(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    for producer_id in range(300):
        broker.append("orders", make_batch(b"0", producer_id=producer_id))
    topic = describe_producers.TopicRequest(name="orders", partition_indexes=[0] * 20 + [7])
    response, turns = await ask_beside_canary(broker, DESCRIBE_PRODUCERS, 0, topics=[topic] * 20)
    (described,) = response.topics
    assert [(partition.partition_index, partition.error_code) for partition in described.partitions] == [
        (0, 0),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    producers = described.partitions[0].active_producers
    assert [producer.producer_id for producer in producers] == list(range(300))
    assert turns > (300 + 20 * 20) / 5


# DescribeTopicPartitions


async def test_many_topics_are_paged_in_slices(broker: HandlerBroker) -> None:
    await broker.create_topic("orders", partitions=3)
    names = [f"topic-{number}" for number in range(3_000)]
    topics = [describe_topic_partitions.TopicRequest(name=name) for name in [*names, "orders", *names]]
    response, turns = await ask_beside_canary(broker, DESCRIBE_TOPIC_PARTITIONS, 0, topics=topics)
    assert [topic.name for topic in response.topics] == sorted([*names, "orders"])
    assert response.next_cursor is None
    assert turns > 3 * 3_000 / 5  # all names are read, the distinct ones described


# Quotas


class UncountedConfigs(dict[str, dict[str, str]]):
    """Configs of many entities that cannot be looked at one after the other."""

    def __iter__(self) -> Any:
        raise AssertionError("the cost of a change must not depend on the number of entities")

    items = values = keys = __iter__


def test_a_quota_of_one_user_costs_the_same_with_many_users() -> None:
    clock = StillClock()
    quotas = Quotas(BrokerConfig.from_properties({}), clock, Deadlines())
    image = Image(entity_configs=UncountedConfigs({f"users/{n}": {"producer_byte_rate": "1"} for n in range(3000)}))
    quotas.on_image(image, [EntityConfigsChanged("users/alice", {"producer_byte_rate": "100"})])
    assert quotas.is_on
    quotas.on_image(image, [EntityConfigsChanged("users/alice", {})])
    assert not quotas.is_on


async def test_quotas_of_many_users_are_described_in_slices(broker: HandlerBroker) -> None:
    store = broker.controller.store
    store.commit([EntityConfigsChanged(f"users/{n}", {"producer_byte_rate": "1"}) for n in range(3000)])
    response, turns = await ask_beside_canary(broker, DESCRIBE_CLIENT_QUOTAS, 1, components=[], strict=False)
    assert len(response.entries) == 3000
    assert turns > 600


# Frames of more than 256 KB


async def test_a_large_request_is_decoded_and_a_large_response_encoded_in_a_thread(broker: HandlerBroker) -> None:
    names = [f"topic-{number}" for number in range(30_000)]
    work = CountedWork(broker)
    topics = metadata_topics(*names)
    response = await broker.ask(METADATA, 12, topics=topics, allow_auto_topic_creation=False)
    assert [topic.name for topic in response.topics] == names
    assert work.runs == 2


async def test_a_small_request_with_a_large_response_is_encoded_in_a_thread(broker: HandlerBroker) -> None:
    await broker.create_topic("orders", partitions=3_000)
    work = CountedWork(broker)
    topics = metadata_topics("orders", *[f"unknown-{number}" for number in range(100)])
    responses: list[Any] = []

    async def ask() -> None:
        responses.append(await broker.ask(METADATA, 12, topics=topics, allow_auto_topic_creation=False))

    await turns_beside(broker, ask)
    assert {len(topic.partitions) for topic in responses[0].topics} == {0, 3_000}
    assert work.runs == 1


async def test_a_malformed_large_request_closes_its_connection(broker: HandlerBroker) -> None:
    with pytest.raises(AssertionError, match="closed without a response"):
        await broker.ask_raw(METADATA, 12, b"\xff" * 300_000, 2)


async def test_a_large_request_that_a_handler_refuses_gets_its_error(broker: HandlerBroker) -> None:
    resources = [altered_resource("x" * 3_000, 1, is_incremental=True)] * 100
    response = await broker.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=resources)
    assert {result.error_code for result in response.responses} == {ErrorCode.INVALID_REQUEST}


async def test_messages_are_freed_only_if_no_handler_keeps_them() -> None:
    kept = ["kept"] * 5_000
    body = metadata.REQUEST(topics=metadata_topics(*["a"] * 5_000))
    response = metadata.RESPONSE(topics=kept)
    parts = large_messages._encode(lambda value, parts: parts.append(b"x"), response, body, lambda: None)
    assert parts == [b"x"]
    assert len(kept) == 5_000
    assert body.topics == []


async def test_long_lists_within_a_message_are_freed_in_steps() -> None:
    steps = 0

    def count_step() -> None:
        nonlocal steps
        steps += 1

    partitions = [fetch.FetchPartition(partition=number) for number in range(20_000)]
    body = fetch.REQUEST(topics=[fetch.FetchTopic(topic="orders", partitions=partitions)])
    del partitions
    large_messages._free_lists(body, count_step)
    assert body.topics == []
    assert steps > 10


async def test_what_a_handler_keeps_of_a_message_is_not_freed() -> None:
    partitions = [fetch.FetchPartition(partition=number) for number in range(5_000)]
    topic = fetch.FetchTopic(topic="orders", partitions=partitions)
    large_messages._free_lists(fetch.REQUEST(topics=[topic]), lambda: None)
    assert (len(partitions), len(topic.partitions)) == (5_000, 5_000)


async def test_no_full_collection_runs_beside_a_large_request(broker: HandlerBroker) -> None:
    """It would stop the event loop for as long as it takes to visit millions of objects."""
    usual = gc.get_threshold()
    seen = []
    work = broker.context.thread_work

    class Watched:
        async def run(self, job: Callable[..., Any]) -> Any:
            seen.append(gc.get_threshold())
            return await work.run(job)

    broker.context.thread_work = cast(ThreadWork, Watched())
    await broker.ask(METADATA, 12, topics=metadata_topics(*["a"] * 30_000), allow_auto_topic_creation=False)
    assert seen
    assert all(during[:2] == usual[:2] and during[2] > 1_000_000 for during in seen)
    while gc.get_threshold() != usual:  # until the body is freed, in a thread
        await trio.lowlevel.checkpoint()


# Offsets, epochs and deletions of very many partitions


async def test_offsets_of_very_many_partitions_are_listed_in_slices(broker: HandlerBroker) -> None:
    await broker.create_topic("orders", partitions=3)
    asked = [list_offsets.ListOffsetsPartition(partition_index=n % 2_999, timestamp=-1) for n in range(3_000)]
    topics = [list_offsets.ListOffsetsTopic(name="orders", partitions=asked)]
    response, turns = await ask_beside_canary(broker, LIST_OFFSETS, 7, replica_id=-1, topics=topics)
    found = {answer.partition_index: answer.error_code for answer in response.topics[0].partitions}
    assert len(response.topics[0].partitions) == len(found) == 2_999
    assert [found[index] for index in (0, 1, 2, 3)] == [ErrorCode.INVALID_REQUEST, 0, 0, UNKNOWN]
    assert turns > 2 * 3_000 / 5  # all are counted, then looked up


async def test_epochs_of_very_many_partitions_are_answered_in_slices(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    asked = [offset_for_leader_epoch.OffsetForLeaderPartition(partition=number) for number in range(3_000)]
    topics = [offset_for_leader_epoch.OffsetForLeaderTopic(topic="orders", partitions=asked)]
    response, turns = await ask_beside_canary(broker, OFFSET_FOR_LEADER_EPOCH, 3, replica_id=-1, topics=topics)
    assert [answer.error_code for answer in response.topics[0].partitions] == [0] + [UNKNOWN] * 2_999
    assert turns > 3_000 / 5


async def test_records_of_very_many_partitions_are_deleted_in_slices(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    asked = [delete_records.DeleteRecordsPartition(partition_index=number, offset=0) for number in range(3_000)]
    topics = [delete_records.DeleteRecordsTopic(name="orders", partitions=asked)]
    response, turns = await ask_beside_canary(broker, DELETE_RECORDS, 2, topics=topics, timeout_ms=1000)
    assert [answer.error_code for answer in response.topics[0].partitions] == [0] + [UNKNOWN] * 2_999
    assert turns > 2 * 3_000 / 5


@pytest.mark.parametrize("is_session", [True, False])
async def test_very_many_partitions_are_fetched_in_slices(broker: HandlerBroker, is_session: bool) -> None:
    await broker.create_topic("orders")
    batch = make_batch(b"v")
    broker.append("orders", bytearray(batch))
    partition = broker.partitions.get("orders", 0)
    assert partition is not None
    partition.log_handle.commit_all()
    broker.context.fetch_sessions = FetchSessions(10, iter([7]).__next__, StillClock())
    asked = [fetch.FetchPartition(partition=number, partition_max_bytes=1000) for number in range(MANY_TARGETS + 1)]
    topics = [fetch.FetchTopic(topic="orders", partitions=asked)]
    members = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 100_000, "session_epoch": 0 if is_session else -1}
    response, turns = await ask_beside_canary(broker, FETCH, 11, topics=topics, **members)
    first, *others = response.responses[0].partitions
    assert (first.error_code, bytes(first.records)[21:]) == (0, bytes(batch)[21:])  # without the leader epoch
    assert {answer.error_code for answer in others} == {UNKNOWN}
    assert len(others) == MANY_TARGETS
    assert response.session_id == (7 if is_session else 0)
    assert turns > MANY_TARGETS / 5


async def test_topics_without_partitions_are_handled_in_slices(broker: HandlerBroker) -> None:
    fetched = [fetch.FetchTopic(topic=f"t{number}", partitions=[]) for number in range(20_001)]
    _, turns = await ask_beside_canary(broker, FETCH, 11, topics=fetched, session_epoch=0, max_wait_ms=0)
    assert turns > 20_001 / 5
    produced = [produce.TopicProduceData(name=f"t{number}", partition_data=[]) for number in range(3_000)]
    response, turns = await ask_beside_canary(broker, PRODUCE, 11, acks=1, timeout_ms=1000, topic_data=produced)
    assert [topic.name for topic in response.responses] == [topic.name for topic in produced]
    assert turns > 3_000 / 5


async def test_one_fetch_cannot_remove_very_many_partitions_from_a_session(broker: HandlerBroker) -> None:
    broker.context.fetch_sessions = FetchSessions(10, iter([7]).__next__, StillClock())
    members: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 100}
    topics = [fetch.FetchTopic(topic="unknown", partitions=[fetch.FetchPartition(partition=0)])]
    assert (await broker.ask(FETCH, 11, topics=topics, session_epoch=0, **members)).session_id == 7
    forgotten = [fetch.ForgottenTopic(topic="unknown", partitions=list(range(20_001)))]
    response = await broker.ask(
        FETCH, 11, topics=[], forgotten_topics_data=forgotten, session_id=7, session_epoch=1, **members
    )
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_one_fetch_cannot_add_very_many_partitions_to_a_session(broker: HandlerBroker) -> None:
    broker.context.fetch_sessions = FetchSessions(10, iter([7]).__next__, StillClock())
    few, many = ([fetch.FetchPartition(partition=number) for number in range(count)] for count in (1, 20_001))
    members: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 100}
    topics = [fetch.FetchTopic(topic="unknown", partitions=many)]
    response = await broker.ask(FETCH, 11, topics=topics, session_epoch=0, **members)
    assert (response.session_id, len(response.responses[0].partitions)) == (0, 20_001)
    begun = [fetch.FetchTopic(topic="unknown", partitions=few)]
    assert (await broker.ask(FETCH, 11, topics=begun, session_epoch=0, **members)).session_id == 7
    response = await broker.ask(FETCH, 11, topics=topics, session_id=7, session_epoch=1, **members)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_very_many_topics_are_deleted_in_slices(broker: HandlerBroker) -> None:
    await broker.create_topic("orders")
    names = ["orders", *[f"t{number % 2_998}" for number in range(2_999)]]
    response, turns = await ask_beside_canary(broker, DELETE_TOPICS, 5, topic_names=names, timeout_ms=1000)
    codes = {answer.name: answer.error_code for answer in response.responses}
    assert len(response.responses) == len(codes) == 2_999
    assert (codes["orders"], codes["t0"], codes["t1"]) == (0, ErrorCode.INVALID_REQUEST, UNKNOWN)
    assert turns > 2 * 3_000 / 5  # all are counted, then looked up


async def test_markers_for_very_many_partitions_are_written_in_slices(broker: HandlerBroker) -> None:
    class Markers:
        def append(self, ending: object, topic: str, index: int, done: Callable[[int], None]) -> None:
            done(0 if index == 0 else UNKNOWN)

    broker.context.markers = cast(Any, Markers())
    broker.context.deadlines = Deadlines()
    topic = write_txn_markers.WritableTxnMarkerTopic(name="orders", partition_indexes=list(range(3_000)))
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=7, producer_epoch=0, transaction_result=True, topics=[topic], coordinator_epoch=0
    )
    response, turns = await ask_beside_canary(broker, WRITE_TXN_MARKERS, 1, markers=[marker])
    (result,) = response.markers[0].topics
    assert [answer.partition_index for answer in result.partitions] == list(range(3_000))
    assert [answer.error_code for answer in result.partitions] == [0] + [UNKNOWN] * 2_999
    assert turns > 2 * 3_000 / 5


async def test_markers_without_partitions_are_handled_in_slices(broker: HandlerBroker) -> None:
    broker.context.deadlines = Deadlines()
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=7, producer_epoch=0, transaction_result=True, topics=[], coordinator_epoch=0
    )
    response, turns = await ask_beside_canary(broker, WRITE_TXN_MARKERS, 1, markers=[marker] * 3_000)
    assert len(response.markers) == 3_000
    assert turns > 2 * 3_000 / 5


async def test_very_many_partitions_are_reassigned_in_slices(broker: HandlerBroker) -> None:
    broker.controller.reassigner._clock = broker.context.clock
    partitions = [
        alter_partition_reassignments.ReassignablePartition(partition_index=number, replicas=[1])
        for number in range(3_000)
    ]
    topics = [alter_partition_reassignments.ReassignableTopic(name="unknown", partitions=partitions)]
    response, turns = await ask_beside_canary(broker, ALTER_PARTITION_REASSIGNMENTS, 0, topics=topics)
    assert [answer.error_code for answer in response.responses[0].partitions] == [UNKNOWN] * 3_000
    assert turns > 3 * 3_000 / 5


async def test_very_many_transactions_are_described_in_slices(broker: HandlerBroker) -> None:
    class Shards:
        def find(self, transactional_id: str) -> Any:
            raise Refusal(ErrorCode.NOT_COORDINATOR)

    broker.context.transactions = cast(Any, SimpleNamespace(shards=Shards()))
    ids = [f"id{number}" for number in range(3_000)]
    response, turns = await ask_beside_canary(broker, DESCRIBE_TRANSACTIONS, 0, transactional_ids=ids)
    assert [state.transactional_id for state in response.transaction_states] == ids
    assert turns > 3_000 / 5


async def test_a_request_whose_handler_takes_one_turn_may_not_have_very_many_elements(broker: HandlerBroker) -> None:
    groups = GroupBroker(broker)
    async with trio.open_nursery() as nursery:
        groups.start(nursery)
        await groups.wait_loaded()
        for count, code in ((MAX_ELEMENTS_AT_ONCE - 1, UNKNOWN), (MAX_ELEMENTS_AT_ONCE, TOO_MANY_OFFSETS)):
            partitions = [offset_commit.OffsetCommitRequestPartition(partition_index=number) for number in range(count)]
            topics = [offset_commit.OffsetCommitRequestTopic(name="unknown", partitions=partitions)]
            response = await broker.ask(OFFSET_COMMIT, 8, group_id="billing", topics=topics)
            assert [answer.error_code for answer in response.topics[0].partitions] == [code] * count
        nursery.cancel_scope.cancel()


def committed_topics(*names: str) -> list[Any]:
    return [
        offset_commit.OffsetCommitRequestTopic(
            name=name, partitions=[offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)]
        )
        for name in names
    ]


async def test_a_commit_of_very_many_topics_has_them_checked_in_slices(groups: GroupBroker) -> None:
    """Kafka limits the bytes of the records only: topics do not count beside their partitions."""
    await groups.broker.create_topic("orders")
    names = [*[f"t{number}" for number in range(19_000)], "orders"]
    response, turns = await ask_beside_canary(
        groups.broker, OFFSET_COMMIT, 8, group_id="group", topics=committed_topics(*names)
    )
    codes = [answer.partitions[0].error_code for answer in response.topics]
    assert [answer.name for answer in response.topics] == names
    assert (set(codes[:-1]), codes[-1]) == ({UNKNOWN}, 0)
    assert turns > 19_000 / 5
    asked = offset_fetch.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
    fetched = await groups.ask(OFFSET_FETCH, 7, group_id="group", topics=[asked])
    assert fetched.topics[0].partitions[0].committed_offset == 7
    names = [f"t{number}" for number in range(MAX_ELEMENTS_AT_ONCE)]
    response = await groups.ask(OFFSET_COMMIT, 8, group_id="group", topics=committed_topics(*names))
    assert {answer.partitions[0].error_code for answer in response.topics} == {TOO_MANY_OFFSETS}


async def test_offsets_of_very_many_topics_are_checked_in_slices_in_a_transaction(groups: GroupBroker) -> None:
    topics = [
        txn_offset_commit.TxnOffsetCommitRequestTopic(
            name=f"t{number}", partitions=[txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0)]
        )
        for number in range(19_000)
    ]
    members = {"transactional_id": "id", "group_id": "group", "producer_id": 1, "producer_epoch": 0}
    response, turns = await ask_beside_canary(groups.broker, TXN_OFFSET_COMMIT, 3, topics=topics, **members)
    assert {answer.partitions[0].error_code for answer in response.topics} == {UNKNOWN}
    assert turns > 19_000 / 5


async def test_offsets_of_a_topic_that_is_deleted_during_a_large_commit_are_refused(groups: GroupBroker) -> None:
    broker = groups.broker
    await broker.create_topic("orders")
    await broker.create_topic("kept")
    names = ["orders", "kept", *[f"t{number}" for number in range(2_000)]]
    responses: list[Any] = []
    clock = broker.context.clock
    assert isinstance(clock, StillClock)

    async def commit() -> None:
        responses.append(await groups.ask(OFFSET_COMMIT, 8, group_id="group", topics=committed_topics(*names)))

    async with trio.open_nursery() as nursery:
        broker.context.thread_work = cast(ThreadWork, WorkOnTheLoop())
        clock.ticks = QUARTER_OF_A_SLICE
        nursery.start_soon(commit)
        for _ in range(50):  # of about 500 turns
            await trio.lowlevel.checkpoint()
        async with turn_of_loop():  # it waits meanwhile
            assert not responses
            await broker.controller.delete_topic(name="orders")
    codes = [answer.partitions[0].error_code for answer in responses[0].topics[:2]]
    assert codes == [UNKNOWN, 0]


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_large_requests_whose_handlers_take_one_turn_never_share_a_round(
    broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds()
    handled: list[int] = []
    handle = alter_replica_log_dirs_handler.handle

    def handle_and_note(context: Context, request: Request) -> Any:
        handled.append(rounds.count)
        return handle(context, request)

    async def ask() -> None:
        topic = alter_replica_log_dirs.AlterReplicaLogDirTopic(name="orders", partitions=list(range(2_500)))
        directory = alter_replica_log_dirs.AlterReplicaLogDir(path="/unknown", topics=[topic])
        response = await broker.ask(ALTER_REPLICA_LOG_DIRS, 2, dirs=[directory])
        assert len(response.results[0].partitions) == 2_500

    monkeypatch.setattr(alter_replica_log_dirs_handler, "handle", handle_and_note)
    broker.context.thread_work = cast(ThreadWork, WorkOnTheLoop())
    trio.lowlevel.add_instrument(rounds)
    async with trio.open_nursery() as asking:
        for _ in range(8):
            asking.start_soon(ask)
    trio.lowlevel.remove_instrument(rounds)
    assert len(set(handled)) == len(handled) == 8


async def test_requests_that_grow_with_the_cluster_have_no_such_limit(broker: HandlerBroker) -> None:
    """A controller sends the metadata of all partitions in one request."""
    called = api(UPDATE_METADATA)
    body = called.request(
        controller_id=1,
        controller_epoch=1,
        topic_states=[
            update_metadata.UpdateMetadataTopicState(
                topic_name="orders",
                topic_id=bytes(16),
                partition_states=[
                    update_metadata.UpdateMetadataPartitionState(
                        partition_index=number, leader=1, isr=[1, 2, 3], replicas=[1, 2, 3], offline_replicas=[]
                    )
                    for number in range(MAX_ELEMENTS_AT_ONCE // 3)
                ],
            )
        ],
        live_brokers=[],
    )
    header = REQUEST_HEADER(request_api_key=UPDATE_METADATA, request_api_version=7, correlation_id=1, client_id="me")
    frame = codec(REQUEST_HEADER, 2).to_bytes(header) + codec(called.request, 7).to_bytes(body)
    route = broker.dispatch._make_route(METADATA, 9)._replace(  # a single node has no route of UpdateMetadata
        api=called, decode=codec(called.request, 7).decode
    )
    slot = RequestSlot(cast(Any, None))
    request, has_too_many = await large_messages.read_large_request(
        broker.context.thread_work, route, memoryview(frame), slot, lambda request, response: None
    )
    assert len(request.body.topic_states[0].partition_states) == MAX_ELEMENTS_AT_ONCE // 3
    assert not has_too_many


async def test_large_requests_of_the_controller_never_wait_for_those_of_clients(
    broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client can send requests that take minutes, two at a time: a leader must not be elected after them."""

    async def handle(context: Context, request: Request) -> Any:
        return update_metadata.RESPONSE(error_code=len(request.body.live_brokers))

    monkeypatch.setattr(update_metadata_handler, "handle", handle)
    broker.dispatch._served[UPDATE_METADATA] = api(UPDATE_METADATA)
    for _ in range(MAX_THREADS):
        broker.dispatch._large_requests.acquire_nowait()
    brokers = [update_metadata.UpdateMetadataBroker(id=number, endpoints=[]) for number in range(6_000)]
    with trio.fail_after(60):
        response = await broker.ask(
            UPDATE_METADATA, 7, controller_id=1, controller_epoch=1, topic_states=[], live_brokers=brokers
        )
    assert response.error_code == 6_000
