"""`kbroker-log` on Spark gives the rows that Spark's Kafka source gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import UserError
from kbroker.testing import Broker

pytest.importorskip("pyspark", reason="needs pyspark")
pytest.importorskip("pyarrow", reason="needs pyarrow")

TIME = 1_700_000_000_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with a topic of two partitions and several segments, with nulls, headers and compressed batches."""
    from confluent_kafka import Producer

    with Broker(data_dir=tmp_path / "data") as running:
        running.create_topic("t", 2, segment_bytes=16384)
        for codec in ("none", "zstd"):
            producer = Producer({"bootstrap.servers": running.bootstrap, "compression.type": codec, "batch.size": 4000})
            for number in range(500):
                producer.produce(
                    "t",
                    key=None if number % 5 == 0 else f"k{number}",
                    value=None if number % 7 == 0 else f"v{number}" * 40,
                    headers=[("h", b"x"), ("n", None)] if number % 3 == 0 else None,
                    partition=number % 2,
                    timestamp=TIME + number,
                )
            assert producer.flush(60) == 0
        yield running


def sorted_rows(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row["partition"], row["offset"]))


def test_rows_and_schema_are_those_of_sparks_kafka_source(spark: Any, broker: Broker, tmp_path: Path) -> None:
    from kbroker.pipeline import read_segments

    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "includeHeaders": "true"}
    expected = spark.read.format("kafka").options(**options).load()
    found = read_segments(spark, str(tmp_path / "data"), topics="t", include_headers=True)
    assert found.schema.simpleString() == expected.schema.simpleString()
    assert sorted_rows(found) == sorted_rows(expected)
    assert found.rdd.getNumPartitions() > 2
    late = read_segments(spark, str(tmp_path / "data"), topics=["t"], starting_timestamp=TIME + 490)
    assert [row["offset"] for row in sorted_rows(late.select("partition", "offset"))] == [
        *range(245, 250),
        *range(495, 500),
        *range(245, 250),
        *range(495, 500),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "absent"}, "has no topic absent"),
        ({"pattern": "("}, "is not a regular expression"),
        ({"topics": "t", "pattern": "t"}, "not both"),
        ({"starting_offset": -1}, "startingOffset is '-1'"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    spark: Any, broker: Broker, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    from kbroker.pipeline import read_segments

    with pytest.raises(UserError, match=message):
        read_segments(spark, str(tmp_path / "data"), **options)
