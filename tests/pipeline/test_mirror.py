"""Mirrors on Spark between two brokers: records as they were, no loops, topics and groups followed, kills survived."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trio
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic  # type: ignore[attr-defined]

from kbroker.errors import UserError
from kbroker.pipeline.definition import AVAILABLE_NOW, read_pipeline
from kbroker.pipeline.mirror_copies import ORIGIN_HEADER
from kbroker.testing import Broker
from tests.cluster.conftest import RunningCluster
from tests.pipeline.committed_records import read_committed
from tests.pipeline.topics import Addressed

pytest.importorskip("pyspark", reason="needs pyspark")
pytest.importorskip("pyarrow", reason="needs pyarrow")

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipelines" / "mirror.toml"
# Recent, so that retention does not delete the records.
FIRST_MS = int(time.time() - 3600) * 1000
WAIT_S = 240.0


@pytest.fixture
def target() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def run_mirror(spark: Any, source: Addressed, target: Addressed, directory: Path, **options: Any) -> None:
    """Mirrors what is there now."""
    from kbroker.pipeline import mirror

    mirror(
        spark,
        bootstrap=source.bootstrap,
        to=target.bootstrap,
        pattern="orders.*",
        checkpoint=str(directory),
        name=directory.name,
        trigger=AVAILABLE_NOW,
        **options,
    ).wait()


def write(broker: Addressed, topic: str, numbers: range, partitions: int = 2) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in numbers:
        producer.produce(
            topic,
            str(number).encode(),
            None if number % 5 == 0 else f"key {number}".encode(),
            partition=number % partitions,
            timestamp=FIRST_MS + number,
            headers=[("number", str(number).encode()), ("empty", None)] if number % 3 else [],
        )
    assert producer.flush(60) == 0


def rows(broker: Addressed, topic: str, partitions: int = 2) -> list[Any]:
    """Returns the records of a topic without their offsets and without the header of the mirror."""
    return [
        (
            message.partition(),
            message.key(),
            message.value(),
            message.timestamp(),
            [header for header in message.headers() or [] if header[0] != ORIGIN_HEADER],
        )
        for message in sorted(
            read_committed(broker.bootstrap, topic, partitions=partitions),
            key=lambda message: (message.partition(), message.offset()),
        )
    ]


def values(broker: Addressed, topic: str, partitions: int = 2) -> list[int]:
    return sorted(int(row[2]) for row in rows(broker, topic, partitions))


def test_records_arrive_as_they_were(spark: Any, broker: Broker, target: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders", 2, retention_ms=-1)
    broker.create_topic("no-orders", 1)
    write(broker, "no-orders", range(1, 5), 1)
    write(broker, "orders", range(100))
    # An aborted transaction is not mirrored, and its marker makes the offsets of the two clusters differ.
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "aborting"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", b"-1", partition=0)
    producer.flush(60)
    producer.abort_transaction(60)
    write(broker, "orders", range(100, 120))
    run_mirror(spark, broker, target, tmp_path)
    assert len(rows(target, "orders")) == 120
    assert rows(target, "orders") == rows(broker, "orders")
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    assert "no-orders" not in admin.list_topics(timeout=60).topics


def test_a_group_moves_over_and_back(spark: Any, broker: Broker, target: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders", 1)
    write(broker, "orders", range(20), 1)

    def consume(cluster: Broker, count: int) -> list[int]:
        """Reads as a group member, commits, and leaves."""
        config = {"bootstrap.servers": cluster.bootstrap, "group.id": "billing", "auto.offset.reset": "error"}
        if cluster is broker:
            config["auto.offset.reset"] = "earliest"
        consumer = confluent_kafka.Consumer({**config, "enable.auto.commit": False})
        consumer.subscribe(["orders"])
        read = [int(message.value() or b"") for message in consumer.consume(count, WAIT_S)]
        consumer.commit(asynchronous=False)
        consumer.close()
        return read

    assert consume(broker, 8) == list(range(8))
    run_mirror(spark, broker, target, tmp_path)
    write(target, "orders", range(100, 103), 1)  # A record of the target itself: offsets differ from here on.
    assert consume(target, 4) == [8, 9, 10, 11]
    write(broker, "orders", range(20, 30), 1)
    run_mirror(spark, broker, target, tmp_path)
    assert consume(broker, 10) == list(range(12, 22))
    run_mirror(spark, broker, target, tmp_path)
    assert consume(target, 8) == list(range(22, 30))


def test_mirrors_both_ways_do_not_copy_their_copies(spark: Any, broker: Broker, target: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders", 2)
    write(broker, "orders", range(10))
    for first in (100, 110):
        run_mirror(spark, broker, target, tmp_path / "over", groups=None)
        write(target, "orders", range(first, first + 10))
        run_mirror(spark, target, broker, tmp_path / "back", groups=None)
    run_mirror(spark, broker, target, tmp_path / "over", groups=None)
    expected = [*range(10), *range(100, 120)]
    assert values(broker, "orders") == expected
    assert values(target, "orders") == expected


def test_a_running_mirror_follows_new_topics_and_partitions(
    spark: Any, broker: Broker, target: Broker, tmp_path: Path
) -> None:
    from kbroker.pipeline import mirror

    broker.create_topic("orders", 1)
    write(broker, "orders", range(5), 1)
    job = mirror(
        spark,
        bootstrap=broker.bootstrap,
        to=target.bootstrap,
        pattern="orders.*",
        name="live",
        checkpoint=str(tmp_path),
    )
    try:
        job.query.processAllAvailable()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        grown = NewPartitions("orders", 3)
        admin.create_partitions([grown])["orders"].result(60)
        broker.create_topic("orders-new", 2, cleanup_policy="compact")
        write(broker, "orders", range(5, 20), 3)
        write(broker, "orders-new", range(1, 4))
        job.query.processAllAvailable()
        assert [report.lag for report in job.reports()][-1] == {"orders": 0, "orders-new": 0}
    finally:
        job.stop()
    assert values(target, "orders", 3) == list(range(20))
    assert values(target, "orders-new") == [1, 2, 3]
    resource = ConfigResource("topic", "orders-new")
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    configs = admin.describe_configs([resource])[resource].result(60)
    assert configs["cleanup.policy"].value == "compact"


def commit(cluster: Addressed, offsets: list[int]) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing"})
    positions = [confluent_kafka.TopicPartition("orders", index, offset) for index, offset in enumerate(offsets)]
    consumer.commit(offsets=positions, asynchronous=False)
    consumer.close()


def committed(cluster: Addressed) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing"})
    found = consumer.committed([confluent_kafka.TopicPartition("orders", index) for index in (0, 1)], WAIT_S)
    consumer.close()
    return [position.offset for position in found]


@pytest.mark.slow
async def test_a_cluster_of_three_is_mirrored_while_it_loses_a_broker(
    spark: Any, three: RunningCluster, target: Broker, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    creation = admin.create_topics([NewTopic("orders", 2, 3)])["orders"]

    def before_the_loss() -> None:
        creation.result(WAIT_S)
        write(three, "orders", range(40))
        commit(three, [5, 6])
        run_mirror(spark, three, target, tmp_path / "mirror")

    def after_the_loss() -> None:
        write(three, "orders", range(40, 60))
        run_mirror(spark, three, target, tmp_path / "mirror")
        assert values(target, "orders") == list(range(60))
        assert rows(target, "orders") == rows(three, "orders")
        assert committed(target) == [5, 6]

    await trio.to_thread.run_sync(before_the_loss)
    await three.brokers[1].kill()
    await trio.to_thread.run_sync(after_the_loss)


@pytest.mark.slow
async def test_a_broker_is_mirrored_into_a_cluster_of_three_that_loses_a_broker(
    spark: Any, broker: Broker, three: RunningCluster, tmp_path: Path
) -> None:
    broker.create_topic("orders", 2)

    def before_the_loss() -> None:
        write(broker, "orders", range(40))
        commit(broker, [5, 6])
        run_mirror(spark, broker, three, tmp_path / "mirror")

    def after_the_loss() -> None:
        write(broker, "orders", range(40, 60))
        run_mirror(spark, broker, three, tmp_path / "mirror")
        assert rows(three, "orders") == rows(broker, "orders")
        assert committed(three) == [5, 6]

    await trio.to_thread.run_sync(before_the_loss)
    await three.brokers[1].kill()
    await trio.to_thread.run_sync(after_the_loss)


def test_a_cluster_is_not_mirrored_to_itself(spark: Any, broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Source and target are the same cluster"):
        run_mirror(spark, broker, broker, tmp_path)


def test_the_example_runs(spark: Any, broker: Broker, target: Broker, tmp_path: Path) -> None:
    from kbroker.pipeline.mirroring import start

    text = EXAMPLE.read_text().replace("127.0.0.1:9092", broker.bootstrap)
    (tmp_path / "mirror.toml").write_text(text.replace("127.0.0.1:9192", target.bootstrap))
    for topic in ("orders", "payments-eu", "other"):
        broker.create_topic(topic, 2)
        write(broker, topic, range(1, 10))
    pipeline = replace(read_pipeline(tmp_path / "mirror.toml"), trigger=AVAILABLE_NOW)
    (job,) = start(spark, pipeline)
    job.wait()  # type: ignore[attr-defined]
    for topic in ("orders", "payments-eu"):
        assert values(target, topic) == list(range(1, 10))


@pytest.mark.slow
def test_a_killed_driver_mirrors_each_record_once(
    spark: Any,
    spark_jars: list[str],
    spark_conf: Mapping[str, str],
    broker: Broker,
    target: Broker,
    tmp_path: Path,
) -> None:
    text = EXAMPLE.read_text().replace("127.0.0.1:9092", broker.bootstrap)
    text = text.replace("127.0.0.1:9192", target.bootstrap).replace("[target]", "max_records_per_batch = 10\n[target]")
    (tmp_path / "mirror.toml").write_text(text)
    broker.create_topic("orders", 2)
    write(broker, "orders", range(80))
    begun = tmp_path / "state" / "mirror" / "main" / "offsets"
    output = tmp_path / "driver.log"
    command = [sys.executable, "-m", "tests.pipeline.mirror_driver", str(tmp_path / "mirror.toml")]
    with output.open("wb") as file:
        driver = subprocess.Popen(
            [*command, ",".join(spark_jars), json.dumps(dict(spark_conf))],
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + WAIT_S
        while len(list(begun.glob("[0-9]*"))) < 3:  # Spark writes the offsets of a batch before its records.
            assert driver.poll() is None, output.read_text()[-3000:]
            assert time.monotonic() < deadline, output.read_text()[-3000:]
            time.sleep(0.002)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    # pytest ends a test that hangs; this one has just made progress.
    faulthandler.dump_traceback_later(WAIT_S, exit=True, file=sys.__stderr__ or 2)
    write(broker, "orders", range(80, 120))
    pipeline = read_pipeline(tmp_path / "mirror.toml")
    run_mirror_file(spark, replace(pipeline, trigger=AVAILABLE_NOW))
    assert values(target, "orders") == list(range(120))
    assert rows(target, "orders") == rows(broker, "orders")


def run_mirror_file(spark: Any, pipeline: Any) -> None:
    from kbroker.pipeline.mirroring import start

    (job,) = start(spark, pipeline)
    job.wait()  # type: ignore[attr-defined]
