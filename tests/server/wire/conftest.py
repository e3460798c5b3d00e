"""Benches of connections: real socket pairs, called by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kbroker.server.wire.connection_limits import ConnectionLimits
from tests.server.wire_bench import Bench


@pytest.fixture(params=[False, True], ids=["kernel", "portable"])
def make_bench(request: pytest.FixtureRequest) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(**limits: int) -> Bench:
        bench = Bench(ConnectionLimits(poison_buffers=True, **limits), portable=request.param)  # type: ignore[arg-type]
        benches.append(bench)
        return bench

    yield make
    for bench in benches:
        bench.close()
