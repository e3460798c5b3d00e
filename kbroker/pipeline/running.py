"""Opens the session of a pipeline and starts its jobs: the way from a file to running queries."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kbroker.errors import UserError
from kbroker.pipeline.definition import KINDS, Pipeline
from kbroker.pipeline.jobs import Job
from kbroker.pipeline.problems import problem_of
from kbroker.pipeline.session import LOCAL, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["explain_pipeline", "open_pipeline_session", "start_pipeline"]


def open_pipeline_session(
    pipeline: Pipeline, *, master: str = LOCAL, jars: Sequence[str] = (), conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Opens a session with the packages that the pipeline needs."""
    settings = pipeline.spark
    return open_session(
        f"kbroker {pipeline.name}",
        master=master,
        jars=[*jars, *settings.jars],
        packages=settings.packages,
        formats=formats_of(pipeline.job),
        conf={**settings.conf, **(conf or {})},
    )


def formats_of(job: Any) -> list[str]:
    """Returns the formats of the tables and the values of a job."""
    parts = [getattr(job, name, None) for name in ("source", "sink", "values")]
    parts += getattr(job, "tables", {}).values()
    parts += (hop.records for hop in getattr(job, "hops", ()))
    return list(dict.fromkeys(found for part in parts if (found := getattr(part, "format", None)) is not None))


def start_pipeline(spark: SparkSession, pipeline: Pipeline) -> list[Job]:
    """Starts all jobs of a pipeline. Raises UserError if Spark refuses one of them."""
    runner = import_module(f"kbroker.pipeline.{KINDS[pipeline.kind].runner}")
    try:
        jobs: list[Job] = runner.start(spark, pipeline)
    except UserError:
        raise
    except Exception as failure:
        raise problem_of(failure) from failure
    return jobs


def explain_pipeline(spark: SparkSession, pipeline: Pipeline) -> dict[str, str]:
    """Returns query -> Spark's plan, logical and physical."""
    runner = import_module(f"kbroker.pipeline.{KINDS[pipeline.kind].runner}")
    if not hasattr(runner, "frames"):
        raise UserError(f"A pipeline of kind {pipeline.kind} has no query plan: explain works with other kinds")
    try:
        frames = runner.frames(spark, pipeline)
        return {name: _plan_of(frame) for name, frame in frames.items()}
    except UserError:
        raise
    except Exception as failure:
        raise problem_of(failure) from failure


def _plan_of(frame: Any) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):  # the only way that Spark Connect has too
        frame.explain(True)
    return printed.getvalue()
