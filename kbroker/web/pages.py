"""HTTP endpoints: /metrics for Prometheus, /healthz and /readyz for supervisors and load balancers."""

from __future__ import annotations

from kbroker.clock import Clock
from kbroker.server.status import BrokerStatus
from kbroker.web.broker_metrics import BrokerMetrics
from kbroker.web.exposition import CONTENT_TYPE
from kbroker.web.http_server import HttpResponse, HttpServer

__all__ = ["monitoring_server"]


def monitoring_server(status: BrokerStatus, clock: Clock) -> HttpServer:
    metrics = BrokerMetrics(status, clock)

    async def show_metrics() -> HttpResponse:
        return HttpResponse(200, await metrics.read(), CONTENT_TYPE)

    async def show_health() -> HttpResponse:
        return HttpResponse(200, b"ok\n")

    async def show_readiness() -> HttpResponse:
        reason = status.why_not_ready()
        return HttpResponse(200, b"ready\n") if reason is None else HttpResponse(503, f"not ready: {reason}\n".encode())

    pages = {"/metrics": show_metrics, "/healthz": show_health, "/readyz": show_readiness}
    return HttpServer(pages, quick=("/healthz", "/readyz"))
