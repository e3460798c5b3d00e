"""A cluster grows and shrinks by `kbroker cluster` and `topics replicas`, while stock clients write and read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from confluent_kafka import Producer

from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, all_brokers_live
from tests.cluster.stock_clients import Group, NumberedRecords, committed, eventually, goes_on, read_all
from tests.cluster.test_cluster import create

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOPIC = "orders"
PARTITIONS = 8
MB = 1 << 20
THROTTLES = ("throttled.rate", "throttled.replicas")


class Called(NamedTuple):
    code: int
    out: str
    err: str


def command_line(cluster: RunningCluster, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "kbroker", *arguments, "--bootstrap", cluster.bootstrap]


async def call(cluster: RunningCluster, *arguments: str) -> Called:
    root = Path(__file__).parents[2]
    with trio.fail_after(4 * TIMEOUT_SECONDS):
        ended = await trio.run_process(
            command_line(cluster, *arguments),
            capture_stdout=True,
            capture_stderr=True,
            stdin=subprocess.DEVNULL,
            check=False,
            cwd=root,
        )
    return Called(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


Replicas = dict[tuple[str, int], tuple[int, ...]]


async def replicas_of(cluster: RunningCluster, broker_id: int) -> Replicas:
    """Returns the replicas of all partitions, as this broker knows them."""
    topics = (await cluster.metadata(broker_id)).topics
    return {
        (name, index): tuple(partition.replicas)
        for name, topic in topics.items()
        for index, partition in topic.partitions.items()
    }


async def until_placed(cluster: RunningCluster, condition: Callable[[dict[int, int]], bool]) -> Replicas:
    """Waits until all live brokers know the same replicas, and the numbers of replicas of each broker are as wanted."""
    counts: dict[int, int] = {}
    with trio.move_on_after(TIMEOUT_SECONDS):
        while True:
            first, *others = [await replicas_of(cluster, broker_id) for broker_id in cluster.alive]
            counts = {broker_id: sum(broker_id in found for found in first.values()) for broker_id in cluster.brokers}
            if all(other == first for other in others) and condition(counts):
                return first
    pytest.fail(f"the replicas are elsewhere: {counts}\n{cluster.log()}")


async def throttles(cluster: RunningCluster) -> list[str]:
    """Returns the throttle configs that are set on the topic and on the brokers."""
    resources = [("topic", TOPIC), *(("broker", str(broker_id)) for broker_id in cluster.alive)]
    found: list[str] = []
    for kind, name in resources:
        configs: list[dict[str, Any]] = json.loads(
            (await call(cluster, "configs", "describe", kind, name, "--json")).out
        )
        found += [f"{kind} {name} {config['name']}" for config in configs if config["name"].endswith(THROTTLES)]
    return found


async def until_throttled(cluster: RunningCluster, *, is_throttled: bool) -> None:
    with trio.fail_after(TIMEOUT_SECONDS):
        while bool(await throttles(cluster)) != is_throttled:
            pass


@all_brokers_live
async def test_a_cluster_is_balanced_drained_and_renewed_under_load(three: RunningCluster) -> None:
    await three.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])
    await create(three, TOPIC, PARTITIONS, 2)
    records = NumberedRecords(three.bootstrap, TOPIC, PARTITIONS)
    group = Group(three.bootstrap, TOPIC, "readers")
    with group.running():
        with records.running():
            await eventually(lambda: bool(group.read), three.log)
            await three.start(4)
            await three.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3, 4])

            before = await until_placed(three, lambda counts: counts[4] == 0)
            shown = await call(three, "cluster", "balance")
            assert (shown.code, shown.err) == (0, "Nothing was changed. Add --yes to run this plan.\n")
            plan = json.loads((await call(three, "cluster", "balance", "--json")).out)
            assert plan["copied_replicas"] == sum(map(len, before.values())) // 4
            assert await until_placed(three, lambda _counts: True) == before

            ended = await call(three, "cluster", "balance", "--yes", "--throttle", str(100 * MB))
            assert ended.code == 0, (ended, three.log())
            await until_placed(three, lambda counts: max(counts.values()) - min(counts.values()) <= 1)
            await until_throttled(three, is_throttled=False)
            await three.until_agreed(lambda *_view: True)
            assert (await call(three, "cluster", "balance")).out == "Nothing to move.\n"
            await goes_on(records, three)

            ended = await call(three, "cluster", "drain", "4", "--yes")
            assert ended.code == 0, (ended, three.log())
            drained = await until_placed(three, lambda counts: counts[4] == 0)
            await goes_on(records, three)

            held = sum(3 in found for found in drained.values())
            ended = await call(three, "cluster", "replace", "3", "4", "--yes")
            assert ended.code == 0, (ended, three.log())
            await until_placed(three, lambda counts: (counts[3], counts[4]) == (0, held))
            assert await three.brokers[3].terminate() == 0
            await goes_on(records, three)
        sent = {value for values in records.sent for value in values}
        await eventually(lambda: group.read == sent, lambda: (len(sent), len(group.read), three.log()))
    assert records.failures == []
    assert records.acknowledged == records.sent

    def check() -> None:
        assert [read_all(three.bootstrap, TOPIC, index) for index in range(PARTITIONS)] == records.sent
        assert committed(three.bootstrap, TOPIC, PARTITIONS, "readers") == [len(values) for values in records.sent]

    await trio.to_thread.run_sync(check)
    assert "Traceback" not in three.log()


@all_brokers_live
async def test_a_topic_gets_three_replicas_and_one_again(three: RunningCluster) -> None:
    await three.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])
    await create(three, TOPIC, 3, 1)
    records = NumberedRecords(three.bootstrap, TOPIC, 3)
    with records.running():
        await goes_on(records, three)
        ended = await call(three, "topics", "replicas", TOPIC, "3", "--yes")
        assert ended.code == 0, (ended, three.log())
        _c, _b, topics = await three.until_agreed(
            lambda _c, _b, topics: all(isr == [1, 2, 3] for _leader, isr in topics[TOPIC].values())
        )
        assert sorted(leader for leader, _isr in topics[TOPIC].values()) == [1, 2, 3]
        await goes_on(records, three)

        refused = await call(three, "topics", "replicas", TOPIC, "4", "--yes")
        assert (refused.code, refused.err.count("\n")) == (1, 1)

        before = (await replicas_of(three, 1))[TOPIC, 0]
        plan, saved = three.directory / "plan.json", three.directory / "saved.json"
        plan.write_text(json.dumps({"partitions": [{"topic": TOPIC, "partition": 0, "replicas": [3, 1]}]}))
        ended = await call(three, "cluster", "reassign", str(plan), "--yes", "--save", str(saved))
        assert ended.code == 0, (ended, three.log())
        assert (await until_placed(three, lambda counts: counts[2] == 2))[TOPIC, 0] == (3, 1)
        ended = await call(three, "cluster", "reassign", str(saved), "--yes")
        assert ended.code == 0, (ended, three.log())
        assert (await until_placed(three, lambda counts: counts[2] == 3))[TOPIC, 0] == before
        await goes_on(records, three)

        ended = await call(three, "topics", "replicas", TOPIC, "1", "--yes")
        assert ended.code == 0, (ended, three.log())
        await until_placed(three, lambda counts: counts == {1: 1, 2: 1, 3: 1})
        await goes_on(records, three)
    assert records.failures == []
    assert records.acknowledged == records.sent
    found = await trio.to_thread.run_sync(lambda: [read_all(three.bootstrap, TOPIC, index) for index in range(3)])
    assert found == records.sent


def write_megabytes(cluster: RunningCluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0, "linger.ms": 0})
    for number in range(2 * count):
        producer.produce(TOPIC, bytes(MB // 2), partition=number % 4)
        producer.poll(0)
    assert producer.flush(TIMEOUT_SECONDS) == 0


async def start_slow_drain(cluster: RunningCluster, broker_id: int, *, partitions: int) -> trio.Process:
    """Starts a drain with 1 byte per second, and waits until its throttle is set and these partitions move."""
    moving = f"kbroker: {partitions} partitions are moving already"
    process = await trio.lowlevel.open_process(
        command_line(cluster, "cluster", "drain", str(broker_id), "--yes", "--throttle", "1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )
    with trio.fail_after(TIMEOUT_SECONDS):
        while not (await call(cluster, "cluster", "balance")).err.startswith(moving):
            assert process.returncode is None
    await until_throttled(cluster, is_throttled=True)
    return process


@all_brokers_live
async def test_moves_are_cancelled_interrupted_and_resumed(three: RunningCluster) -> None:
    """At 1 byte/s a move lasts until it is cancelled, or its throttle is removed."""
    await three.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])
    await create(three, TOPIC, 4, 1)
    await trio.to_thread.run_sync(write_megabytes, three, 60)
    assert (await call(three, "cluster", "replace", "2", "1", "--yes")).code == 0
    assert (await call(three, "cluster", "replace", "3", "1", "--yes")).code == 0
    before = await until_placed(three, lambda counts: counts == {1: 4, 2: 0, 3: 0})

    killed = await start_slow_drain(three, 1, partitions=4)
    killed.kill()
    await killed.wait()
    assert (await call(three, "cluster", "balance", "--cancel")).code == 0  # shows the moves, and changes nothing
    assert (await call(three, "cluster", "balance")).code == 1
    cancelled = await call(three, "cluster", "balance", "--cancel", "--yes")
    assert cancelled.out.endswith("Cancelled the moves of 4 partitions.\n"), cancelled
    assert await until_placed(three, lambda counts: counts == {1: 4, 2: 0, 3: 0}) == before
    await until_throttled(three, is_throttled=False)

    watched = await start_slow_drain(three, 1, partitions=4)
    assert (await call(three, "cluster", "balance", "--cancel", "--yes")).code == 0
    with trio.fail_after(TIMEOUT_SECONDS):
        assert await watched.wait() == 1  # it says that its moves were cancelled
    assert await until_placed(three, lambda counts: counts == {1: 4, 2: 0, 3: 0}) == before

    interrupted = await start_slow_drain(three, 1, partitions=4)
    interrupted.send_signal(signal.SIGINT)
    with trio.fail_after(TIMEOUT_SECONDS):
        assert await interrupted.wait() == 130
    await until_throttled(three, is_throttled=False)
    resumed = await call(three, "cluster", "drain", "1", "--yes")
    assert resumed.code == 0, (resumed, three.log())
    await until_placed(three, lambda counts: counts == {1: 0, 2: 2, 3: 2})

    killed = await start_slow_drain(three, 2, partitions=2)
    killed.kill()
    await killed.wait()
    resumed = await call(three, "cluster", "drain", "2", "--yes", "--throttle", str(100 * MB))
    assert resumed.code == 0, (resumed, three.log())
    await until_placed(three, lambda counts: counts == {1: 2, 2: 0, 3: 2})
    await until_throttled(three, is_throttled=False)
    assert "Traceback" not in three.log()


async def test_a_run_survives_the_death_of_the_controller(three: RunningCluster) -> None:
    await three.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])
    await create(three, TOPIC, 4, 2)
    await trio.to_thread.run_sync(write_megabytes, three, 60)
    assert (await call(three, "cluster", "drain", "1", "--yes")).code == 0
    run = await start_slow_drain(three, 3, partitions=4)

    controller, _brokers, _topics = await three.until_agreed(lambda controller, _b, _t: controller > 0)
    await three.brokers[controller].kill()
    await three.until_agreed(lambda now, _b, _t: now not in (-1, controller))
    await three.start(controller)
    await three.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])
    for broker_id in three.brokers:
        rates = [f"{role}.replication.throttled.rate={100 * MB}" for role in ("leader", "follower")]
        settings = [part for rate in rates for part in ("--set", rate)]
        assert (await call(three, "configs", "alter", "broker", str(broker_id), *settings)).code == 0

    with trio.fail_after(2 * TIMEOUT_SECONDS):
        assert await run.wait() == 0
    await until_placed(three, lambda counts: counts == {1: 4, 2: 4, 3: 0})
    await until_throttled(three, is_throttled=False)
