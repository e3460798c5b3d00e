"""Each API asks for Kafka's right: refused without it, allowed with it, and nothing is revealed when it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import APIS
from kbroker.testing.running_broker import RunningBroker
from tests.broker.access_table import ASKS_NOTHING, OF_KNOWN_CLIENTS, ROWS, Row, build, codes_of, each_lines
from tests.broker.conftest import Connect, StartBroker
from tests.broker.wire import BY_NAME, Client

HERE, ABSENT = "here", "nono"  # of equal length
EVERYTHING = [f"allow User:ANONYMOUS ALL {kind} *" for kind in ("topic", "group", "transactional_id")]
REFUSALS = {29, 30, 31, 53, 65}
PROPERTIES = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


@pytest.fixture
async def secured(start_broker: StartBroker) -> RunningBroker:
    return await start_broker(PROPERTIES)


@pytest.fixture
async def scene(secured: RunningBroker, connect_to: Connect) -> Client:
    """Creates a topic, a group and an open transaction with the name HERE. Returns a client without any right."""
    client = await connect_to(secured)
    await secured.create_topic(HERE)
    await secured.add_acls(EVERYTHING)
    for kind in (0, 1):
        await insist(client, "FindCoordinator", 3, key=HERE, key_type=kind)
    topics = [{"name": HERE, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}]
    await insist(client, "OffsetCommit", 8, group_id=HERE, topics=topics)
    ids = await insist(client, "InitProducerId", 4, transactional_id=HERE, transaction_timeout_ms=60_000)
    await insist(
        client,
        "AddPartitionsToTxn",
        3,
        v3_and_below_transactional_id=HERE,
        v3_and_below_producer_id=ids.producer_id,
        v3_and_below_producer_epoch=ids.producer_epoch,
        v3_and_below_topics=[{"name": HERE, "partitions": [0]}],
    )
    await secured.remove_acls(EVERYTHING)
    return client


async def ask(client: Client, name: str, version: int, members: Any) -> tuple[Any, dict[str, list[int]]]:
    asked = BY_NAME[name]
    value = build(asked.request, members)
    given = {field.name: getattr(value, field.name) for field in asked.request.fields if field.name in members}
    response = await client.ask(name, version, **given)
    return response, codes_of(asked.response, response)


async def insist(client: Client, name: str, version: int, **members: Any) -> Any:
    """Asks until the answer has no error: a coordinator may still be loading."""
    with trio.fail_after(20):
        while True:
            response, codes = await ask(client, name, version, members)
            if not codes:
                return response
            await trio.sleep(0.01)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
async def test_each_right_is_asked_for(secured: RunningBroker, scene: Client, row: Row) -> None:
    seen = [(await ask(scene, row.api, row.version, row.members(name)))[0] for name in (HERE, ABSENT)]
    assert repr(seen[1]).replace(ABSENT, HERE) == repr(seen[0]), "a client without rights can tell what exists"
    for missing, expected in row.rights.items():
        others = [each_lines(right, HERE)[0] for right in row.rights if right != missing]
        await secured.add_acls(others)
        response, codes = await ask(scene, row.api, row.version, row.members(HERE))
        assert codes == {path: list(code) if isinstance(code, tuple) else [code] for path, code in expected.items()}
        if not expected:
            assert HERE not in repr(response)
        await secured.remove_acls(others)
    for number in range(max(len(each_lines(right, HERE)) for right in row.rights)):
        given = [lines[min(number, len(lines) - 1)] for lines in (each_lines(right, HERE) for right in row.rights)]
        await secured.add_acls(given)
        response, codes = await ask(scene, row.api, row.version, row.members(HERE))
        assert not REFUSALS.intersection(code for found in codes.values() for code in found), codes
        if not next(iter(row.rights.values())) and row.api != "DescribeLogDirs":
            assert HERE in repr(response)
        await secured.remove_acls(given)


async def test_every_version_of_a_request_asks_for_the_right(secured: RunningBroker, scene: Client) -> None:
    """Versions differ in the fields for errors. Asks in each version that has the names of the row's request."""
    asked, served, allowed = set(), set(), {}
    for row in ROWS:
        api = BY_NAME[row.api]
        assert api.serves is not None
        written = build(api.request, row.members(HERE))
        names = codec(api.request, row.version).to_bytes(written).count(HERE.encode())
        for version in range(api.serves[0], api.serves[1] + 1):
            served.add((row.api, version))
            if codec(api.request, version).to_bytes(written).count(HERE.encode()) != names:
                continue
            asked.add((row.api, version))
            response, codes = await ask(scene, row.api, version, row.members(HERE))
            other, _ = await ask(scene, row.api, version, row.members(ABSENT))
            assert repr(other).replace(ABSENT, HERE) == repr(response), (row.id, version)
            is_left_out = not next(iter(row.rights.values())) or (row.api == "DescribeLogDirs" and version < 3)
            if is_left_out and HERE not in repr(response):
                continue
            if not REFUSALS.intersection(code for found in codes.values() for code in found):
                allowed[row.id, version] = codes
    assert allowed == {}
    by_topic_id = {("Produce", 13), *(("Fetch", version) for version in range(13, 19))}  # tested below
    assert served - asked == by_topic_id


