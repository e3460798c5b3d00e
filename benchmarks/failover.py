"""The failover section: how long writes pause when a broker dies, when the controller dies, and in a rolling restart.

Three kbrokers and a ZooKeeper on this machine, beside three brokers of Apache Kafka 3.9 where that takes only minutes.
All three brokers, ZooKeeper and the producer share its cores.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.broker_process import JavaMissing
from benchmarks.results import Measure, Results
from benchmarks.rounds import failure_of, log_progress
from benchmarks.three_brokers import BROKERS, WAIT_SECONDS, Kind, ThreeBrokers, find_kinds, running_with_zookeeper
from benchmarks.topics import WrongAnswer
from tools.jars import FetchFailed, MavenMissing

__all__ = ["Outage", "run_failover"]

SESSION_MS = 6_000
PARTITIONS_OF_A_TOPIC = 100
RESTART_PARTITIONS = 12
RECORDS_S = 200
SETTINGS = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
}


@dataclass(frozen=True, slots=True)
class Outage:
    """Seconds from the end of the session of a killed broker until records were written to the partitions it led."""

    first: float
    median: float
    last: float
    detected: float
    """Seconds from the kill until the session had ended, which the session timeout decides."""
    partitions: int


def run_failover(results: Results, *, only: str, quick: bool) -> None:
    sizes = (60, 120) if quick else (1_000, 10_000)
    try:
        kinds = find_kinds()
    except (JavaMissing, MavenMissing, FetchFailed) as problem:
        log_progress(f"Skipped failover: it needs a ZooKeeper: {problem}")
        return
    for kind in kinds:
        for partitions, limit, is_measured in ((sizes[0], 1.5, True), (sizes[1], 5.0, kind.name == "kbroker")):
            for victim in ("broker", "controller"):
                name = f"failover: {kind.name}, {partitions:,} partitions, {victim} killed"
                if only in name and is_measured:
                    _measure(name, results, partial(_measure_outage, kind, name, partitions, limit, victim))
        name = f"failover: {kind.name}, rolling restart"
        if only in name:
            _measure(name, results, partial(_measure_restart, kind, name))


def _measure(name: str, results: Results, work: Callable[[], Measure]) -> None:
    log_progress(f"{name} …")
    failure = failure_of(lambda: results.measures.append(work()))
    if failure is not None:
        results.measures.append(Measure(name, None, "", failure=failure))


# Measures


def _measure_outage(kind: Kind, name: str, partitions: int, limit: float, victim: str) -> Measure:
    with running_with_zookeeper(kind, SETTINGS) as (brokers, zookeeper):
        outage = _outage(brokers, zookeeper, partitions, kills_controller=victim == "controller")
    note = (
        f"it led {outage.partitions} partitions; first after {outage.first:.2f} s, median {outage.median:.2f} s; "
        f"the session ended {outage.detected:.1f} s after the kill"
    )
    return Measure(name, outage.last, "s", limit, note)


def _outage(brokers: ThreeBrokers, address: str, partitions: int, *, kills_controller: bool) -> Outage:
    from kazoo.client import KazooClient

    _create_topics(brokers.bootstrap, partitions)
    leaders, controller = _wait_in_sync(brokers.bootstrap, partitions)
    victim = controller if kills_controller else next(id_ for id_ in BROKERS if id_ != controller)
    led = [key for key, leader in leaders.items() if leader == victim]
    others = ",".join(f"127.0.0.1:{port}" for broker_id, port in brokers.ports.items() if broker_id != victim)
    producer = _producer(others, is_idempotent=False)
    _write(producer, list(leaders))  # every partition has been written to, and the producer knows all leaders
    zookeeper = KazooClient(address)
    zookeeper.start(timeout=WAIT_SECONDS)
    session_ended = threading.Event()
    ended_at: list[float] = []

    def on_event(_event: object) -> None:
        ended_at.append(time.perf_counter())
        session_ended.set()

    try:
        if zookeeper.exists(f"/brokers/ids/{victim}", watch=on_event) is None:
            raise WrongAnswer(f"broker {victim} is not registered")
        killed_at = time.perf_counter()
        brokers.kill(victim)
        delivered = _write(producer, led)
        if not session_ended.wait(WAIT_SECONDS):
            raise WrongAnswer("the session of the killed broker did not end")
    finally:
        zookeeper.stop()
        zookeeper.close()
    seconds = sorted(at - ended_at[0] for at in delivered)
    return Outage(seconds[0], statistics.median(seconds), seconds[-1], ended_at[0] - killed_at, len(led))


def _producer(bootstrap: str, *, is_idempotent: bool) -> Any:
    """Returns a producer. librdkafka sends a request for each partition; an idempotent one has five under way."""
    from confluent_kafka import Producer

    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 1,
    }
    # By default librdkafka waits up to a second before it asks for the new leaders again.
    quick = dict.fromkeys(("retry.backoff.ms", "retry.backoff.max.ms", "topic.metadata.refresh.fast.interval.ms"), 50)
    return Producer({**settings, **quick, "reconnect.backoff.max.ms": 200, "log_level": 0})


def _write(producer: Any, partitions: Sequence[tuple[str, int]]) -> list[float]:
    """Writes a record to each partition. Returns when each was acknowledged."""
    delivered: list[float] = []
    failures: list[str] = []

    def on_delivery(error: object, _message: object) -> None:
        if error is None:
            delivered.append(time.perf_counter())
        else:
            failures.append(str(error))

    for topic, index in partitions:
        producer.produce(topic, b"x" * 100, partition=index, on_delivery=on_delivery)
    producer.flush(WAIT_SECONDS)
    if failures or len(delivered) < len(partitions):
        raise WrongAnswer(f"{len(delivered)} of {len(partitions)} records were acknowledged: {failures[:1]}")
    return delivered


def _create_topics(bootstrap: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(0, partitions, PARTITIONS_OF_A_TOPIC):
        new = NewTopic(f"t{number}", min(PARTITIONS_OF_A_TOPIC, partitions - number), 3)
        for future in admin.create_topics([new], operation_timeout=60, request_timeout=WAIT_SECONDS).values():
            future.result(WAIT_SECONDS)


def _wait_in_sync(bootstrap: str, partitions: int) -> tuple[dict[tuple[str, int], int], int]:
    """Waits until all replicas are in sync. Returns the leader of each partition, and the controller."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = admin.list_topics(timeout=60)
        states = {
            (name, index): partition
            for name, topic in found.topics.items()
            if not name.startswith("__")
            for index, partition in topic.partitions.items()
        }
        in_sync = sum(len(state.isrs) == len(BROKERS) and state.leader in BROKERS for state in states.values())
        if in_sync == len(states) == partitions:
            return {key: state.leader for key, state in states.items()}, found.controller_id
        if time.monotonic() > deadline:
            raise WrongAnswer(f"{in_sync} of {partitions} partitions have all replicas in sync")
        time.sleep(0.2)


