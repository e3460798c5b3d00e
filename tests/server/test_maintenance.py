"""Periodic work of a broker: what it does when data directories fail."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from kbroker.errors import StorageFailure, UserError
from kbroker.server.freed_memory import FreedMemory
from kbroker.server.maintenance import Maintenance
from kbroker.server.quotas.request_quotas import Quotas
from kbroker.server.requests.thread_work import ThreadWork
from kbroker.server.wire.deadlines import Deadlines
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.replication.moving import PATHS, Broker, HandClock, topic_of


async def _no_bump(partitions: Sequence[tuple[str, int]]) -> None:
    raise AssertionError(f"{partitions} are intact")


async def maintain(
    failed_paths: Sequence[str], thread_work: ThreadWork | None = None, memory: FreedMemory | None = None
) -> int:
    """Runs maintenance for some ticks after these data directories have failed. Returns the number of announcements."""
    announced = 0

    async def announce() -> None:
        nonlocal announced
        announced += 1

    broker = Broker(FaultyFileSystem(), topic_of("orders"))
    for path in failed_paths:
        broker.log_dirs.gates[path].close(StorageFailure("Input/output error"))
    clock = HandClock()
    quotas = Quotas(broker.config, clock, Deadlines())
    maintenance = Maintenance(
        broker.replicas,
        broker.flusher,
        broker.config,
        clock,
        quotas,
        _no_bump,
        ThreadWork(clock) if thread_work is None else thread_work,
        FreedMemory() if memory is None else memory,
        announce_failure=announce,
    )
    with trio.move_on_after(3.5):
        await maintenance.run()
    return announced


async def test_a_broker_ends_when_all_its_directories_have_failed(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await maintain(PATHS)
    (error,) = raised.value.exceptions
    assert isinstance(error, UserError)
    assert "all log dirs in /one, /two have failed" in str(error)


async def test_a_broker_with_a_directory_that_works_announces_the_failed_one_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert await maintain(PATHS[:1]) == 1
    assert await maintain(()) == 0


async def test_memory_is_returned_once_after_large_requests(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[int] = []
    monkeypatch.setattr("kbroker.server.freed_memory.return_freed_memory", lambda: returned.append(1))
    work = ThreadWork(HandClock())
    await maintain((), work)
    assert returned == []
    await work.run(lambda pause: None)
    await maintain((), work)
    assert returned == [1]


async def test_memory_is_returned_after_the_broker_has_grown(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[int] = []
    size = 100 << 20
    monkeypatch.setattr("kbroker.server.freed_memory.return_freed_memory", lambda: returned.append(size))
    monkeypatch.setattr("kbroker.server.freed_memory._private_bytes", lambda: size)
    memory = FreedMemory()
    await maintain((), memory=memory)
    assert returned == []
    size = 200 << 20
    await maintain((), memory=memory)
    assert set(returned) == {200 << 20}  # more than once if the clock jumps several seconds
