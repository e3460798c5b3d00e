"""HTTP endpoints: /metrics for Prometheus, /healthz and /readyz for supervisors and load balancers."""

from __future__ import annotations

from kbroker.clock import Clock
from kbroker.server.status import BrokerStatus
from kbroker.web.broker_metrics import BrokerMetrics
from kbroker.web.exposition import CONTENT_TYPE
from kbroker.web.http_access import OPEN, HttpAccess
from kbroker.web.http_server import HttpResponse, HttpServer

__all__ = ["monitoring_server"]


def monitoring_server(status: BrokerStatus, clock: Clock, access: HttpAccess = OPEN) -> HttpServer:
    """Returns the server. Health and readiness are public; the reason why a broker is not ready needs access."""
    metrics = BrokerMetrics(status, clock)

    async def show_metrics() -> HttpResponse:
        return HttpResponse(200, await metrics.read(), CONTENT_TYPE)

    async def show_health() -> HttpResponse:
        return HttpResponse(200, b"ok\n")

    async def show_readiness() -> HttpResponse:
        reason = status.why_not_ready()
        return HttpResponse(200, b"ready\n") if reason is None else HttpResponse(503, f"not ready: {reason}\n".encode())

    async def show_bare_readiness() -> HttpResponse:
        is_ready = status.why_not_ready() is None
        return HttpResponse(200, b"ready\n") if is_ready else HttpResponse(503, b"not ready\n")

    pages = {"/metrics": show_metrics, "/healthz": show_health, "/readyz": show_readiness}
    public = {"/healthz": show_health, "/readyz": show_bare_readiness}
    return HttpServer(pages, quick=("/healthz", "/readyz"), public=public, access=access)