def _measure_restart(kind: Kind, name: str) -> Measure:
    with running_with_zookeeper(kind, SETTINGS) as (brokers, _):
        _create_topics(brokers.bootstrap, RESTART_PARTITIONS)
        _wait_in_sync(brokers.bootstrap, RESTART_PARTITIONS)
        writer = _SteadyWriter(_producer(brokers.bootstrap, is_idempotent=True), "t0", RESTART_PARTITIONS)
        with writer.running():
            time.sleep(2)
            for broker_id in BROKERS:
                brokers.stop(broker_id)
                brokers.start(broker_id)
                _wait_in_sync(brokers.bootstrap, RESTART_PARTITIONS)
        if writer.failures:
            raise WrongAnswer(f"{len(writer.failures)} records were not written: {writer.failures[0]}")
    latencies = sorted(writer.latencies)
    note = f"{len(latencies)} records, p99 {1000 * latencies[len(latencies) * 99 // 100]:.0f} ms"
    return Measure(name, latencies[-1], "s", 1.0, note)


class _SteadyWriter:
    """Writes at a constant rate in a thread, and measures the time until each record is acknowledged."""

    def __init__(self, producer: Any, topic: str, partitions: int) -> None:
        self.latencies: list[float] = []
        self.failures: list[str] = []
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        began = time.perf_counter()
        number = 0
        while not self._stop.is_set():
            due = began + number / RECORDS_S
            while (wait := due - time.perf_counter()) > 0:
                self._producer.poll(wait)
            self._producer.poll(0)
            on_delivery = partial(self._on_delivery, time.perf_counter())
            index = number % self._partitions
            self._producer.produce(self._topic, b"x" * 100, partition=index, on_delivery=on_delivery)
            number += 1
        self._producer.flush(WAIT_SECONDS)

    def _on_delivery(self, sent_at: float, error: object, _message: object) -> None:
        if error is None:
            self.latencies.append(time.perf_counter() - sent_at)
        else:
            self.failures.append(str(error))
