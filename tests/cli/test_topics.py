"""`kbroker topics`, `offsets`, `cluster`: effects on a broker, and output."""

from __future__ import annotations

import json

import pytest

from kbroker.client.cluster import Cluster, TopicInfo
from kbroker.testing.running_broker import RunningBroker
from tests.cli.conftest import Call


async def test_a_topic_is_created_listed_described_and_deleted(call: Call) -> None:
    assert await call("topics", "create", "orders", "--partitions", "3") == (
        0,
        "Created topic orders with 3 partitions.\n",
        "",
    )
    code, out, _ = await call("topics", "list")
    assert (code, out.split()) == (0, ["TOPIC", "PARTITIONS", "REPLICATION", "FACTOR", "orders", "3", "1"])
    (described,) = json.loads((await call("topics", "describe", "orders", "--json")).out)
    assert described["topic"] == "orders"
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    assert all(
        partition["replicas"] == partition["isr"] == [partition["leader"]] for partition in described["partitions"]
    )
    table = (await call("topics", "describe")).out
    assert table.startswith(f"orders ({described['id']})\n")
    assert "PARTITION  LEADER  REPLICAS  ISR" in table
    assert await call("topics", "delete", "orders", "--yes") == (0, "Deleted topic orders.\n", "")
    assert json.loads((await call("topics", "list", "--json")).out) == []


async def test_a_table_in_a_pipe_has_one_line_for_each_row_and_no_colour(call: Call) -> None:
    name = "a" * 200
    await call("topics", "create", name)
    lines = (await call("topics", "list")).out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(name)
    assert "\x1b" not in "".join(lines)


async def test_a_topic_that_exists_is_refused_unless_if_not_exists(call: Call) -> None:
    await call("topics", "create", "orders", "--partitions", "2")
    code, out, err = await call("topics", "create", "orders")
    assert (code, out) == (1, "")
    assert err == "kbroker: Topic 'orders' already exists. Add --if-not-exists to ignore this.\n"
    code, out, _ = await call("topics", "create", "orders", "--if-not-exists", "--json")
    assert code == 0
    assert json.loads(out) == {"topic": "orders", "created": False, "partitions": 2, "replication_factor": 1}


async def test_validating_creates_nothing(call: Call) -> None:
    code, out, _ = await call("topics", "create", "orders", "--partitions", "2", "--validate-only")
    assert (code, out) == (0, "Topic orders is valid with 2 partitions; nothing was created.\n")
    code, out, err = await call("topics", "list")
    assert (code, out) == (0, "")
    assert "kbroker topics create" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "describe", "nope"),
        ("topics", "delete", "nope", "--yes"),
        ("topics", "alter", "nope", "--partitions", "2"),
        ("offsets", "nope"),
        ("consume", "nope"),
    ],
)
async def test_an_unknown_topic_is_one_line(call: Call, arguments: tuple[str, ...]) -> None:
    assert await call(*arguments) == (
        1,
        "",
        "kbroker: Topic 'nope' does not exist. Run 'kbroker topics list' to see all topics.\n",
    )