def test_the_table_has_all_apis_that_a_single_broker_serves() -> None:
    served = {api.name for api in APIS if api.is_served()}
    assert served == {row.api for row in ROWS} | {*ASKS_NOTHING, *OF_KNOWN_CLIENTS}


# Names that are left out, ids, and creation


async def test_lists_of_all_topics_leave_out_what_the_client_may_not_describe(
    secured: RunningBroker, scene: Client
) -> None:
    await secured.create_topic("mine")
    await secured.add_acls(["allow User:ANONYMOUS READ topic mine", f"allow User:ANONYMOUS DESCRIBE group {HERE}"])
    everything, _ = await ask(scene, "Metadata", 12, {"topics": None})
    assert [topic.name for topic in everything.topics] == ["mine"]
    pages, _ = await ask(scene, "DescribeTopicPartitions", 0, {"topics": []})
    assert [topic.name for topic in pages.topics] == ["mine"]
    offsets, codes = await ask(scene, "OffsetFetch", 8, {"groups": [{"group_id": HERE, "topics": None}]})
    assert (codes, offsets.groups[0].topics) == ({}, [])


async def test_an_id_does_not_reveal_the_name_of_its_topic(secured: RunningBroker, scene: Client) -> None:
    topic_id = secured._running().controller.image.topics[HERE].id
    response, codes = await ask(scene, "Metadata", 12, {"topics": [{"name": None, "topic_id": topic_id}]})
    assert (codes, response.topics[0].name) == ({"topics.error_code": [29]}, None)
    response, codes = await ask(scene, "DeleteTopics", 6, {"topics": [{"name": None, "topic_id": topic_id}]})
    assert (codes, response.responses[0].name) == ({"responses.error_code": [29]}, None)
    await secured.add_acls([f"allow User:ANONYMOUS DESCRIBE topic {HERE}"])
    response, codes = await ask(scene, "DeleteTopics", 6, {"topics": [{"name": None, "topic_id": topic_id}]})
    assert (codes, response.responses[0].name) == ({"responses.error_code": [29]}, HERE)
    produced = {"topic_id": topic_id, "partition_data": [{"index": 0, "records": b""}]}
    _, codes = await ask(scene, "Produce", 13, {"acks": 1, "timeout_ms": 1, "topic_data": [produced]})
    assert codes == {"responses.partition_responses.error_code": [29]}
    fetched = {"topic_id": topic_id, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}]}
    _, codes = await ask(scene, "Fetch", 13, {"max_wait_ms": 0, "min_bytes": 0, "topics": [fetched]})
    assert codes == {"responses.partitions.error_code": [29]}


@pytest.mark.parametrize("right", ["CREATE topic new", "CREATE cluster"])
async def test_a_topic_is_created_automatically_only_with_the_right_to_create_it(
    secured: RunningBroker, scene: Client, right: str
) -> None:
    wanted = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    await secured.add_acls(["allow User:ANONYMOUS DESCRIBE topic new"])
    _, codes = await ask(scene, "Metadata", 12, wanted)
    assert codes == {"topics.error_code": [29]}
    assert "new" not in secured.topics
    await secured.add_acls([f"allow User:ANONYMOUS {right}"])
    await insist(scene, "Metadata", 12, **wanted)
    assert "new" in secured.topics


async def test_created_topics_show_their_configs_only_with_the_right_to_see_them(
    secured: RunningBroker, scene: Client
) -> None:
    await secured.add_acls(["allow User:ANONYMOUS CREATE cluster"])
    wanted = {"topics": [{"name": "new", "num_partitions": 2, "replication_factor": 1}]}
    response, codes = await ask(scene, "CreateTopics", 7, wanted)
    (created,) = response.topics
    assert codes == {"topics.topic_config_error_code": [29]}
    assert (created.num_partitions, created.replication_factor, created.configs) == (-1, -1, [])


async def test_a_refused_produce_without_acknowledgement_closes_the_connection(
    secured: RunningBroker, scene: Client
) -> None:
    topic = {"name": HERE, "partition_data": [{"index": 0, "records": b""}]}
    asked = build(BY_NAME["Produce"].request, {"acks": 0, "timeout_ms": 1, "topic_data": [topic]})
    await scene.send("Produce", 9, acks=0, timeout_ms=1, topic_data=asked.topic_data)
    with trio.fail_after(20):
        assert await scene.stream.receive_some() == b""


# Authorized operations


