"""Audits on Spark: records counted at a broker, in a table and in a mirrored topic, compared with producers' counts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trio
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from kbroker.cli.commands.pipeline import command
from kbroker.errors import UserError
from kbroker.pipeline.audit_counts import AuditCount, ProducerCounts
from kbroker.pipeline.audit_file import AuditPlan, Hop
from kbroker.pipeline.definition import AVAILABLE_NOW, TableSink, TopicsToRead, read_pipeline
from kbroker.pipeline.mirror_copies import ORIGIN_HEADER
from kbroker.testing import Broker
from tests.cluster.conftest import RunningCluster
from tests.pipeline.topics import Addressed

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipelines" / "audit.toml"
MINUTE = 60_000
# Recent, so that retention does not delete the records.
START = int(time.time() // 60 - 60) * MINUTE


class FixedClock:
    def now_ms(self) -> int:
        return START + 30 * MINUTE

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def mirror_broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def write_records(broker: Addressed, topic: str, timestamps: Iterable[int], *, is_copy: bool = False) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number, timestamp in enumerate(timestamps):
        headers: list[Any] = [(ORIGIN_HEADER, f"A:{number}".encode())] if is_copy else []
        producer.produce(topic, b"value", timestamp=timestamp, headers=headers)
    assert producer.flush(60) == 0


def publish(broker: Broker, topic: str, counts: Iterable[AuditCount]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for count in counts:
        producer.produce(topic, count.value, count.key)
    assert producer.flush(60) == 0


def write_table(spark: Any, path: Path, timestamps: Iterable[int]) -> None:
    rows = [(timestamp, "orders") for timestamp in timestamps]
    frame = spark.createDataFrame(rows, "at BIGINT, topic STRING").selectExpr("timestamp_millis(at) timestamp", "topic")
    frame.write.mode("append").partitionBy("topic").parquet(str(path))


def run_audit(spark: Any, plan: AuditPlan, directory: Path) -> str:
    """Counts what is there; returns the table of the report."""
    from kbroker.pipeline import audit

    job = audit(
        spark,
        bootstrap=plan.bootstrap,
        topic=plan.topic,
        hops=plan.hops,
        report=plan.report,
        checkpoint=str(directory / "state"),
        trigger=AVAILABLE_NOW,
        clock=FixedClock(),
    )
    job.wait()
    assert plan.report is not None
    assert (Path(plan.report) / "report.svg").read_text().startswith("<svg")
    return (Path(plan.report) / "report.txt").read_text()


def results(table: str) -> list[str]:
    """Returns the lines without topic and time: counts and result."""
    return [" ".join(line.split()[3:]) for line in table.splitlines()[1:]]


def test_the_audit_finds_loss_and_duplicates_by_window(
    spark: Any, broker: Broker, mirror_broker: Broker, tmp_path: Path
) -> None:
    first = [START + 10 * number for number in range(10)]
    second = [START + MINUTE + 10 * number for number in range(10)]
    write_records(broker, "orders", [*first, *second])
    producer = ProducerCounts("shop")
    for timestamp in [*first, *second, START + MINUTE]:
        producer.add("orders", timestamp)
    publish(broker, "audit", producer.changed())
    write_table(spark, tmp_path / "table", [*first, *second[:-2]])
    write_records(mirror_broker, "orders", [*first, first[0], *second], is_copy=True)
    write_records(mirror_broker, "orders", [START])
    table = TableSink("parquet", str(tmp_path / "table"))
    plan = AuditPlan(
        broker.bootstrap,
        "audit",
        (
            Hop("broker", TopicsToRead(broker.bootstrap, ("orders",)), "producer"),
            Hop("archive", table, "broker"),
            Hop("mirror", TopicsToRead(mirror_broker.bootstrap, ("orders",)), "broker", copies_only=True),
        ),
        report=str(tmp_path / "report"),
    )
    assert results(run_audit(spark, plan, tmp_path)) == [
        "10 10 10 11 mirror: 1 duplicate after broker",
        "11 10 8 10 broker: 1 lost after producer; archive: 2 lost after broker",
    ]
    write_table(spark, tmp_path / "table", second[-2:])
    publish(broker, "audit", [AuditCount("producer", "shop", "orders", START + MINUTE, MINUTE, 10)])
    assert results(run_audit(spark, plan, tmp_path)) == [
        "10 10 10 11 mirror: 1 duplicate after broker",
        "10 10 10 10 ok",
    ]


def test_a_batch_that_is_repeated_after_a_crash_counts_once(spark: Any, broker: Broker, tmp_path: Path) -> None:
    write_records(broker, "orders", [START] * 5)
    plan = AuditPlan(
        broker.bootstrap,
        "audit",
        (Hop("broker", TopicsToRead(broker.bootstrap, ("orders",)), "producer"),),
        report=str(tmp_path / "report"),
    )
    assert results(run_audit(spark, plan, tmp_path)) == ["- 5 ok"]
    (commit,) = (tmp_path / "state" / "main" / "commits").glob("[0-9]*")
    commit.unlink()  # As if the driver had been killed after it published the counts.
    (tmp_path / "state" / "main" / "commits" / f".{commit.name}.crc").unlink(missing_ok=True)
    write_records(broker, "orders", [START] * 2)
    assert results(run_audit(spark, plan, tmp_path)) == ["- 7 ok"]


@pytest.mark.slow
async def test_a_cluster_of_three_is_audited_while_it_loses_a_broker(
    spark: Any, three: RunningCluster, tmp_path: Path
) -> None:
    hop = Hop("broker", TopicsToRead(three.bootstrap, ("orders",)), "producer")
    plan = AuditPlan(three.bootstrap, "audit", (hop,), report=str(tmp_path / "report"))
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    creation = admin.create_topics([NewTopic("orders", 2, 3)])["orders"]

    def count(records: int) -> list[str]:
        creation.result(120)
        write_records(three, "orders", [START] * records)
        return results(run_audit(spark, plan, tmp_path))

    assert await trio.to_thread.run_sync(count, 5) == ["- 5 ok"]
    await three.brokers[1].kill()
    assert await trio.to_thread.run_sync(count, 2) == ["- 7 ok"]


def test_a_table_that_does_not_exist_is_one_line(spark: Any, broker: Broker, tmp_path: Path) -> None:
    hop = Hop("archive", TableSink("parquet", str(tmp_path / "nowhere")), "producer")
    with pytest.raises(UserError, match=r"Hop archive cannot be audited: .*The table must exist") as caught:
        run_audit(spark, AuditPlan(broker.bootstrap, "audit", (hop,)), tmp_path)
    assert "\n" not in str(caught.value)


def test_the_example_runs(spark: Any, broker: Broker, mirror_broker: Broker, tmp_path: Path) -> None:
    from kbroker.pipeline.auditing import start

    text = EXAMPLE.read_text().replace("127.0.0.1:9092", broker.bootstrap)
    (tmp_path / "audit.toml").write_text(text.replace("127.0.0.1:9192", mirror_broker.bootstrap))
    write_records(broker, "orders", [START] * 3)
    write_table(spark, tmp_path / "lake" / "orders", [START] * 3)
    write_records(mirror_broker, "orders", [START] * 2, is_copy=True)
    pipeline = replace(read_pipeline(tmp_path / "audit.toml"), trigger=AVAILABLE_NOW)
    (job,) = start(spark, pipeline)
    job.wait()  # type: ignore[attr-defined]
    table = (tmp_path / "report" / "report.txt").read_text()
    assert results(table) == ["- 3 3 2 mirror: 1 lost after broker"]
    shown = CliRunner().invoke(command, ["status", str(tmp_path / "audit.toml"), "--json"])
    hops = json.loads(shown.stdout)
    assert [(hop["query"], hop["lag"]) for hop in hops] == [
        ("broker", {"orders": 0}),
        ("archive", None),
        ("mirror", {"orders": 0}),
    ]
