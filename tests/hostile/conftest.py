"""Connections that the tests call by hand; see wire_bench.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.server.wire.connection_limits import ConnectionLimits
from tests.server.wire_bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(ConnectionLimits(), portable=False)
    yield bench
    bench.close()
