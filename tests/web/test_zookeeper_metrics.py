"""Metrics of the session with ZooKeeper. The session itself: tests/controller/trees/test_zookeeper_tree.py."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from kbroker.controller.trees.session_stats import SessionStats
from kbroker.controller.trees.tree import SessionState
from kbroker.web.exposition import Samples
from kbroker.web.metrics_table import METRICS
from kbroker.web.zookeeper_metrics import read_zookeeper

SESSION = "kafka_server_sessionexpirelistener"
TIMES = "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms"


def shown(session: SessionStats) -> dict[str, float]:
    samples = Samples(METRICS)
    read_zookeeper(samples, session)
    families = text_string_to_metric_families(samples.encode().decode())
    found = [sample for family in families for sample in family.samples if not sample.name.endswith("_bucket")]
    return {"".join((sample.name, *sample.labels.values())): sample.value for sample in found}


def test_the_session_shows_its_state_and_its_changes() -> None:
    session = SessionStats()
    for state in (SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED):
        session.enter(state)
    session.enter(SessionState.SUSPENDED)
    session.request_times.observe(3.0)
    session.request_times.observe(4.5)
    assert shown(session) == {
        f"{SESSION}_sessionstateCONNECTED": 0,
        f"{SESSION}_sessionstateCONNECTING": 1,
        f"{SESSION}_zookeepersyncconnects_total": 2,
        f"{SESSION}_zookeeperdisconnects_total": 2,
        f"{SESSION}_zookeeperexpires_total": 1,
        f"{TIMES}_count": 2,
        f"{TIMES}_sum": 7.5,
    }
    session.enter(SessionState.CONNECTED)
    assert shown(session)[f"{SESSION}_sessionstateCONNECTED"] == 1
