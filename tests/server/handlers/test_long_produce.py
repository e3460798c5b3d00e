"""Produce requests whose batches are checked in a thread: what happens meanwhile, and afterwards.

The check itself is at once here, but its result arrives only when the test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest
import trio

from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_topics, produce
from kbroker.protocol.records import iter_records
from kbroker.server.requests.thread_work import ThreadWork
from tests.log.batches import NOW, make_batch
from tests.server.conftest import StartBroker
from tests.server.handlers.harness import HandlerBroker

T = TypeVar("T")

PRODUCE = 0
DELETE_TOPICS = 20
VERSION = 9


class GatedWork:
    """Checks on the loop, and keeps the result until the gate opens."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.runs = 0
        self.has_begun = trio.Event()

    async def run(self, work: Callable[..., T]) -> T:
        self.runs += 1
        result = work(pause=lambda: None)
        self.has_begun.set()
        await self.gate.wait()
        return result


@pytest.fixture
def work() -> GatedWork:
    return GatedWork()


@pytest.fixture
async def broker(start_broker: StartBroker, work: GatedWork) -> HandlerBroker:
    broker = await start_broker(kbroker_record_validation="full")
    broker.context.thread_work = cast(ThreadWork, work)
    await broker.create_topic("t", partitions=3)
    return broker


def long_batch(**arguments: Any) -> bytearray:
    """Returns a small batch of so many bytes when decompressed that a thread must check it."""
    batch = make_batch(bytes(1 << 20), codec=Codec.ZSTD, **arguments)
    assert len(batch) < 1000
    return batch


def partition_data(*batches: bytes | bytearray) -> list[Any]:
    data = [produce.PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
    return [produce.TopicProduceData(name="t", partition_data=data)]


async def ask(broker: HandlerBroker, *batches: bytes | bytearray, acks: int = 1) -> list[Any]:
    response = await broker.ask(PRODUCE, VERSION, acks=acks, timeout_ms=1000, topic_data=partition_data(*batches))
    answers: list[Any] = response.responses[0].partition_responses
    return answers


class Asked:
    """A request that is under way."""

    def __init__(self, broker: HandlerBroker, nursery: trio.Nursery, *batches: bytes | bytearray) -> None:
        self.answers: list[Any] = []
        nursery.start_soon(self._ask, broker, batches)

    async def _ask(self, broker: HandlerBroker, batches: tuple[bytes | bytearray, ...]) -> None:
        self.answers = await ask(broker, *batches)

    @property
    def codes(self) -> list[int]:
        return [answer.error_code for answer in self.answers]


async def test_a_batch_is_appended_after_its_check(broker: HandlerBroker, work: GatedWork) -> None:
    work.gate.set()
    (answer,) = await ask(broker, long_batch())
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (0, 0, 0)
    (answer,) = await ask(broker, long_batch())
    assert answer.base_offset == 1
    assert work.runs == 2
    (answer,) = await ask(broker, make_batch(b"short"))
    assert (answer.base_offset, work.runs) == (2, 2)


async def test_a_wrong_batch_is_rejected_after_its_check(broker: HandlerBroker, work: GatedWork) -> None:
    work.gate.set()
    batch = make_batch(bytes(1 << 20), b"last", codec=Codec.ZSTD)
    (answer,) = await ask(broker, batch[:-5] + bytes(5))
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE  # the CRC is checked at once
    assert work.runs == 0
    compacted = {"cleanup.policy": "compact"}
    await broker.create_topic("compacted", configs=compacted)
    data = [produce.PartitionProduceData(index=0, records=long_batch(key=None))]
    topics = [produce.TopicProduceData(name="compacted", partition_data=data)]
    response = await broker.ask(PRODUCE, VERSION, acks=1, timeout_ms=1000, topic_data=topics)
    (answer,) = response.responses[0].partition_responses
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert [error.batch_index for error in answer.record_errors] == [0]


async def test_batches_of_other_connections_are_appended_meanwhile(
    broker: HandlerBroker, work: GatedWork, nursery: trio.Nursery
) -> None:
    long = Asked(broker, nursery, long_batch())
    await work.has_begun.wait()
    (answer,) = await ask(broker, make_batch(b"short"))
    assert answer.base_offset == 0
    work.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert [answer.base_offset for answer in long.answers] == [1]
    values = [len(record.value or b"") for record in iter_records(read(broker, 0)[1])]
    assert values == [1 << 20]


def read(broker: HandlerBroker, index: int) -> list[bytes]:
    """Returns the batches of a partition."""
    log = broker.log("t", index)
    batches = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, 1, up_to=log.log_end_offset, min_one_batch=True)
        assert found is not None
        assert not isinstance(found, ErrorCode)
        batches.append(found.read())
        found.release()
        offset = offset + 1
    return batches


async def test_partitions_of_one_request_wait_for_each_other_only_for_the_response(
    broker: HandlerBroker, work: GatedWork, nursery: trio.Nursery
) -> None:
    asked = Asked(broker, nursery, make_batch(b"a"), long_batch(), make_batch(b"c"))
    await work.has_begun.wait()
    assert [broker.log("t", index).log_end_offset for index in range(3)] == [1, 0, 1]
    assert asked.answers == []
    work.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert asked.codes == [0, 0, 0]
    assert [answer.index for answer in asked.answers] == [0, 1, 2]
    assert broker.log("t", 1).log_end_offset == 1


async def test_a_topic_that_is_deleted_during_a_check_is_unknown(
    broker: HandlerBroker, work: GatedWork, nursery: trio.Nursery
) -> None:
    asked = Asked(broker, nursery, make_batch(b"a"), long_batch())
    await work.has_begun.wait()
    topics = [delete_topics.DeleteTopicState(name="t")]
    await broker.ask(DELETE_TOPICS, 6, topics=topics, timeout_ms=1000)
    work.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert asked.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_topic_that_is_created_anew_during_a_check_does_not_get_the_batch(
    broker: HandlerBroker, work: GatedWork, nursery: trio.Nursery
) -> None:
    asked = Asked(broker, nursery, long_batch())
    await work.has_begun.wait()
    topics = [delete_topics.DeleteTopicState(name="t")]
    await broker.ask(DELETE_TOPICS, 6, topics=topics, timeout_ms=1000)
    await broker.create_topic("t")
    work.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert asked.codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert broker.log("t").log_end_offset == 0


async def test_a_new_leader_epoch_fails_the_batches_that_were_written_before(
    broker: HandlerBroker, work: GatedWork, nursery: trio.Nursery
) -> None:
    asked = Asked(broker, nursery, make_batch(b"a"), long_batch())
    await work.has_begun.wait()
    partition = broker.partitions.get("t", 0)
    assert partition is not None
    partition.leader_epoch += 1
    work.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert asked.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]


async def test_a_log_append_time_is_the_same_in_the_batch_and_in_the_response(
    broker: HandlerBroker, work: GatedWork
) -> None:
    work.gate.set()
    await broker.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    data = [produce.PartitionProduceData(index=0, records=long_batch(timestamp=5))]
    topics = [produce.TopicProduceData(name="stamped", partition_data=data)]
    response = await broker.ask(PRODUCE, VERSION, acks=1, timeout_ms=1000, topic_data=topics)
    (answer,) = response.responses[0].partition_responses
    assert (answer.error_code, answer.log_append_time_ms) == (0, NOW)
