"""A driver that runs the file of a mirror until a test kills it.

    python -m tests.pipeline.mirror_driver FILE JARS CONF

JARS: paths with commas. CONF: JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kbroker.pipeline.definition import read_pipeline
from kbroker.pipeline.mirroring import start
from kbroker.pipeline.session import open_session


def main(file: str, jars: str, conf: str) -> None:
    pipeline = read_pipeline(Path(file))
    spark = open_session(pipeline.name, master="local[2]", jars=jars.split(","), conf=json.loads(conf))
    (job,) = start(spark, pipeline)
    job.wait()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(*sys.argv[1:])
