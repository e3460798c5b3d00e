"""Pipelines on executors (`local-cluster`): code is shipped, workers and executors die, records are counted."""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from compat_tests.scenarios.spark_kafka import SHORT_LIVED_JVM
from kbroker.testing import Broker
from tests.pipeline.committed_records import read_committed, values_of

pytest.importorskip("pyspark", reason="needs pyspark")
pytest.importorskip("pyarrow", reason="needs pyarrow")

RECORDS = 4000
# Recent, so that retention does not delete the records; old enough for the audit to judge them.
TIMESTAMP_MS = int(time.time() - 3600) * 1000
EXECUTOR = {
    "spark.executor.extraJavaOptions": SHORT_LIVED_JVM,
    # Several Arrow batches for each task: it is killed between them.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    # A killed executor costs each task at most one attempt; Spark must not ban its machine.
    "spark.task.maxFailures": "8",
}


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_killed_workers_and_executors_lose_and_double_nothing(
    spark_jars: list[str], spark_conf: Mapping[str, str], tmp_path: Path
) -> None:
    from confluent_kafka import Producer

    faulthandler.cancel_dump_traceback_later()  # three JVMs and their replacements on a busy machine
    outputs = {"segments": 3, "copy": 3, "counts": 2}
    with Broker(topics=outputs, data_dir=tmp_path / "data") as broker, Broker() as target:
        broker.create_topic("in", 1, segment_bytes=80_000)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 2000})
        for number in range(RECORDS):
            producer.produce("in", key=str(number), value=str(number), timestamp=TIMESTAMP_MS)
        assert producer.flush(60) == 0
        conf = {**spark_conf, **EXECUTOR, "jars": ",".join(spark_jars)}
        addresses = [broker.bootstrap, target.bootstrap]
        command = [sys.executable, "-m", "tests.pipeline.cluster_driver", *addresses, str(tmp_path), json.dumps(conf)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-20000:]
        expected = sorted(str(number) for number in range(RECORDS))
        assert values_of(broker.bootstrap, "segments", partitions=3) == expected
        assert values_of(broker.bootstrap, "copy", partitions=3) == expected
        assert values_of(target.bootstrap, "in", partitions=1) == expected
        counts = read_committed(broker.bootstrap, "counts", partitions=2)
        assert sorted((int(each.key()), each.value()) for each in counts) == [(key, b"2") for key in range(2000)]
    assert json.loads((tmp_path / "counts.json").read_text()) == dict.fromkeys(expected, 1)
    (line,) = (tmp_path / "report" / "report.txt").read_text().splitlines()[1:]
    assert line.split()[-4:] == ["-", "4000", "4000", "ok"]
