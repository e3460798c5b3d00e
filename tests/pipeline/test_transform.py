"""Transforms and replays: topics to topics, with windows, joins, dead letters, and records as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import UserError
from kbroker.pipeline.definition import (
    AVAILABLE_NOW,
    DeadLetters,
    Deduplication,
    SqlStep,
    TableOnDisk,
    TableSink,
    TopicSink,
    ValueFormat,
    Watermark,
)
from kbroker.pipeline.kinds import ReplayJob
from kbroker.testing import Broker
from tests.pipeline.topics import read_all

Produce = Callable[..., None]

pytestmark = pytest.mark.slow

TOTALS = """
SELECT region AS key, to_json(struct(window.start AS start, region, count(*) AS orders, sum(amount) AS total)) AS value
FROM records JOIN customers USING (customer)
GROUP BY window(timestamp, '1 minute'), region
"""


def order(number: int, customer: str) -> str:
    return json.dumps({"id": number, "customer": customer, "amount": 2.5})


def finish(spark: Any) -> None:
    for query in spark.streams.active:
        query.awaitTermination()


def test_a_window_over_a_join_without_duplicates_and_with_dead_letters(
    spark: Any, broker: Broker, produce: Produce, tmp_path: Path
) -> None:
    from kbroker.pipeline import transform

    (tmp_path / "customers.csv").write_text("customer,region\nann,eu\nbob,us\n")
    for topic in ("orders", "totals", "orders-bad"):
        broker.create_topic(topic, 2 if topic == "orders" else 1)
    options: dict[str, Any] = {
        "bootstrap": broker.bootstrap,
        "topics": ["orders"],
        "to": "totals",
        "checkpoint": str(tmp_path / "state"),
        "values": ValueFormat(
            "json", "id BIGINT, customer STRING, amount DOUBLE", dead_letters=DeadLetters("orders-bad")
        ),
        "tables": {"customers": TableOnDisk(str(tmp_path / "customers.csv"), "csv", {"header": "true"})},
        "steps": [
            SqlStep("SELECT timestamp, value.* FROM records"),
            Watermark("timestamp", "10 seconds"),
            Deduplication(("id",)),
        ],
        "sql": TOTALS,
        "trigger": AVAILABLE_NOW,
        "name": "totals",
    }
    produce("orders", [(None, order(number, "ann")) for number in range(10)], timestamp=60_000)
    produce("orders", [(None, order(number, "ann")) for number in range(5)], timestamp=61_000)
    produce("orders", [("x", "{rubbish")], timestamp=61_000, headers={"trace": "1"})
    transform(spark, **options)
    finish(spark)
    produce("orders", [(None, order(100 + number, "bob")) for number in range(3)], timestamp=62_000)
    produce("orders", [(None, order(200, "ann"))], timestamp=600_000, partition=0)
    produce("orders", [(None, order(201, "ann"))], timestamp=600_000, partition=1)
    transform(spark, **options)
    finish(spark)

    totals = [json.loads(record.value()) for record in read_all(broker.bootstrap, "totals", 2)]
    assert sorted((total["region"], total["orders"], total["total"]) for total in totals) == [
        ("eu", 10, 25.0),
        ("us", 3, 7.5),
    ]
    (letter,) = read_all(broker.bootstrap, "orders-bad", 1)
    assert (letter.key(), letter.value()) == (b"x", b"{rubbish")
    headers = dict(letter.headers())
    assert headers["trace"] == b"1"
    assert headers["kbroker.reason"] == b"the value is not JSON of the schema"
    assert headers["kbroker.topic"] == b"orders"
    with pytest.raises(UserError, match=r"The last step returns 'value' as struct<.*Use to_json\(value\)"):
        transform(spark, **{**options, "steps": (), "sql": None})


def test_a_replay_restores_keys_headers_timestamps_and_partitions(
    spark: Any, broker: Broker, produce: Produce, tmp_path: Path
) -> None:
    from kbroker.pipeline import archive, replay
    from kbroker.pipeline.replaying import prepare_replay

    lake = str(tmp_path / "lake")
    broker.create_topic("clicks", 3)
    broker.create_topic("again", 3)
    broker.create_topic("narrow", 1)
    for partition in range(3):
        for second in (0, 20):
            records = [(f"key-{number}", f"{second}-{number}") for number in range(20)]
            produce("clicks", records, partition=partition, timestamp=1_000_000 + second * 1000, headers={"p": "x"})
    archive(
        spark,
        bootstrap=broker.bootstrap,
        topics=["clicks"],
        path=lake,
        checkpoint=str(tmp_path / "state"),
        trigger=AVAILABLE_NOW,
        name="clicks",
    ).awaitTermination()

    places: dict[str, Any] = {"bootstrap": broker.bootstrap, "path": lake}
    with pytest.raises(UserError, match=r"Topic .narrow. has 1 partitions, but the table has records of 3"):
        replay(spark, to="narrow", checkpoint=str(tmp_path / "narrow"), **places)
    assert replay(spark, to="again", checkpoint=str(tmp_path / "again"), **places) == 120
    assert replay(spark, to="again", checkpoint=str(tmp_path / "again"), **places) == 120

    def facts(topic: str) -> list[Any]:
        records = read_all(broker.bootstrap, topic, 120)
        return [
            [(r.key(), r.value(), r.headers(), r.timestamp()[1]) for r in records if r.partition() == partition]
            for partition in range(3)
        ]

    assert facts("again") == facts("clicks")

    class StandingClock:
        def now_ms(self) -> int:
            return 0

        def monotonic(self) -> float:
            return 0.0

    broker.create_topic("paced", 3)
    pauses: list[float] = []
    job = ReplayJob(TableSink("parquet", lake), TopicSink(broker.bootstrap, "paced"), speed=2.0)
    run = prepare_replay(
        spark, job, name="paced", location=str(tmp_path / "paced"), clock=StandingClock(), pause=pauses.append
    )
    run.run()
    assert run.failure() is None
    assert pauses == [0.0, 10.0]
    assert [report.rows_out for report in run.reports()] == [60, 60]
    read_all(broker.bootstrap, "paced", 120)


def test_values_are_parsed_from_csv_and_avro(spark: Any) -> None:

    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": ["null", "long"]}, {"name": "name", "type": "string"}],
    }
    header = b"\x00\x00\x00\x00\x07"
    avro = [header + b"\x02\x06\x04ab", header + b"\x00\x04cd", header + b"\xff", None]
    values = ValueFormat("avro", json.dumps(schema), skip_bytes=5, dead_letters=DeadLetters(path="unused"))
    assert parsed(spark, avro, values) == ([(3, "ab"), (None, "cd"), None], [header + b"\xff"])
    csv = [b"3;ab", b"x;cd", None]
    values = ValueFormat("csv", "id BIGINT, name STRING", options={"sep": ";"}, dead_letters=DeadLetters(path="unused"))
    assert parsed(spark, csv, values) == ([(3, "ab"), None], [b"x;cd"])


def parsed(spark: Any, contents: list[bytes | None], values: ValueFormat) -> tuple[list[Any], list[bytes]]:
    from kbroker.pipeline.values import parse_values

    frame = spark.createDataFrame([(content,) for content in contents], "value BINARY")
    records, rejected = parse_values(frame, values)
    good = [None if row.value is None else tuple(row.value) for row in records.collect()]
    return good, [bytes(row.value) for row in rejected.collect()]
