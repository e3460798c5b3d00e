"""Driver of test_executors.py on `local-cluster[2,1,1024]`: code is shipped to executors, and one of them is killed.

    python -m tests.pipeline.cluster_driver BOOTSTRAP TARGET DIRECTORY CONF

TARGET: address of the cluster to mirror to. CONF: JSON of Spark's confs. Writes counts.json to DIRECTORY.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kbroker.pipeline import archive, audit, exactly_once, mirror, read_segments, transform
from kbroker.pipeline.audit_file import Hop
from kbroker.pipeline.definition import AVAILABLE_NOW, TopicsToRead
from kbroker.pipeline.session import open_session

MASTER = "local-cluster[2,1,1024]"
FOUR_TASKS = {"minPartitions": "4"}


def kill_once(victim: str, marker: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Returns a function for `mapInArrow` that passes rows on and kills once, before it passes on the third batch.

    `victim`: "worker" kills the Python process of the task, "executor" the JVM above it. The file `marker`
    is written before, so that only one task kills.
    """

    def parent_of(process: int) -> int:
        return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])

    def kill() -> None:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        process = os.getpid()
        while (
            victim == "executor"
            and b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{process}/cmdline").read_bytes()
        ):
            process = parent_of(process)
            assert process > 1, "there is no executor above the task"
        os.kill(process, signal.SIGKILL)

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 2:
                kill()
            yield batch

    return pass_on


@contextmanager
def killing_writers(victim: str, marker: Path) -> Iterator[None]:
    """Lets the first task of the exactly-once sink that gets to its third batch kill, with its transaction open."""
    task_of, pass_on = exactly_once.task_of, kill_once(victim, str(marker))

    def dying(plan: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
        write = task_of(plan)
        return lambda batches: write(pass_on(batches))

    exactly_once.task_of = dying
    try:
        yield
    finally:
        exactly_once.task_of = task_of
    assert marker.exists(), f"no {victim} was killed"


class Work:
    def __init__(self, spark: Any, bootstrap: str, target: str, directory: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.target = target
        self.directory = directory

    def copy_segments(self) -> None:
        """Reads segment files and writes them once. A Python worker is killed."""
        frame = read_segments(self.spark, str(self.directory / "data"), topics="in").select("key", "value")
        sink = exactly_once.ExactlyOnceSink(self.bootstrap, "segments", self.directory / "sink", {"topic": "segments"})
        with killing_writers("worker", self.directory / "killed-worker"):
            sink.write_batch(frame, 0)
        sink.close()

    def copy_stream(self) -> None:
        """Copies a topic in a stream. The executor of a writing task is killed; Spark repeats the task elsewhere."""
        with killing_writers("executor", self.directory / "killed-in-stream"):
            query = transform(
                self.spark,
                bootstrap=self.bootstrap,
                topics=["in"],
                to="copy",
                sql="SELECT key, value FROM records",
                checkpoint=str(self.directory / "state-copy"),
                trigger=AVAILABLE_NOW,
                name="copy",
                options=FOUR_TASKS,
            )
            query.awaitTermination()

    def count_keys(self) -> None:
        """Writes the result of a shuffle. The lost executor may fail the batch; the next attempt repeats it."""
        frame = self.spark.range(0, 4000, 1, 2).selectExpr("CAST(id % 2000 AS STRING) AS key").groupBy("key").count()
        frame = frame.selectExpr("key", "CAST(count AS STRING) AS value")
        sink = exactly_once.ExactlyOnceSink(self.bootstrap, "counts", self.directory / "counts", {"topic": "counts"})
        with killing_writers("executor", self.directory / "killed-after-shuffle"):
            try:
                sink.write_batch(frame, 0)
            except Exception as failure:  # as the query ends, and is run again
                print("the batch failed:", str(failure)[:200])
                sink.write_batch(frame, 0)
        sink.close()

    def archive(self) -> None:
        """Archives a topic. An executor is killed while its task writes a file."""
        marker = self.directory / "killed-in-archive"
        pass_on = kill_once("executor", str(marker))

        def dying(records: Any) -> Any:
            columns = records.select("topic", "timestamp", "key", "value")
            return columns.mapInArrow(pass_on, columns.schema)

        query = archive(
            self.spark,
            bootstrap=self.bootstrap,
            topics=["in"],
            path=str(self.directory / "table"),
            checkpoint=str(self.directory / "state-archive"),
            trigger=AVAILABLE_NOW,
            through=dying,
            options=FOUR_TASKS,
        )
        query.awaitTermination()
        assert marker.exists(), "no executor was killed"

    def mirror_and_audit(self) -> None:
        mirror(
            self.spark,
            bootstrap=self.bootstrap,
            to=self.target,
            topics=["in"],
            checkpoint=str(self.directory / "state-mirror"),
            trigger=AVAILABLE_NOW,
        ).wait()
        here = Hop("broker", TopicsToRead(self.bootstrap, ("in",)), "producer")
        there = Hop("mirror", TopicsToRead(self.target, ("in",)), "broker", copies_only=True)
        audit(
            self.spark,
            bootstrap=self.bootstrap,
            topic="audit",
            hops=[here, there],
            checkpoint=str(self.directory / "state-audit"),
            report=str(self.directory / "report"),
            trigger=AVAILABLE_NOW,
        ).wait()

    def archived(self) -> dict[str, int]:
        rows = self.spark.read.parquet(str(self.directory / "table")).selectExpr("CAST(value AS STRING) AS v").collect()
        return dict(Counter(row.v for row in rows))


def main(bootstrap: str, target: str, directory: str, conf: str) -> None:
    settings = json.loads(conf)
    jars = settings.pop("jars").split(",")
    place = Path(directory)
    spark = open_session("cluster", master=MASTER, jars=jars, conf=settings, directory=place)
    work = Work(spark, bootstrap, target, place)
    work.copy_segments()
    work.copy_stream()
    work.count_keys()
    work.archive()
    work.mirror_and_audit()
    (place / "counts.json").write_text(json.dumps(work.archived()))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
