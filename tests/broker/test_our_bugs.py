"""Bugs of the broker: the client gets an error, the log a line, and other clients are not affected."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import trio
import trio.testing

from kbroker.log.files.filesystem import OsFile
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages.metadata import MetadataRequestTopic
from kbroker.protocol.messages.produce import PartitionProduceData, TopicProduceData
from kbroker.testing.running_broker import RunningBroker
from tests.broker.batches import make_batch
from tests.broker.conftest import Connect
from tests.broker.wire import Client, fetch_members

pytestmark = pytest.mark.usefixtures("either_watcher")


def fail(*_arguments: Any, **_named: Any) -> NoReturn:
    raise RuntimeError("a bug")


async def test_a_bug_in_a_handler_is_an_error_code(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.create_topic("t")
    await client.produce("t", make_batch(b"v"))
    monkeypatch.setattr("kbroker.server.handlers.fetch.convert_down", fail)
    assert (await client.fetch("t", 0, version=3)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert (await client.fetch("t", 0)).error_code == 0


async def test_a_bug_in_a_fetch_that_waits_does_not_reach_the_producer_that_wakes_it(
    broker: RunningBroker, connect_to: Connect, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    unlucky, lucky = await connect_to(broker), await connect_to(broker)
    await unlucky.send("Fetch", 3, **fetch_members({("t", 0): 0}, max_wait_ms=20_000))
    await lucky.send("Fetch", 11, **fetch_members({("t", 0): 0}, max_wait_ms=20_000))
    await trio.testing.wait_all_tasks_blocked(0.05)
    monkeypatch.setattr("kbroker.server.handlers.fetch.convert_down", fail)
    assert (await client.produce("t", make_batch(b"v"))).error_code == 0
    assert (await lucky.receive()).responses[0].partitions[0].records
    answer = (await unlucky.receive()).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert (await client.produce("t", make_batch(b"w"))).base_offset == 1


async def test_a_bug_in_a_write_harms_one_partition_and_leaves_nothing_half_written(
    broker: RunningBroker, connect_to: Connect, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t", 2)
    write_at = OsFile.write_at

    def fail_for_the_first(self: OsFile, buffers: Any, position: int) -> int:
        if "/t-0/" in self.path:
            fail()
        return write_at(self, buffers, position)

    producer_id = await client.new_producer_id()
    batches = [make_batch(b"%d" % partition, producer_id=producer_id) for partition in (0, 1)]
    data = [PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
    topics = [TopicProduceData(name="t", partition_data=data)]
    monkeypatch.setattr(OsFile, "write_at", fail_for_the_first)
    response = await client.ask("Produce", 9, acks=-1, timeout_ms=1000, topic_data=topics)
    failed, written = response.responses[0].partition_responses
    assert (failed.error_code != 0, written.error_code, written.base_offset) == (True, 0, 0)
    monkeypatch.setattr(OsFile, "write_at", write_at)
    # Overwrite the receive buffer of the failed batch; then send the batch again on another connection.
    assert (await client.produce("t", make_batch(b"?" * 500), partition=1)).error_code == 0
    other = await connect_to(broker)
    for partition, batch in enumerate(batches):
        answer = await other.produce("t", batch, partition=partition)
        assert (answer.error_code, answer.base_offset) == (0, 0)
    assert [record.value for record in await other.read_all("t", partition=0)] == [b"0"]
    assert [record.value for record in await other.read_all("t", partition=1)] == [b"1", b"?" * 500]


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError()], ids=["bug", "no memory"])
async def test_a_bug_while_a_large_request_is_decoded_closes_its_connection_only(
    broker: RunningBroker, connect_to: Connect, client: Client, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await client.create_topic("t")
    unlucky = await connect_to(broker)

    def fail_to_decode(*_arguments: Any, **_named: Any) -> NoReturn:
        raise error

    monkeypatch.setattr("kbroker.server.requests.large_messages._decode", fail_to_decode)
    names = [MetadataRequestTopic(name=f"topic-{number}") for number in range(30_000)]
    await unlucky.send("Metadata", 12, topics=names, allow_auto_topic_creation=False)
    assert await unlucky.wait_closed() == b""
    assert (await client.produce("t", make_batch(b"v"))).error_code == 0