async def test_authorized_operations_are_the_granted_ones_and_those_that_they_imply(
    secured: RunningBroker, scene: Client
) -> None:
    async def seen() -> tuple[int, int, int, int]:
        metadata, _ = await ask(
            scene,
            "Metadata",
            9,
            {
                "topics": [{"name": HERE}],
                "include_topic_authorized_operations": True,
                "include_cluster_authorized_operations": True,
            },
        )
        groups, _ = await ask(scene, "DescribeGroups", 5, {"groups": [HERE], "include_authorized_operations": True})
        cluster, _ = await ask(scene, "DescribeCluster", 0, {"include_cluster_authorized_operations": True})
        return (
            metadata.topics[0].topic_authorized_operations,
            groups.groups[0].authorized_operations,
            metadata.cluster_authorized_operations,
            cluster.cluster_authorized_operations,
        )

    unknown = -(2**31)
    assert await seen() == (unknown, unknown, 0, 0)
    some = [
        f"allow User:ANONYMOUS READ topic {HERE}",
        f"allow User:ANONYMOUS DELETE group {HERE}",
        "allow User:ANONYMOUS DESCRIBE,ALTER_CONFIGS cluster",
    ]
    await secured.add_acls(some)
    assert await seen() == (1 << 3 | 1 << 8, 1 << 6 | 1 << 8, *[1 << 8 | 1 << 10 | 1 << 11] * 2)
    await secured.add_acls([*EVERYTHING, "allow User:ANONYMOUS ALL cluster"])
    assert await seen() == (3576, 3400, 8096, 8096)


# Order of checks, and what holds after a right is revoked


async def test_an_empty_group_id_is_refused_by_the_authorizer_first(secured: RunningBroker, scene: Client) -> None:
    leave = {"group_id": "", "members": []}
    assert (await ask(scene, "LeaveGroup", 5, leave))[1] == {"error_code": [30]}
    await secured.add_acls(EVERYTHING)
    assert (await ask(scene, "LeaveGroup", 5, leave))[1] == {"error_code": [ErrorCode.INVALID_GROUP_ID]}


async def test_a_waiting_fetch_gets_no_records_after_its_right_is_revoked(
    secured: RunningBroker, scene: Client, connect_to: Connect
) -> None:
    reader = f"allow User:ANONYMOUS READ topic {HERE}"
    await secured.add_acls([reader, f"allow User:ANONYMOUS WRITE topic {HERE}"])
    fetched = {"topic": HERE, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}
    asked = build(BY_NAME["Fetch"].request, {"topics": [fetched]})
    await scene.send("Fetch", 12, max_wait_ms=20_000, min_bytes=1, topics=asked.topics)
    other = await connect_to(secured)
    await ask(other, "ListOffsets", 7, {"replica_id": -1, "topics": []})  # the Fetch has arrived before
    await secured.remove_acls([reader])
    produce = next(row for row in ROWS if row.id == "Produce-v9-WRITE")
    assert (await ask(other, "Produce", 9, produce.members(HERE)))[1] == {}
    response = await scene.receive()
    (partition,) = response.responses[0].partitions
    assert (partition.error_code, partition.records or b"") == (29, b"")


# Audit


async def test_denied_requests_are_logged_in_the_words_of_kafka(
    secured: RunningBroker, scene: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "kafka.authorizer.logger"):
        await ask(scene, "Metadata", 12, {"topics": [{"name": "a\nb"}], "allow_auto_topic_creation": False})
        await ask(scene, "ListGroups", 4, {})  # quiet: what the client may not see is left out
    lines = [record.getMessage() for record in caplog.records if record.name == "kafka.authorizer.logger"]
    (line,) = lines
    assert line == (
        "Principal = User:ANONYMOUS is Denied Operation = Describe from host = 127.0.0.1"
        " on resource = Topic:LITERAL:a\\nb for request = Metadata with resourceRefCount = 1"
    )
    caplog.clear()
    await secured.add_acls(EVERYTHING)
    with caplog.at_level("DEBUG", "kafka.authorizer.logger"):
        await ask(scene, "Metadata", 12, {"topics": [{"name": HERE}], "allow_auto_topic_creation": False})
    assert "User:ANONYMOUS is Allowed Operation = Describe" in caplog.text


# The start


async def test_super_users_may_do_everything(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker({**PROPERTIES, "super.users": "User:admin;User:ANONYMOUS"})
    client = await connect_to(broker)
    wanted = {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}]}
    _, codes = await ask(client, "CreateTopics", 7, wanted)
    assert codes == {}


async def test_resources_without_acls_may_be_open_to_all(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker({**PROPERTIES, "allow.everyone.if.no.acl.found": "true"})
    client = await connect_to(broker)
    await broker.create_topic("t")
    metadata = {"topics": [{"name": "t"}]}
    assert (await ask(client, "Metadata", 12, metadata))[1] == {}
    await broker.add_acls(["allow User:other READ topic t"])
    assert (await ask(client, "Metadata", 12, metadata))[1] == {"topics.error_code": [29]}


async def test_acls_survive_a_restart(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker(PROPERTIES)
    await broker.create_topic("t")
    await broker.add_acls(["allow User:ANONYMOUS DESCRIBE topic t"])
    await broker.stop()
    client = await connect_to(await start_broker(PROPERTIES))
    assert (await ask(client, "Metadata", 12, {"topics": [{"name": "t"}]}))[1] == {}
    assert (await ask(client, "Metadata", 12, {"topics": [{"name": "u"}]}))[1] == {"topics.error_code": [29]}
