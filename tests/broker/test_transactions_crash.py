"""kill -9 in the middle of transactions: answers hold, decided transactions are completed, nothing hangs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import trio

from kbroker.protocol.error_codes import ErrorCode
from tests.broker.child import child_broker
from tests.broker.transactions import TransactionalProducer, committed_offset, end_offset, read_committed
from tests.broker.wire import Client, connect

FAST: Final = ("--set", "transaction.abort.timed.out.transaction.cleanup.interval.ms=20")
LOADING: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def wait_loaded(client: Client, name: str) -> str:
    """Returns the state of a transaction once its coordinator is available."""
    with trio.fail_after(30):
        while True:
            answer = await client.ask("DescribeTransactions", 0, transactional_ids=[name])
            found = answer.transaction_states[0]
            if found.error_code != LOADING:
                assert found.error_code == 0, ErrorCode(found.error_code)
                return str(found.transaction_state)


async def test_a_transaction_goes_on_after_a_crash(data_dir: Path) -> None:
    async with child_broker(data_dir) as child, connect(child.port) as client:
        await client.create_topic("t")
        pay = await TransactionalProducer(client, "pay", version=2).init()
        await pay.send("t", b"no")
        await pay.abort()
        await pay.send("t", b"before")
    async with child_broker(data_dir) as child, connect(child.port) as client:
        assert await wait_loaded(client, "pay") == "Ongoing"
        assert await read_committed(client, "t") == []
        pay.client = client
        await pay.send("t", b"after")
        await pay.commit()
        assert await read_committed(client, "t") == [b"before", b"after"]


async def test_a_transaction_that_is_not_ended_after_a_crash_times_out(data_dir: Path) -> None:
    async with child_broker(data_dir) as child, connect(child.port) as client:
        await client.create_topic("t")
        pay = await TransactionalProducer(client, "pay").init(timeout_ms=100)
        await pay.send("t", b"lost")
        assert await pay.add_offsets("g") == 0
        assert await pay.commit_offset("g", "t", 5) == 0
    async with child_broker(data_dir, *FAST) as child, connect(child.port) as client:
        with trio.fail_after(30):
            while await wait_loaded(client, "pay") != "CompleteAbort":
                pass
        assert await end_offset(client, "t", 1) == 2
        assert await read_committed(client, "t") == []
        assert await committed_offset(client, "g", "t", require_stable=True) == (0, -1)


async def test_crashes_at_any_moment_keep_every_answer(data_dir: Path) -> None:
    """Both topics have the same records: exactly the committed ones, at any moment of the kill."""
    rng = random.Random(7)
    promised: list[bytes] = []
    doubtful: list[bytes] = []
    for number in range(4):
        async with child_broker(data_dir) as child, connect(child.port) as client:
            if not number:
                await client.create_topic("a")
                await client.create_topic("b")
            pay = await TransactionalProducer(client, "pay", version=rng.choice([0, 2])).init()
            assert await settled(client, promised, doubtful)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, pay, number, rng, promised, doubtful)
                await trio.sleep(rng.uniform(0.02, 0.3))
                if number == 3:
                    with trio.fail_after(60):
                        while not promised:  # on a slow machine no transaction may have ended yet
                            await trio.lowlevel.checkpoint()
                await child.kill()
    async with child_broker(data_dir) as child, connect(child.port) as client:
        await TransactionalProducer(client, "pay").init()
        assert await settled(client, promised, doubtful)
    assert promised


async def work(
    pay: TransactionalProducer, number: int, rng: random.Random, promised: list[bytes], doubtful: list[bytes]
) -> None:
    """Runs until the broker is killed."""
    count = 0
    try:
        while True:
            count += 1
            value = b"%d-%d" % (number, count)
            is_commit = rng.random() < 0.7
            await pay.send("a", value)
            await pay.send("b", value)
            if is_commit:
                doubtful[:] = [value]
            await pay.end(is_commit=is_commit)
            if is_commit:
                promised.append(value)
                doubtful.clear()
    except (EOFError, trio.BrokenResourceError):
        pass


async def settled(client: Client, promised: list[bytes], doubtful: list[bytes]) -> bool:
    """The transaction whose response was lost is in both topics, or in none."""
    found = await read_committed(client, "a")
    assert found == await read_committed(client, "b")
    assert found in (promised, promised + doubtful)
    promised[:] = found
    doubtful.clear()
    return True
