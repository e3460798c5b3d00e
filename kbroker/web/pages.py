"""What there is to ask for: /metrics for Prometheus, /healthz and /readyz for whoever starts and stops brokers."""

from __future__ import annotations

from kbroker.clock import Clock
from kbroker.server.vitals import Vitals
from kbroker.web.broker_metrics import BrokerMetrics
from kbroker.web.exposition import CONTENT_TYPE
from kbroker.web.http_server import Answer, HttpServer

__all__ = ["pages_of"]


def pages_of(vitals: Vitals, clock: Clock) -> HttpServer:
    metrics = BrokerMetrics(vitals, clock)

    async def show_metrics() -> Answer:
        return Answer(200, await metrics.read(), CONTENT_TYPE)

    async def show_health() -> Answer:
        return Answer(200, b"ok\n")

    async def show_readiness() -> Answer:
        reason = vitals.why_not_ready()
        return Answer(200, b"ready\n") if reason is None else Answer(503, f"not ready: {reason}\n".encode())

    return HttpServer({"/metrics": show_metrics, "/healthz": show_health, "/readyz": show_readiness})
