"""The `kbroker` command against both brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache_kafka import JavaTools
from compat_tests.scenarios.conftest import Call
from compat_tests.scenarios.records import (
    FIRST_TIMESTAMP_MS,
    consume_with_confluent,
    produce_with_confluent,
    sample_records,
)
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.log.producers.producer_snapshot import encode_snapshot
from kbroker.log.producers.producer_state import BatchTrace, ProducerEntry
from kbroker.log.segments.aborted_index import AbortedIndex, AbortedTransaction
from kbroker.protocol.records import EndTransactionMarker, Record, build_batch, build_end_transaction_batch

TIME = 1_700_000_000_000


@pytest.fixture
def made_topic(call: Call, topic: str) -> str:
    created = call("topics", "create", topic, "--partitions", "3", "--config", "retention.ms=86400000", "--json").json
    assert created == {"topic": topic, "created": True, "partitions": 3, "replication_factor": 1}
    return topic


def test_a_topic_is_created_listed_described_and_deleted(call: Call, made_topic: str) -> None:
    assert made_topic in [row["topic"] for row in call("topics", "list", "--json").json]
    (described,) = call("topics", "describe", made_topic, "--json").json
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    assert all(
        partition["isr"] == partition["replicas"] == [partition["leader"]] for partition in described["partitions"]
    )
    again = call("topics", "create", made_topic)
    assert (again.code, again.err.count("\n"), "--if-not-exists" in again.err) == (1, 1, True)
    assert call("topics", "delete", made_topic, "--yes").code == 0
    gone = call("topics", "describe", made_topic)
    assert (gone.code, gone.err.count("\n")) == (1, 1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produced_lines_are_consumed(call: Call, topic: str, codec: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(2000))
    written = call("produce", topic, "--compression", codec, "--partition", "0", "--json", stdin=lines)
    assert written.json["records"] == 2000
    read = call("consume", topic)
    assert (read.code, read.out.encode()) == (0, lines)


def test_the_cluster_names_its_one_broker(call: Call, bootstrap: str) -> None:
    described = call("cluster", "describe", "--json").json
    assert [f"{broker['host']}:{broker['port']}" for broker in described["brokers"]] == [bootstrap]
    assert described["partitions"]["without_leader"] == described["partitions"]["under_replicated"] == 0


def test_other_clients_read_what_it_writes_and_it_reads_what_they_write(call: Call, topic: str, bootstrap: str) -> None:
    records = sample_records(20)
    produce_with_confluent(bootstrap, topic, records)
    read = call("consume", topic, "--json").lines
    assert [(record["offset"], record["timestamp"]) for record in read] == [
        (record.offset, record.timestamp_ms) for record in records
    ]
    copy = f"{topic}-copy"
    call("produce", copy, "--format", "json", stdin="\n".join(map(json.dumps, read)).encode())
    assert consume_with_confluent(bootstrap, copy, 20) == records


def test_keys_are_partitioned_as_by_kafkas_producer(
    call: Call, made_topic: str, bootstrap: str, java_tools: JavaTools
) -> None:
    lines = b"".join(b"key-%d:%d\n" % (number, number) for number in range(50))
    call("produce", made_topic, "--key-separator", ":", stdin=lines)
    ours = {line["key"]: line["partition"] for line in call("consume", made_topic, "--json").lines}
    options = ("--property", "parse.key=true", "--property", "key.separator=:")
    java_tools.console_producer(bootstrap, made_topic, lines, *options)
    both = call("consume", made_topic, "--json").lines
    assert len(both) == 100
    assert {record["key"]: record["partition"] for record in both} == ours


def test_offsets_are_found_by_timestamp(call: Call, topic: str) -> None:
    lines = [{"value": str(number), "timestamp": FIRST_TIMESTAMP_MS + 10 * number} for number in range(10)]
    call("produce", topic, "--format", "json", stdin="\n".join(map(json.dumps, lines)).encode())
    assert call("offsets", topic, "--json").json == [
        {"topic": topic, "partition": 0, "earliest": 0, "latest": 10, "offsets": 10}
    ]
    assert call("offsets", topic, "--at", str(FIRST_TIMESTAMP_MS + 41), "--json").json == [
        {"topic": topic, "partition": 0, "offset": 5, "timestamp": FIRST_TIMESTAMP_MS + 50}
    ]
    assert call("consume", topic, "--since", str(FIRST_TIMESTAMP_MS + 71)).out == "8\n9\n"
    assert call("consume", topic, "--offset", "-3", "--max", "2").out == "7\n8\n"


def test_a_group_continues_where_it_stopped(call: Call, topic: str) -> None:
    call("produce", topic, stdin=b"1\n2\n3\n")
    assert call("consume", topic, "--group", topic, "--max", "2") == (0, "1\n2\n", "")
    assert call("consume", topic, "--group", topic) == (0, "3\n", "")
    assert call("consume", topic, "--group", topic) == (0, "", "")


def test_configs_are_shown_and_changed(call: Call, made_topic: str) -> None:
    def value(key: str) -> Any:
        (entry,) = call("configs", "describe", "topic", made_topic, key, "--json").json
        return entry["value"], entry["source"]

    assert value("retention.ms") == ("86400000", "dynamic topic")
    assert call("configs", "alter", "topic", made_topic, "--set", "retention.ms=1000").code == 0
    assert value("retention.ms") == ("1000", "dynamic topic")
    assert call("configs", "alter", "topic", made_topic, "--append", "cleanup.policy=compact").code == 0
    assert value("cleanup.policy") == ("delete,compact", "dynamic topic")
    assert call("topics", "alter", made_topic, "--delete-config", "retention.ms").code == 0
    assert value("retention.ms") == ("604800000", "default")
    bad = call("configs", "alter", "topic", made_topic, "--set", "retention.ms=soon")
    assert (bad.code, bad.err.count("\n"), "INVALID_CONFIG" in bad.err) == (1, 1, True)
    everything = call("configs", "describe", "topic", made_topic, "--all", "--json").json
    assert {"retention.ms", "segment.bytes", "min.insync.replicas"} <= {entry["name"] for entry in everything}


def test_records_are_deleted_copied_and_measured(call: Call, made_topic: str) -> None:
    lines = [{"key": str(number), "value": str(number), "partition": 1} for number in range(10)]
    call("produce", made_topic, "--format", "json", stdin="\n".join(map(json.dumps, lines)).encode())
    deleted = call("records", "delete", made_topic, "--partition", "1", "--before", "4", "--yes", "--json").json
    assert deleted == [{"topic": made_topic, "partition": 1, "earliest": 4}]
    copy = f"{made_topic}-copy"
    assert call("topics", "copy", made_topic, copy, "--json").json["records"] == 6
    assert [line["value"] for line in call("consume", copy, "--partition", "1", "--json").lines] == list("456789")
    assert call("configs", "describe", "topic", copy, "retention.ms", "--json").json[0]["value"] == "86400000"
    written = call("perf", "produce", copy, "--records", "100", "--size", "10", "--json").json
    assert (written["records"], written["latency_ms"]["p50"] > 0) == (100, True)
    assert call("perf", "consume", copy, "--json").json["records"] == 106
    (directory,) = call("log-dirs", "describe", copy, "--json").json
    assert sum(replica["size_bytes"] > 0 for replica in directory["replicas"]) >= 1
    assert [row["result"] for row in call("leaders", "elect", copy, "--json").json] == ["not needed"] * 3


def test_quotas_features_and_producers_are_shown(call: Call, made_topic: str) -> None:
    entity = ("--client-id", made_topic)
    assert call("quotas", "set", *entity, "producer_byte_rate=1048576").code == 0
    quotas = {"entity": {"client-id": made_topic}, "quotas": {"producer_byte_rate": 1048576.0}}
    assert call("quotas", "list", *entity, "--json").json == [quotas]
    assert call("quotas", "delete", *entity).code == 0
    assert call("quotas", "list", *entity, "--json").json == []
    features = call("cluster", "describe", "--features", "--json").json["features"]
    assert {"transaction.version", "group.version"} <= {row["feature"] for row in features}
    call("produce", made_topic, "--partition", "2", stdin=b"1\n2\n")
    (producer,) = call("transactions", "producers", made_topic, "--json").json
    assert (producer["partition"], producer["last_sequence"], producer["start_offset"]) == (2, 1, -1)
    assert call("transactions", "find-hanging", made_topic) == (0, "", "No hanging transactions.\n")


def test_a_topic_gets_more_partitions_and_never_fewer(call: Call, made_topic: str) -> None:
    assert call("topics", "alter", made_topic, "--partitions", "5").code == 0
    (described,) = call("topics", "describe", made_topic, "--json").json
    assert len(described["partitions"]) == 5
    fewer = call("topics", "alter", made_topic, "--partitions", "4")
    assert (fewer.code, fewer.err.count("\n"), "INVALID_PARTITIONS" in fewer.err) == (1, 1, True)


def test_an_unknown_config_is_refused_in_one_line(call: Call, topic: str) -> None:
    refused = call("topics", "create", topic, "--config", "no.such.config=1")
    assert (refused.code, refused.err.count("\n"), "INVALID_CONFIG" in refused.err) == (1, 1, True)


def segment_files(directory: Path) -> list[Path]:
    """Returns a segment with all kinds of batches, and its indexes."""
    directory.mkdir()
    path = directory / "00000000000000000010.log"
    headers = (("a", b"1"), ("b", None))
    batches = [
        build_batch([Record(10, TIME, b"key", b"value", headers), Record(11, TIME + 5, None, None)], leader_epoch=2),
        build_batch([Record(12 + number, TIME, b"k", b"v" * 50) for number in range(9)], codec=1),
        build_batch(
            [Record(21, TIME, b"k", b"v"), Record(22, TIME, b"k", b"v")],
            codec=4,
            producer_id=7,
            producer_epoch=1,
            base_sequence=5,
            is_transactional=True,
        ),
        build_end_transaction_batch(
            EndTransactionMarker(False, 3), producer_id=7, producer_epoch=1, timestamp=TIME, base_offset=23
        ),
        build_batch([Record(24, TIME, None, b"appended")], log_append_time=TIME + 9),
        build_batch([Record(25, TIME, b"k", None)], delete_horizon=TIME + 100),
    ]
    path.write_bytes(b"".join(batches))
    index = path.with_suffix(".index")
    index.write_bytes((10).to_bytes(4, "big") + len(batches[0]).to_bytes(4, "big"))
    time_index = path.with_suffix(".timeindex")
    time_index.write_bytes((TIME + 5).to_bytes(8, "big") + (1).to_bytes(4, "big"))
    aborted = AbortedIndex(OsFileSystem(), str(path.with_suffix(".txnindex")))
    aborted.append(AbortedTransaction(7, 21, 23, 24))
    aborted.write()
    snapshot = path.with_suffix(".snapshot")
    entry = ProducerEntry(1, (BatchTrace(5, 6, 21, 22, TIME),), TIME, 3, 21)
    snapshot.write_bytes(encode_snapshot({7: entry}))
    return [path, index, time_index, path.with_suffix(".txnindex"), snapshot]


@pytest.mark.parametrize("options", [(), ("--deep-iteration",), ("--print-data-log",)])
def test_dump_log_prints_what_kafkas_tool_prints(
    java_tools: JavaTools, tmp_path: Path, options: tuple[str, ...]
) -> None:
    files = segment_files(tmp_path / "orders-0")
    command = [sys.executable, "-m", "kbroker", "dump-log", *map(str, files), *options]
    ours = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ours == java_tools.dump_log(*files, options=options)
