"""Files of pipelines: what they mean, and one line with the reason and the place for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.errors import UserError
from kbroker.pipeline.definition import (
    DeadLetters,
    Deduplication,
    SqlStep,
    TableOnDisk,
    TableSink,
    TopicSink,
    TopicsToRead,
    Watermark,
    read_pipeline,
)
from kbroker.pipeline.kinds import ArchiveJob, ReplayJob, TransformJob

ARCHIVE = """\
kind = "archive"
checkpoint = "state/orders"
trigger = "10 seconds"

[source]
bootstrap = "127.0.0.1:9092"
pattern = "orders-.*"
max_records_per_batch = 1000

[source.options]
"kafka.security.protocol" = "PLAINTEXT"
minPartitions = 4

[sink]
path = "lake/orders"
"""

TRANSFORM = """\
name = "totals"
kind = "transform"
checkpoint = "state"

[source]
bootstrap = "127.0.0.1:9092"
topics = ["orders", "refunds"]

[values]
format = "json"
schema = "customer STRING, amount DOUBLE"
dead_letters = { topic = "orders-bad" }

[tables.customers]
path = "customers.csv"
format = "csv"
options = { header = true }

[[steps]]
watermark = { column = "timestamp", delay = "10 minutes" }

[[steps]]
deduplicate = ["customer", "timestamp"]

[[steps]]
sql = \"\"\"
SELECT key, to_json(struct(*)) AS value
FROM records
\"\"\"

[sink]
topic = "totals"
"""

REPLAY = """\
kind = "replay"
checkpoint = "state"
speed = 2
topics = "orders"

[source]
path = "/lake/orders"

[sink]
bootstrap = "127.0.0.1:9092"
delivery = "at-least-once"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "orders.toml"


def test_an_archive_reads_topics_by_pattern_into_a_table(file: Path) -> None:
    file.write_text(ARCHIVE)
    pipeline = read_pipeline(file)
    assert (pipeline.name, pipeline.kind, pipeline.trigger) == ("orders", "archive", "10 seconds")
    assert pipeline.checkpoint == str(file.parent / "state" / "orders")
    options = {"kafka.security.protocol": "PLAINTEXT", "minPartitions": "4"}
    assert pipeline.job == ArchiveJob(
        TopicsToRead("127.0.0.1:9092", (), "orders-.*", "earliest", 1000, options),
        TableSink("parquet", str(file.parent / "lake" / "orders")),
    )


def test_a_transform_has_values_tables_and_steps_in_order(file: Path) -> None:
    file.write_text(TRANSFORM)
    pipeline = read_pipeline(file)
    job = pipeline.job
    assert isinstance(job, TransformJob)
    assert job.sink == TopicSink("127.0.0.1:9092", "totals")
    assert job.values is not None
    assert job.values.dead_letters == DeadLetters(topic="orders-bad")
    assert job.tables == {"customers": TableOnDisk(str(file.parent / "customers.csv"), "csv", {"header": "true"})}
    watermark, dedup, sql = job.steps
    assert watermark == Watermark("timestamp", "10 minutes")
    assert dedup == Deduplication(("customer", "timestamp"))
    assert isinstance(sql, SqlStep)
    assert "FROM records" in sql.sql


def test_a_replay_has_a_speed(file: Path) -> None:
    file.write_text(REPLAY)
    sink = TopicSink("127.0.0.1:9092", None, "at-least-once")
    assert read_pipeline(file).job == ReplayJob(TableSink("parquet", "/lake/orders"), sink, 2.0, 10, ("orders",))


