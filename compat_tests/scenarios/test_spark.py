"""Spark's own connector reads and writes the broker, in batch and in streaming."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.scenarios.records import consume_with_confluent, produce_with_confluent, sample_records

SQL = pytest.importorskip("pyspark.sql", reason="needs pyspark")


@pytest.fixture(scope="module")
def spark(spark_connector_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SQL.SparkSession.builder.master("local[1]").appName("kbroker compat")
    settings = {
        "spark.jars": ",".join(str(jar) for jar in spark_connector_jars),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def test_spark_reads_what_clients_wrote(bootstrap: str, topic: str, spark: Any) -> None:
    records = sample_records(100)
    produce_with_confluent(bootstrap, topic, records)
    frame = (
        spark.read.format("kafka")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"})
        .load()
    )
    rows = (
        frame.selectExpr("offset", "key", "value", "unix_millis(timestamp) AS at", "headers")
        .orderBy("offset")
        .collect()
    )
    assert [(row["offset"], row["key"], row["value"], row["at"]) for row in rows] == [
        (record.offset, record.key, record.value, record.timestamp_ms) for record in records
    ]
    assert [tuple((header["key"], bytes(header["value"])) for header in row["headers"] or ()) for row in rows] == [
        record.headers for record in records
    ]


def test_clients_read_what_spark_wrote(bootstrap: str, topic: str, spark: Any) -> None:
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS key", "CONCAT('value ', id) AS value")
    frame.write.format("kafka").options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}).save()
    records = consume_with_confluent(bootstrap, topic, 100)
    assert [(record.key, record.value) for record in records] == [
        (str(number).encode(), f"value {number}".encode()) for number in range(100)
    ]


def test_a_stream_goes_on_where_its_checkpoint_ended(bootstrap: str, topic: str, spark: Any, tmp_path: Path) -> None:
    target = f"{topic}-copy"

    def copy_what_is_there() -> None:
        source = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        sink = {"kafka.bootstrap.servers": bootstrap, "topic": target, "checkpointLocation": str(tmp_path / "state")}
        stream = spark.readStream.format("kafka").options(**source).load().select("key", "value")
        query = stream.writeStream.format("kafka").options(**sink).trigger(availableNow=True).start()
        assert query.awaitTermination(90)

    records = sample_records(60)
    produce_with_confluent(bootstrap, topic, records[:40])
    copy_what_is_there()
    produce_with_confluent(bootstrap, topic, records[40:])
    copy_what_is_there()
    copies = consume_with_confluent(bootstrap, target, 60)
    assert [(record.key, record.value) for record in copies] == [(record.key, record.value) for record in records]
