"""Reads the metrics of the session with ZooKeeper. A single node has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.controller.trees.tree import SessionState
from kbroker.web import metrics_table as table
from kbroker.web.exposition import Samples

if TYPE_CHECKING:
    from kbroker.controller.trees.session_stats import SessionStats

__all__ = ["read_zookeeper"]


def read_zookeeper(samples: Samples, session: SessionStats) -> None:
    is_connected = session.state is SessionState.CONNECTED
    samples.add(table.ZOOKEEPER_STATE, int(is_connected), "CONNECTED")
    samples.add(table.ZOOKEEPER_STATE, int(not is_connected), "CONNECTING")
    samples.add(table.ZOOKEEPER_CONNECTS, session.connects)
    samples.add(table.ZOOKEEPER_DISCONNECTS, session.disconnects)
    samples.add(table.ZOOKEEPER_EXPIRATIONS, session.expirations)
    samples.add_histogram(table.ZOOKEEPER_TIME, session.request_times)