@pytest.mark.parametrize(
    ("source", "old", "new", "line", "reason"),
    [
        (ARCHIVE, 'kind = "archive"', 'kind = "achive"', 1, "kind is 'achive'; expected one of: archive, "),
        (ARCHIVE, 'kind = "archive"', "", 1, "kind is missing"),
        (ARCHIVE, 'checkpoint = "state/orders"', "", 1, "checkpoint is missing: a directory for the progress"),
        (ARCHIVE, '"10 seconds"', '"soon"', 3, "trigger is 'soon'; expected a duration, for example '10 seconds'"),
        (ARCHIVE, '"127.0.0.1:9092"', "9092", 6, "source.bootstrap must be text"),
        (ARCHIVE, '"127.0.0.1:9092"', '"127.0.0.1:x"', 6, "source.bootstrap: "),
        (ARCHIVE, 'pattern = "orders-.*"', 'pattern = "orders-("', 7, "source.pattern is not a regular expression"),
        (ARCHIVE, 'pattern = "orders-.*"', "", 5, "source.topics is missing"),
        (ARCHIVE, 'pattern = "orders-.*"', 'topics = ["a b"]', 7, "source.topics: "),
        (ARCHIVE, "= 1000", "= 0", 8, "source.max_records_per_batch must be 1 or more"),
        (ARCHIVE, "= 1000", "= true", 8, "source.max_records_per_batch must be a whole number"),
        (ARCHIVE, "minPartitions", '"kafka.group.id"', 12, "source.options.kafka.group.id cannot be set here"),
        (
            ARCHIVE,
            "minPartitions = 4",
            '"kafka.sasl.jaas.config" = "password=x"',
            12,
            "source.options.kafka.sasl.jaas.config is a secret: do not write it into the file. Use { env =",
        ),
        (
            ARCHIVE,
            "minPartitions = 4",
            '"kafka.ssl.key.password" = { env = "KBROKER_NO_SUCH_VARIABLE" }',
            12,
            "source.options.kafka.ssl.key.password needs the environment variable KBROKER_NO_SUCH_VARIABLE",
        ),
        (
            ARCHIVE,
            "minPartitions = 4",
            '"kafka.ssl.key.password" = { file = "no-such-file" }',
            12,
            "source.options.kafka.ssl.key.password refers to no-such-file, which cannot be read: No such file",
        ),
        (ARCHIVE, 'path = "lake/orders"', 'paht = "lake/orders"', 14, "sink.path is missing"),
        (ARCHIVE, 'path = "lake/orders"', 'path = "x"\nparts = 3', 16, "sink.parts is unknown; known here: "),
        (ARCHIVE, 'path = "lake/orders"', 'table = "orders"', 15, "sink.table is for Delta and Iceberg"),
        (ARCHIVE, "[sink]", "[sinks]", 1, "sink is missing: the table"),
        (ARCHIVE, "[sink]\n", "[sink\n", None, ":14:6: "),
        (TRANSFORM, '"json"', '"xml"', 10, "values.format is 'xml'; expected one of: json, csv, avro, protobuf"),
        (TRANSFORM, 'schema = "customer STRING, amount DOUBLE"\n', "", 9, "values.schema is missing: columns as in"),
        (TRANSFORM, "{ topic =", "{ table =", 12, "values.dead_letters needs a topic or a path"),
        (TRANSFORM, "customers]", "records]", 14, "a table cannot be named 'records'"),
        (TRANSFORM, '"10 minutes"', '"x"', 20, "steps.watermark.delay is 'x'; expected a duration"),
        (TRANSFORM, "deduplicate =", "dedup =", 22, "a step has one of: sql, watermark, deduplicate"),
        (TRANSFORM, 'topic = "totals"\n', "", 31, "sink.topic is missing"),
        (TRANSFORM, 'topic = "totals"', 'topic = "totals"\ndelivery = "once"', 33, "sink.delivery is 'once'"),
        (REPLAY, "speed = 2", "speed = 0", 3, "speed must be above 0"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    file: Path, source: str, old: str, new: str, line: int | None, reason: str
) -> None:
    assert source.count(old) >= 1
    file.write_text(source.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        read_pipeline(file)
    place = f"{file}" if line is None else f"{file}:{line}: "
    assert str(caught.value).startswith(f"{place}{reason}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(UserError, match=r"^Could not read .*orders.toml: No such file or directory$"):
        read_pipeline(file)


def test_secrets_come_from_the_environment_or_from_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBROKER_TEST_SECRET", "from the environment")
    (file.parent / "secret").write_text("from a file\n")
    options = (
        '"kafka.ssl.key.password" = { env = "KBROKER_TEST_SECRET" }\n'
        '"kafka.ssl.truststore.password" = { file = "secret" }\n'
    )
    file.write_text(ARCHIVE.replace("minPartitions = 4\n", options))
    assert read_pipeline(file).job.source.options == {
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.ssl.key.password": "from the environment",
        "kafka.ssl.truststore.password": "from a file",
    }


def test_a_schema_may_stand_beside_the_file(file: Path) -> None:
    (file.parent / "orders.ddl").write_text("customer STRING")
    file.write_text(TRANSFORM.replace('schema = "customer STRING, amount DOUBLE"', 'schema_file = "orders.ddl"'))
    assert read_pipeline(file).job.values.schema == "customer STRING"
