"""Runs a pipeline in the foreground: a line for each batch, metrics over HTTP, a clean stop on Ctrl-C and SIGTERM."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import trio

from kbroker.cli.pipeline_metrics import PipelineMetrics
from kbroker.errors import UserError
from kbroker.pipeline.brokers import lone_failure
from kbroker.pipeline.problems import problem_of
from kbroker.pipeline.running import open_pipeline_session, start_pipeline

if TYPE_CHECKING:
    from kbroker.pipeline.definition import Pipeline
    from kbroker.pipeline.jobs import Job
    from kbroker.pipeline.progress import Progress

__all__ = ["progress_line", "run_pipeline"]

_LOG: Final = logging.getLogger(__name__)
POLL_SECONDS: Final = 0.5
MAX_TOPICS: Final = 5


def run_pipeline(
    pipeline: Pipeline, *, master: str, jars: Sequence[str], metrics_listen: str | None, conf: Mapping[str, str]
) -> None:
    """Runs to the end. Raises UserError if Spark cannot start or the pipeline fails."""
    session = open_pipeline_session(pipeline, master=master, jars=jars, conf=conf)
    try:
        jobs = start_pipeline(session, pipeline)
        try:
            trio.run(watch_jobs, pipeline, jobs, metrics_listen)
        except BaseExceptionGroup as group:
            failure = lone_failure(group)
            is_of_spark = type(failure).__module__.startswith(("py4j.", "pyspark."))
            raise problem_of(failure) if is_of_spark else failure from group
        finally:
            for job in jobs:
                _try_to_stop(job.stop)
    finally:
        _try_to_stop(session.stop)


def _try_to_stop(stop: Callable[[], None]) -> None:
    """Stops a job or Spark. The JVM may have ended: systemd and `timeout` send SIGTERM to it too."""
    try:
        stop()
    except Exception as failure:
        _LOG.debug("Spark has ended: %s", type(failure).__name__)


async def watch_jobs(pipeline: Pipeline, jobs: Sequence[Job], metrics_listen: str | None) -> None:
    """Shows the progress until all jobs have ended, one has failed, or a signal arrives."""
    metrics = PipelineMetrics(pipeline.name)
    async with _serving(metrics, metrics_listen), trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
        click.echo(f"Pipeline {pipeline.name} is running. Ctrl-C stops it.", err=True)
        while True:
            seen = await trio.to_thread.run_sync(_look_at, jobs)
            for name, report in seen.reports:
                metrics.add(name, report)
                _show(progress_line(name, report))
            if seen.failure is not None:
                raise problem_of(seen.failure)
            if not seen.is_active:
                break
            await trio.sleep(POLL_SECONDS)
        nursery.cancel_scope.cancel()
    _end_line()
    click.echo(f"Pipeline {pipeline.name} has stopped.", err=True)


async def _stop_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _number in signals:
            scope.cancel()
            return


class _Seen(NamedTuple):
    is_active: bool
    reports: list[tuple[str, Progress]]
    failure: BaseException | None


def _look_at(jobs: Sequence[Job]) -> _Seen:
    """Asks Spark; takes milliseconds, or seconds on a busy machine."""
    is_active = any(job.is_active for job in jobs)  # first: a job that ends now has its last report already
    reports = [(job.name, report) for job in jobs for report in job.reports()]
    failure = next((found for job in jobs if (found := job.failure()) is not None), None)
    return _Seen(is_active, reports, failure)


def progress_line(name: str, report: Progress) -> str:
    rows_out = "" if report.rows_out is None else f"{report.rows_out:,} out, "
    behind = sorted(report.lag.items(), key=lambda item: -item[1])
    lag = ", ".join(f"{topic} {count:,}" for topic, count in behind[:MAX_TOPICS])
    more = f" and {len(behind) - MAX_TOPICS} more" if len(behind) > MAX_TOPICS else ""
    return (
        f"{name}: batch {report.batch}, {report.rows_in:,} rows in, {rows_out}{report.rows_per_s:,.0f} rows/s, "
        f"{report.batch_ms:,} ms, lag {lag or 'none'}{more}"
    )


def _show(line: str) -> None:
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        click.echo(f"\r\x1b[2K{line[: width - 1]}", nl=False)
    else:
        click.echo(line)


def _end_line() -> None:
    if sys.stdout.isatty():
        click.echo()


@asynccontextmanager
async def _serving(metrics: PipelineMetrics, address: str | None) -> AsyncIterator[None]:
    if address is None:
        yield
        return
    from kbroker.cli.pipeline_metrics import metrics_server
    from kbroker.server.wire.listener import bind_all

    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal() and int(port) < 65536):
        raise UserError(f"Invalid value '{address}' for --metrics-listen: expected HOST:PORT")
    sockets = bind_all(host.removeprefix("[").removesuffix("]"), int(port))
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(metrics_server(metrics).run, sockets)
            click.echo(f"Serving metrics on http://{host}:{sockets[0].getsockname()[1]}/metrics", err=True)
            yield
            nursery.cancel_scope.cancel()
    finally:
        for sock in sockets:
            sock.close()
