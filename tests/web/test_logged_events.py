"""Log lines of a whole broker that operators look for."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from kbroker.server.wire.connection_reports import ConnectionReports
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
    lines = [line for line in log.messages if " group billing" in f" {line.lower()}"]
    assert lines == [
        "Stabilized group billing generation 1 with 1 members",
        "Group billing with generation 2 is now empty",
    ]


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
    assert "Recovering 1 logs since no clean shutdown file was found" in log.messages
    (cut,) = [record for record in log.records if "incomplete end and was truncated" in record.getMessage()]
    assert {"topic": "orders", "partition": 0, "log_end_offset": 1}.items() <= vars(cut).items()


def test_reaching_max_connections_is_logged_once_a_minute(log: pytest.LogCaptureFixture) -> None:
    reports = ConnectionReports(0.0)
    for now in (0.0, 1.0, 59.0, 60.0, 61.0):
        reports.connections_full(1, now)
    assert log.messages == ["Reached max.connections: new connections wait until others are closed"] * 2
