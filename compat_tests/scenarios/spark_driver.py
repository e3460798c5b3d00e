"""Spark driver that a test kills: copies a topic to Parquet, to Delta and to another topic, a few records at a time.

Arguments: HOST:PORT, source topic, target topic, directory, the jars of the connector and of Delta, and `run` (until it
is killed) or `finish` (until everything is copied; then copies.json has the numbers in the tables and in the topic).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from compat_tests.scenarios.spark_kafka import SparkKafka, numbers, start_spark
from kbroker.pipeline.session import FORMAT_CONF

RECORDS_PER_BATCH = 7
DELTA = {**FORMAT_CONF["delta"], "spark.databricks.delta.snapshotPartitions": "1"}
TABLES = ("parquet", "delta")


def main() -> None:
    bootstrap, source, target, directory, jars, mode = sys.argv[1:]
    session = start_spark(jars.split(","), Path(directory) / "session", DELTA)
    options: dict[str, object] = {"subscribe": source}
    trigger: dict[str, object] = {"availableNow": True}
    if mode == "run":
        options["maxOffsetsPerTrigger"] = RECORDS_PER_BATCH
        trigger = {"processingTime": "0 seconds"}
    to_tables = {kind: SparkKafka(session, bootstrap, Path(directory) / f"to-{kind}") for kind in TABLES}
    to_topic = SparkKafka(session, bootstrap, Path(directory) / "to-topic")
    queries = [
        *(copy.start_files(copy.stream(options), table_format=kind, **trigger) for kind, copy in to_tables.items()),
        to_topic.start_copy(to_topic.stream(options), target, **trigger),
    ]
    for query in queries:
        query.awaitTermination()
    copies = {kind: numbers(copy.files(kind)) for kind, copy in to_tables.items()}
    copies["topic"] = numbers(to_topic.read({"subscribe": target}))
    (Path(directory) / "copies.json").write_text(json.dumps(copies))


if __name__ == "__main__":
    main()
