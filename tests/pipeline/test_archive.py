"""Archives: topics to Parquet, Delta and Iceberg, with new topics, new columns and dead letters, each record once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import UserError
from kbroker.pipeline.definition import AVAILABLE_NOW, DeadLetters, SqlStep, ValueFormat
from kbroker.testing import Broker

Produce = Callable[..., None]

pytestmark = pytest.mark.slow


def orders(count: int) -> list[tuple[str, str]]:
    return [(f"key-{number}", f'{{"id": {number}, "amount": 1.5}}') for number in range(count)]


def test_topics_by_pattern_become_a_table_that_grows_by_topics_and_columns(
    spark: Any, broker: Broker, produce: Produce, tmp_path: Path
) -> None:
    from kbroker.pipeline import archive

    letters = DeadLetters(path=str(tmp_path / "bad"))
    places: dict[str, Any] = {"path": str(tmp_path / "lake"), "checkpoint": str(tmp_path / "state"), "name": "grows"}

    def run(schema: str) -> None:
        values = ValueFormat("json", schema, dead_letters=letters)
        query = archive(
            spark, bootstrap=broker.bootstrap, pattern="orders-.*", values=values, trigger=AVAILABLE_NOW, **places
        )
        query.awaitTermination()
        for other in spark.streams.active:
            other.awaitTermination()

    broker.create_topic("orders-eu", 2)
    produce("orders-eu", orders(100), headers={"source": "web"}, timestamp=86_400_000)
    produce("orders-eu", [("bad", "{rubbish"), ("type", '{"id": "x"}'), ("none", None), ("empty", "")])
    run("id BIGINT")
    broker.create_topic("orders-us", 1)
    produce("orders-us", orders(50), timestamp=86_400_000)
    run("id BIGINT, amount DOUBLE")

    table = spark.read.option("mergeSchema", "true").parquet(places["path"])
    assert table.count() == 151
    assert table.select("topic", "partition", "offset").distinct().count() == 151
    assert (tmp_path / "lake" / "topic=orders-us" / "date=1970-01-02").is_dir()
    (row,) = table.filter("key = 'key-7' AND topic = 'orders-eu'").collect()
    assert (row.value.id, row.value.amount) == (7, None)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("source", b"web")]
    assert table.filter("topic = 'orders-us'").selectExpr("sum(value.amount)").collect()[0][0] == 75.0
    assert table.filter("key = 'none' AND value IS NULL").count() == 1

    bad = {bytes(row.key): row for row in spark.read.parquet(str(tmp_path / "bad")).collect()}
    assert {key: bytes(row.value) for key, row in bad.items()} == {
        b"bad": b"{rubbish",
        b"type": b'{"id": "x"}',
        b"empty": b"",
    }
    assert bad[b"bad"].reason == "the value is not JSON of the schema"
    with pytest.raises(
        UserError, match=r"Column value\.id is bigint in .*lake and would become string\. Keep its type"
    ):
        run("id STRING")


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_delta_and_iceberg_take_new_columns(
    kind: str, spark: Any, broker: Broker, produce: Produce, tmp_path: Path
) -> None:
    from kbroker.pipeline import archive
    from kbroker.pipeline.archiving import iceberg_table
    from kbroker.pipeline.definition import TableSink

    path = str(tmp_path / "orders")

    def run(*columns: str) -> None:
        archive(
            spark,
            bootstrap=broker.bootstrap,
            topics=["orders"],
            path=path,
            format=kind,
            checkpoint=str(tmp_path / "state"),
            steps=[SqlStep(f"SELECT topic, partition, offset, timestamp, {', '.join(columns)} FROM records")],
            trigger=AVAILABLE_NOW,
            name=f"to-{kind}",
        ).awaitTermination()

    broker.create_topic("orders", 2)
    produce("orders", orders(40))
    run("key")
    produce("orders", orders(30))
    run("key", "CAST(value AS STRING) AS text")
    run("key", "CAST(value AS STRING) AS text")
    table = (
        spark.read.format("delta").load(path)
        if kind == "delta"
        else spark.table(iceberg_table(spark, TableSink("iceberg", path)))
    )
    assert table.count() == 70
    assert table.select("topic", "partition", "offset").distinct().count() == 70
    assert table.filter("text IS NOT NULL").count() == 30


def test_without_dead_letters_a_bad_value_ends_the_pipeline_with_its_offset(
    spark: Any, broker: Broker, produce: Produce, tmp_path: Path
) -> None:
    from kbroker.pipeline import archive
    from kbroker.pipeline.problems import problem_of

    broker.create_topic("orders", 1)
    produce("orders", [*orders(3), ("bad", "{rubbish")])
    query = archive(
        spark,
        bootstrap=broker.bootstrap,
        topics=["orders"],
        path=str(tmp_path / "lake"),
        checkpoint=str(tmp_path / "state"),
        values=ValueFormat("json", "id BIGINT"),
        trigger=AVAILABLE_NOW,
        name="strict",
    )
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION") as caught:
        query.awaitTermination()
    assert str(problem_of(caught.value)) == (
        "The value at offset 3 of partition 0 of topic orders is not JSON of the schema. "
        "Set values.dead_letters to keep such records apart"
    )


def test_what_spark_cannot_start_with_is_one_line(spark: Any, broker: Broker, tmp_path: Path) -> None:
    from kbroker.pipeline import archive

    places: dict[str, Any] = {"path": str(tmp_path / "lake"), "checkpoint": str(tmp_path / "state")}
    with pytest.raises(UserError, match=r"^Topic 'orders' does not exist on .*\. Create it: kbroker topics create"):
        archive(spark, bootstrap=broker.bootstrap, topics=["orders"], **places)
    broker.create_topic("orders")
    step = SqlStep("SELECT nothing FROM records", place="orders.toml:9")
    with pytest.raises(UserError, match=r"^orders\.toml:9: step 1 is not valid: \[UNRESOLVED_COLUMN"):
        archive(spark, bootstrap=broker.bootstrap, topics=["orders"], steps=[step], **places)
    step = SqlStep("SELECT key FROM records")
    with pytest.raises(UserError, match="The last step must return the column topic"):
        archive(spark, bootstrap=broker.bootstrap, topics=["orders"], steps=[step], **places)
    values = ValueFormat("json", "id BIGNIT")
    with pytest.raises(UserError, match="The schema of the values is not valid: "):
        archive(spark, bootstrap=broker.bootstrap, topics=["orders"], values=values, **places)
    address = broker.bootstrap
    broker.stop()
    with pytest.raises(UserError, match=rf"^No Kafka broker answers at {address}: .*Start it, or correct bootstrap"):
        archive(spark, bootstrap=address, topics=["orders"], **places)
