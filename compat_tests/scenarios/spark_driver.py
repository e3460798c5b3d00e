"""Spark driver that a test kills: copies a topic into Parquet files and into another topic, a few records at a time.

Arguments: HOST:PORT, source topic, target topic, directory, the connector's jars, and `run` (until it is killed) or
`finish` (until everything is copied; then copies.json has the numbers in the files and in the topic).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from compat_tests.scenarios.spark_kafka import SparkKafka, numbers, start_spark

RECORDS_PER_BATCH = 7


def main() -> None:
    bootstrap, source, target, directory, jars, mode = sys.argv[1:]
    session = start_spark(jars.split(","), Path(directory) / "session")
    options: dict[str, object] = {"subscribe": source}
    trigger: dict[str, object] = {"availableNow": True}
    if mode == "run":
        options["maxOffsetsPerTrigger"] = RECORDS_PER_BATCH
        trigger = {"processingTime": "0 seconds"}
    to_files = SparkKafka(session, bootstrap, Path(directory) / "to-files")
    to_topic = SparkKafka(session, bootstrap, Path(directory) / "to-topic")
    queries = [
        to_files.start_files(to_files.stream(options), **trigger),
        to_topic.start_copy(to_topic.stream(options), target, **trigger),
    ]
    for query in queries:
        query.awaitTermination()
    copies = {"files": numbers(to_files.files()), "topic": numbers(to_topic.read({"subscribe": target}))}
    (Path(directory) / "copies.json").write_text(json.dumps(copies))


if __name__ == "__main__":
    main()
