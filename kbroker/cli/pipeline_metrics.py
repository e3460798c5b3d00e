"""Metrics of a running pipeline for Prometheus. docs/pipeline.md lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.web.exposition import CONTENT_TYPE, Samples, counter, gauge
from kbroker.web.http_access import HttpAccess, find_token
from kbroker.web.http_server import HttpResponse, HttpServer

if TYPE_CHECKING:
    from kbroker.pipeline.progress import Progress

__all__ = ["PIPELINE_METRICS", "PipelineMetrics", "metrics_server"]

UP = gauge("kbroker_pipeline_up", "1 while the pipeline runs.", "pipeline")
BATCHES = counter("kbroker_pipeline_batches_total", "Batches since the start.", "pipeline", "query")
ROWS_IN = counter("kbroker_pipeline_rows_in_total", "Rows read since the start.", "pipeline", "query")
ROWS_OUT = counter("kbroker_pipeline_rows_out_total", "Rows written since the start.", "pipeline", "query")
RATE = gauge("kbroker_pipeline_rows_per_second", "Rows per second of the last batch.", "pipeline", "query")
DURATION = gauge("kbroker_pipeline_batch_seconds", "Duration of the last batch.", "pipeline", "query")
LAG = gauge("kbroker_pipeline_lag", "Records of a topic that are not read yet.", "pipeline", "query", "topic")

PIPELINE_METRICS: Final = (UP, BATCHES, ROWS_IN, ROWS_OUT, RATE, DURATION, LAG)


class PipelineMetrics:
    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._totals: dict[str, list[int]] = {}
        self._last: dict[str, Progress] = {}

    def add(self, query: str, report: Progress) -> None:
        totals = self._totals.setdefault(query, [0, 0, 0])
        totals[0] += 1
        totals[1] += report.rows_in
        totals[2] += report.rows_out or 0
        self._last[query] = report

    def read(self) -> bytes:
        samples = Samples(PIPELINE_METRICS)
        samples.add(UP, 1, self._pipeline)
        for query, report in self._last.items():
            labels = (self._pipeline, query)
            batches, rows_in, rows_out = self._totals[query]
            samples.add(BATCHES, batches, *labels)
            samples.add(ROWS_IN, rows_in, *labels)
            if report.rows_out is not None:
                samples.add(ROWS_OUT, rows_out, *labels)
            samples.add(RATE, report.rows_per_s, *labels)
            samples.add(DURATION, report.batch_ms / 1000, *labels)
            for topic, lag in report.lag.items():
                samples.add(LAG, lag, *labels, topic)
        return samples.encode()


def metrics_server(metrics: PipelineMetrics) -> HttpServer:
    """Returns the server. With KBROKER_METRICS_TOKEN, /metrics needs this token. Raises UserError if it is bad."""

    async def show_metrics() -> HttpResponse:
        return HttpResponse(200, metrics.read(), CONTENT_TYPE)

    async def show_health() -> HttpResponse:
        return HttpResponse(200, b"ok\n")

    health = {"/healthz": show_health}
    pages = {"/metrics": show_metrics, **health}
    return HttpServer(pages, quick=("/healthz",), public=health, access=HttpAccess(find_token(None)))