async def test_if_exists_skips_unknown_topics(call: Call) -> None:
    assert await call("topics", "delete", "nope", "--if-exists", "--yes") == (0, "", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "create", "no spaces"),
        ("topics", "create", "a", "--partitions", "0"),
        ("topics", "create", "a", "--config", "novalue"),
        ("topics", "create", "a", "--config", "retention.ms=1", "--config", "retention.ms=2"),
        ("configs", "alter", "topic", "a", "--append", "cleanup.policy=compact", "--append", "cleanup.policy=delete"),
        ("topics", "alter", "a"),
        ("topics", "create"),
        ("offsets", "a", "--at", "yesterday"),
    ],
)
async def test_a_usage_error_is_one_line_and_code_2(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = await call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--help" in err


async def test_an_unknown_config_is_the_brokers_refusal(call: Call) -> None:
    code, out, err = await call("topics", "create", "orders", "--config", "no.such.config=1")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "INVALID_CONFIG" in err


async def test_offsets_are_shown_as_a_table_and_as_json(call: Call) -> None:
    await call("topics", "create", "orders", "--partitions", "2")
    await call("produce", "orders", "--partition", "1", stdin=b"a\nb\n")
    rows = json.loads((await call("offsets", "orders", "--json")).out)
    assert rows == [
        {"topic": "orders", "partition": 0, "earliest": 0, "latest": 0, "offsets": 0},
        {"topic": "orders", "partition": 1, "earliest": 0, "latest": 2, "offsets": 2},
    ]
    assert (await call("offsets", "orders")).out.splitlines()[2].split() == ["orders", "1", "0", "2", "2"]
    found = json.loads((await call("offsets", "orders", "--at", "0", "--json")).out)
    assert [row["offset"] for row in found] == [None, 0]


async def test_the_cluster_is_described(call: Call, broker: RunningBroker) -> None:
    await call("topics", "create", "orders", "--partitions", "2")
    described = json.loads((await call("cluster", "describe", "--json", "--apis")).out)
    (only,) = described["brokers"]
    assert (only["host"], only["port"], only["controller"]) == (broker.host, broker.port, True)
    assert described["partitions"] == {"total": 2, "without_leader": 0, "under_replicated": 0}
    assert {"key": 18, "name": "ApiVersions", "first": 0, "last": 4} in described["apis"]
    text = (await call("cluster", "describe")).out
    assert "1 topic, 2 partitions (0 offline, 0 under-replicated)" in text


async def test_the_features_of_the_cluster_are_described(call: Call) -> None:
    described = json.loads((await call("cluster", "describe", "--features", "--json")).out)
    levels = {row["feature"]: row["finalized"] for row in described["features"]}
    assert levels["transaction.version"] == 2
    table = (await call("cluster", "describe", "--features")).out
    assert "FEATURE" in table
    assert "SUPPORTED MAX" in table


async def test_only_topics_with_problems_are_listed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    await call("topics", "create", "orders", "--partitions", "3")
    assert await call("topics", "list", "--under-replicated") == (0, "", "No matching partitions.\n")
    healthy = Cluster.topics

    async def topics(cluster: Cluster) -> list[TopicInfo]:
        (topic,) = await healthy(cluster)
        first, second, third = topic.partitions
        bad = (first, second._replace(replicas=(1, 2)), third._replace(leader=-1, isr=(2,), replicas=(1, 2)))
        return [topic._replace(partitions=bad)]

    monkeypatch.setattr(Cluster, "topics", topics)
    rows = [line.split() for line in (await call("topics", "list", "--under-replicated")).out.splitlines()]
    assert rows == [
        ["TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR"],
        ["orders", "1", "1", "1,2", "1"],
        ["orders", "2", "none", "1,2", "2"],
    ]
    (found,) = json.loads((await call("topics", "list", "--unavailable", "--json")).out)
    assert [partition["partition"] for partition in found["partitions"]] == [2]


async def test_topics_with_too_few_replicas_in_sync_are_listed(call: Call) -> None:
    for min_isr in ("1", "2"):
        await call("topics", "create", f"min-{min_isr}", "--config", f"min.insync.replicas={min_isr}")

    async def names(*options: str) -> list[str]:
        return [topic["topic"] for topic in json.loads((await call("topics", "list", "--json", *options)).out)]

    assert await names("--under-min-isr") == ["min-2"]
    assert await names("--at-min-isr") == ["min-1"]
    assert await names("--at-min-isr", "--under-min-isr") == ["min-1", "min-2"]


async def test_no_broker_at_the_bootstrap_is_one_line_that_says_what_to_do(call: Call, broker: RunningBroker) -> None:
    await broker.stop()
    code, out, err = await call("topics", "list")
    assert (code, out) == (1, "")
    assert err == (
        f"kbroker: Could not connect to 127.0.0.1:{broker.port}. Start a broker with 'kbroker serve', "
        "or set --bootstrap.\n"
    )
