"""`kbroker pipeline`: runs, checks and explains pipelines on Spark, and shows their status without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.command import Command, Group, json_option
from kbroker.cli.output import print_json, print_table
from kbroker.cli.timestamps import format_timestamp
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.pipeline.checkpoint_status import QueryStatus
    from kbroker.pipeline.definition import Pipeline

__all__ = ["command"]

file_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
master_option = click.option(
    "--master",
    metavar="URL",
    default="local[*]",
    show_default=True,
    help="Spark to run on: local[N], spark://HOST:PORT, yarn, k8s://..., or sc://HOST:PORT for Spark Connect.",
)
jars_option = click.option(
    "--jars",
    metavar="DIRECTORY",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Use the jars of a directory, or one jar, instead of packages from Maven. Repeatable.",
)
verbose_option = click.option("--verbose", is_flag=True, help="Print the warnings and errors of Spark's log.")


@click.group("pipeline", cls=Group)
def command() -> None:
    """Run data pipelines on Spark: archive, replay, transform, mirror, audit.

    A pipeline is a TOML file. docs/pipeline.md describes it, and examples/pipelines has one file for each kind.
    """


@command.command(
    "run",
    cls=Command,
    examples=[
        ("kbroker pipeline run archive.toml", "Run until Ctrl-C"),
        ("kbroker pipeline run archive.toml --once", "Process what there is, and end: for cron"),
        ("kbroker pipeline run archive.toml --master spark://10.0.0.1:7077", "Run on a Spark cluster"),
        ("kbroker pipeline run archive.toml --metrics-listen 127.0.0.1:9309", "Serve metrics for Prometheus"),
    ],
)
@file_argument
@click.option("--once", is_flag=True, help="Process the records that exist now, and end.")
@master_option
@jars_option
@click.option("--metrics-listen", metavar="HOST:PORT", help="Serve /metrics and /healthz on this address.")
@verbose_option
def run(file: Path, once: bool, master: str, jars: Sequence[Path], metrics_listen: str | None, verbose: bool) -> None:
    """Run a pipeline until Ctrl-C or SIGTERM. The next run resumes where this one has stopped."""
    pipeline = _read(file)
    if once:
        from kbroker.pipeline.definition import AVAILABLE_NOW

        pipeline = replace(pipeline, trigger=AVAILABLE_NOW)
    from kbroker.cli.pipeline_run import run_pipeline

    run_pipeline(pipeline, master=master, jars=_jar_files(jars), metrics_listen=metrics_listen, conf=_log_conf(verbose))


@command.command(
    "validate",
    cls=Command,
    examples=[("kbroker pipeline validate archive.toml", "Check a file without Spark and without a broker")],
)
@file_argument
def validate(file: Path) -> None:
    """Check the file of a pipeline. Errors name the line and the reason."""
    pipeline = _read(file)
    click.echo(f"{file} is valid: pipeline {pipeline.name} of kind {pipeline.kind}.")


@command.command(
    "explain", cls=Command, examples=[("kbroker pipeline explain archive.toml", "Show Spark's plan of each query")]
)
@file_argument
@master_option
@jars_option
@verbose_option
def explain(file: Path, master: str, jars: Sequence[Path], verbose: bool) -> None:
    """Show Spark's plan, without reading or writing records."""
    pipeline = _read(file)
    from kbroker.pipeline.running import explain_pipeline, open_pipeline_session

    session = open_pipeline_session(pipeline, master=master, jars=_jar_files(jars), conf=_log_conf(verbose))
    try:
        for query, plan in explain_pipeline(session, pipeline).items():
            click.echo(f"Query {query}\n{plan}")
    finally:
        session.stop()


@command.command(
    "status",
    cls=Command,
    examples=[
        ("kbroker pipeline status archive.toml", "Show the last batch, rate and lag of each topic"),
        ("kbroker pipeline status archive.toml --json", "Print the offsets of all partitions as JSON"),
    ],
)
@file_argument
@json_option
def status(file: Path, as_json: bool) -> None:
    """Show offsets, lag, last batch and rate from the checkpoint, without Spark. The pipeline may be running."""
    pipeline = _read(file)
    from kbroker.pipeline.checkpoint_status import read_status

    queries = read_status(pipeline.checkpoint, hops=[hop.name for hop in getattr(pipeline.job, "hops", ())])
    lags = _lags(pipeline, queries)
    if as_json:
        print_json([{**query.to_json(), "lag": lags.get(query.query)} for query in queries])
        return
    if not queries:
        click.echo(f"Pipeline {pipeline.name} has not completed a batch yet.", err=True)
        return
    print_table(
        ("query", "batch", "began", "rows/s", "topic", "records read", "lag"),
        [row for query in queries for row in _rows(query, lags.get(query.query))],
    )
    if any(query.is_batch_open for query in queries):
        click.echo("A later batch has started and is not complete.", err=True)


def _rows(query: QueryStatus, lags: dict[str, int] | None) -> list[Sequence[str | int | None]]:
    began = None if query.batch_time_ms is None else format_timestamp(query.batch_time_ms)
    rate = None if query.rows_per_s is None else round(query.rows_per_s)
    first = (query.query, query.batch, began, rate)
    if not query.offsets:
        return [(*first, None, query.records, None)]
    return [
        (*first, topic, sum(partitions.values()), None if lags is None else lags.get(topic))
        for topic, partitions in query.offsets.items()
    ]


def _lags(pipeline: Pipeline, queries: Sequence[QueryStatus]) -> dict[str, dict[str, int]]:
    """Returns query -> topic -> lag. Queries whose brokers do not answer are left out, with a note."""
    from kbroker.pipeline.brokers import latest_offsets
    from kbroker.pipeline.checkpoint_status import lag_by_topic
    from kbroker.pipeline.client_options import can_connect

    lags: dict[str, dict[str, int]] = {}
    for source, names in _topic_sources(pipeline.job, queries):
        found = [query for query in queries if query.query in names]
        topics = sorted({topic for query in found for topic in query.offsets})
        if not topics or not can_connect(source.options):
            continue
        try:
            latest = latest_offsets(source.bootstrap, topics, source.options)
        except UserError as problem:
            click.echo(f"Lag is unknown: {problem}", err=True)
            continue
        lags |= {query.query: lag_by_topic(query.offsets, latest) for query in found}
    return lags


def _topic_sources(job: Any, queries: Sequence[QueryStatus]) -> list[tuple[Any, list[str]]]:
    """Returns what the queries read from clusters, with the names of the queries."""
    if hasattr(job, "hops"):
        found = [(hop.records, [hop.name]) for hop in job.hops]
    else:
        found = [(getattr(job, "source", None), [query.query for query in queries])]
    return [(source, names) for source, names in found if hasattr(source, "bootstrap")]


def _read(file: Path) -> Pipeline:
    from kbroker.pipeline.definition import read_pipeline

    return read_pipeline(file)


def _jar_files(paths: Sequence[Path]) -> list[str]:
    found: list[str] = []
    for path in paths:
        jars = sorted(path.glob("*.jar")) if path.is_dir() else [path]
        if not jars:
            raise UserError(f"{path} has no jar files")
        found += map(str, jars)
    return found


def _log_conf(verbose: bool) -> dict[str, str]:
    # Failures are shown as one line; Spark's log would add its stack.
    return {"spark.log.level": "WARN" if verbose else "OFF"}
