"""Clusters for the tests of replication; see cluster.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.replication.cluster import Cluster


@pytest.fixture
async def cluster(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path, nursery)
    yield cluster
    for node in cluster.nodes.values():
        if node.is_up:
            await node.kill()
