"""Driver of test_kills.py: archives a topic to Parquet and to Delta, and copies it to another topic, all at once.

Usage: python -m tests.pipeline.kill_driver BOOTSTRAP DIRECTORY JARS (separated by commas) TRIGGER BATCH_SIZE
"""

from __future__ import annotations

import os
import sys

from compat_tests.scenarios.spark_kafka import SHORT_LIVED_JVM
from kbroker.pipeline import archive, transform
from kbroker.pipeline.session import open_session


def main(bootstrap: str, directory: str, jars: str, trigger: str, batch_size: str) -> None:
    options = {"maxOffsetsPerTrigger": batch_size}
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": f"{directory}/local",
        "spark.log.level": "OFF",
        "spark.databricks.delta.snapshotPartitions": "2",
        # A query of Spark ends when the broker is away for longer than this. The test restarts the driver.
        "spark.task.maxFailures": "1",
    }
    os.chdir(directory)
    spark = open_session("kills", master="local[2]", jars=jars.split(","), formats=["delta"], conf=conf)
    for kind in ("parquet", "delta"):
        archive(
            spark,
            bootstrap=bootstrap,
            topics=["events"],
            path=f"{directory}/{kind}",
            format=kind,
            checkpoint=f"{directory}/state-{kind}",
            trigger=trigger,
            name=kind,
            options=options,
        )
    transform(
        spark,
        bootstrap=bootstrap,
        topics=["events"],
        to="copy",
        sql="SELECT key, value FROM records",
        checkpoint=f"{directory}/state-copy",
        trigger=trigger,
        name="copy",
        options=options,
    )
    for query in spark.streams.active:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
