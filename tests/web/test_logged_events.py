"""Lines in the log of a whole broker that operators look for."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from kbroker.server.connection_limits import ConnectionLimits
from kbroker.server.network import Network
from kbroker.testing import Broker
from kbroker.testing.running_broker import running_broker
from tests.broker.batches import make_batch
from tests.broker.wire import connect


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", logger="kbroker")
    return caplog


def test_each_generation_of_a_group_is_one_line(log: pytest.LogCaptureFixture) -> None:
    with Broker(topics=["orders"]) as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing"})
        consumer.subscribe(["orders"])
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.close()
    lines = [line for line in log.messages if line.startswith("group billing")]
    assert lines == ["group billing: generation 1, members: 1", "group billing: generation 2, members: 0"]


async def test_a_log_that_is_cut_by_recovery_is_named(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    async with running_broker(tmp_path, topics=[("orders", 1)]) as broker, connect(broker.port) as client:
        await client.produce("orders", make_batch(b"tea"))
    assert not [line for line in log.messages if "recover" in line]
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    with (tmp_path / "orders-0" / f"{0:020}.log").open("ab") as file:
        file.write(b"torn")
    log.clear()
    async with running_broker(tmp_path):
        pass
    assert "recovering 1 partitions after an unclean stop" in log.messages
    (cut,) = [each for each in log.records if "torn end and was cut" in each.getMessage()]
    assert {"topic": "orders", "partition": 0, "log_end_offset": 1}.items() <= vars(cut).items()


class Nobody:
    """Handles no frames, and has a clock that is set by hand."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 0

    def handle(self, *_: object) -> None: ...

    def end_run(self) -> None: ...


def test_reaching_the_limit_of_connections_is_told_once_a_minute(log: pytest.LogCaptureFixture) -> None:
    nobody = Nobody()
    network = Network(nobody, ConnectionLimits(max_connections=0), nobody)
    for nobody.seconds in (0.0, 1.0, 59.0, 60.0, 61.0):
        network.sweep()
        network.report_if_full()
    assert log.messages == ["max.connections is reached: new connections wait until others end"] * 2


def test_below_the_limit_nothing_is_told(log: pytest.LogCaptureFixture) -> None:
    nobody = Nobody()
    Network(nobody, ConnectionLimits(max_connections=1), nobody).report_if_full()
    assert log.messages == []
