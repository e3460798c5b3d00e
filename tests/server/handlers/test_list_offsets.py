"""ListOffsets: earliest, latest, by timestamp, by isolation level, fenced by epoch, and in the format of v0."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import StorageFailure
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import list_offsets as messages
from tests.log.batches import NOW, append_as_leader, make_batch, make_marker
from tests.server.handlers.harness import HandlerBroker

LIST_OFFSETS = 2
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


async def ask(
    broker: HandlerBroker,
    *timestamps: int,
    name: str = "a",
    version: int = 10,
    replica_id: int = -1,
    isolation_level: int = 0,
    epoch: int = -1,
    max_num_offsets: int = 1,
    indexes: list[int] | None = None,
) -> list[Any]:
    """Requests one offset for each timestamp, of partition 0 or of the partitions in `indexes`."""
    wanted = [
        messages.ListOffsetsPartition(
            partition_index=index, timestamp=timestamp, current_leader_epoch=epoch, max_num_offsets=max_num_offsets
        )
        for index, timestamp in zip(indexes or [0] * len(timestamps), timestamps, strict=True)
    ]
    topic = messages.ListOffsetsTopic(name=name, partitions=wanted)
    response = await broker.ask(
        LIST_OFFSETS, version, replica_id=replica_id, isolation_level=isolation_level, topics=[topic]
    )
    (answer,) = response.topics
    assert answer.name == name
    partitions: list[Any] = answer.partitions
    return partitions


async def find(broker: HandlerBroker, timestamp: int, **options: Any) -> tuple[int, int, int, int]:
    (answer,) = await ask(broker, timestamp, **options)
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


async def test_an_empty_partition_begins_and_ends_at_zero(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    for version in range(1, 11):
        epoch = 0 if version >= 4 else -1
        assert await find(broker, LATEST, version=version) == (0, 0, -1, epoch)
        assert await find(broker, EARLIEST, version=version) == (0, 0, -1, epoch)
    assert await find(broker, NOW) == (0, -1, -1, -1)
    assert await find(broker, MAX_TIMESTAMP) == (0, -1, -1, -1)


async def test_earliest_and_latest_are_the_ends_of_the_log(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", b"1", b"2"))
    broker.log("a").delete_records_before(1)
    for version in range(1, 11):
        epoch = 0 if version >= 4 else -1
        assert await find(broker, EARLIEST, version=version) == (0, 1, -1, epoch)
        assert await find(broker, LATEST, version=version) == (0, 3, -1, epoch)
    assert await find(broker, EARLIEST_LOCAL) == (0, 1, -1, 0)
    assert await find(broker, LATEST_TIERED) == (0, -1, -1, -1)


async def test_a_timestamp_finds_the_first_record_that_is_not_older(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", b"1", timestamps=[NOW - 30, NOW - 20]))
    broker.append("a", make_batch(b"2", b"3", timestamps=[NOW - 5, NOW - 10]))
    assert await find(broker, 0) == (0, 0, NOW - 30, 0)
    assert await find(broker, NOW - 25) == (0, 1, NOW - 20, 0)
    assert await find(broker, NOW - 20) == (0, 1, NOW - 20, 0)
    assert await find(broker, NOW - 10) == (0, 2, NOW - 5, 0)
    assert await find(broker, NOW) == (0, -1, -1, -1)
    assert await find(broker, MAX_TIMESTAMP) == (0, 2, NOW - 5, 0)


async def test_special_timestamps_are_refused_before_the_version_that_has_them(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    since = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, -6: 99, -(1 << 63): 99}
    for version in range(11):
        for timestamp, first in since.items():
            (answer,) = await ask(broker, timestamp, version=version)
            expected = 0 if version >= first else ErrorCode.UNSUPPORTED_VERSION
            assert answer.error_code == expected, (version, timestamp)


async def test_committed_readers_see_the_last_stable_offset(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", timestamp=NOW - 10))
    broker.append("a", make_batch(b"1", timestamp=NOW - 5, producer_id=7, transactional=True))
    assert (await find(broker, LATEST, isolation_level=0))[1] == 2
    assert (await find(broker, LATEST, isolation_level=1))[1] == 1
    assert (await find(broker, NOW - 7, isolation_level=0))[1] == 1
    assert (await find(broker, NOW - 7, isolation_level=1)) == (0, -1, -1, -1)
    assert (await find(broker, MAX_TIMESTAMP, isolation_level=1)) == (0, -1, -1, -1)
    broker.append("a", make_marker(7, commit=True), internal=True)
    assert (await find(broker, LATEST, isolation_level=1))[1] == 3


async def test_consumers_see_up_to_the_high_watermark_and_debugging_consumers_see_all(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", timestamp=NOW - 10))
    append_as_leader(broker.log("a"), make_batch(b"1", timestamp=NOW - 5), 0, NOW)
    assert (await find(broker, LATEST))[1] == 1
    assert (await find(broker, LATEST, replica_id=-2))[1] == 2
    assert (await find(broker, NOW - 5)) == (0, -1, -1, -1)
    assert (await find(broker, NOW - 5, replica_id=-2))[1] == 1


async def test_another_leader_epoch_is_fenced_from_v4_on(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0"))
    await broker.controller.bump_leader_epochs([("a", 0)])
    broker.append("a", make_batch(b"1"), epoch=1)
    for version in range(4, 11):
        assert (await find(broker, LATEST, epoch=0, version=version))[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await find(broker, LATEST, epoch=2, version=version))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await find(broker, LATEST, epoch=1, version=version) == (0, 2, -1, 1)
        assert await find(broker, EARLIEST, epoch=1, version=version) == (0, 0, -1, 0)


async def test_unknown_partitions_are_reported_in_every_version(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for version in range(11):
        answers = await ask(broker, LATEST, LATEST, indexes=[1, -1], version=version)
        assert [answer.error_code for answer in answers] == [unknown, unknown]
        (answer,) = await ask(broker, LATEST, name="absent", version=version)
        assert (answer.error_code, answer.offset, answer.old_style_offsets) == (unknown, -1, [])


async def test_a_partition_led_by_another_broker_is_refused(
    broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create_topic("a")
    monkeypatch.setattr(broker.partitions, "get", lambda name, index: None)
    (answer,) = await ask(broker, LATEST)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_partition_named_twice_gets_one_error(broker: HandlerBroker) -> None:
    await broker.create_topic("a", 2)
    answers = await ask(broker, LATEST, LATEST, EARLIEST, indexes=[0, 1, 0])
    assert {answer.partition_index: answer.error_code for answer in answers} == {0: ErrorCode.INVALID_REQUEST, 1: 0}
    assert len(answers) == 2


async def test_topics_that_may_not_be_described_are_refused(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.allow((AclOperation.READ, "a"))
    for version in range(11):
        (answer,) = await ask(broker, LATEST, version=version)
        assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_storage_failure_is_reported(broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(log: object, timestamp: int) -> None:
        raise StorageFailure("broken")

    await broker.create_topic("a")
    monkeypatch.setattr(type(broker.log("a")), "offset_for_timestamp", fail)
    assert (await find(broker, NOW))[0] == ErrorCode.KAFKA_STORAGE_ERROR


async def old_offsets(broker: HandlerBroker, timestamp: int, count: int = 100, replica_id: int = -1) -> list[int]:
    (answer,) = await ask(broker, timestamp, version=0, max_num_offsets=count, replica_id=replica_id)
    assert answer.error_code == 0
    offsets: list[int] = answer.old_style_offsets
    return offsets


async def test_v0_returns_segment_starts_newest_first(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    assert await old_offsets(broker, LATEST) == [0]
    assert await old_offsets(broker, EARLIEST) == [0]
    for age in (30, 20, 10):
        broker.append("a", make_batch(b"x", b"y", timestamp=NOW - age))
        if age > 10:
            broker.log("a").roll(NOW)
    assert await old_offsets(broker, LATEST) == [6, 4, 2, 0]
    assert await old_offsets(broker, LATEST, 1) == [6]
    assert await old_offsets(broker, LATEST, 2) == [6, 4]
    assert await old_offsets(broker, LATEST, 0) == []
    assert await old_offsets(broker, EARLIEST) == [0]
    assert await old_offsets(broker, NOW - 31) == []
    assert await old_offsets(broker, NOW - 30) == [0]
    assert await old_offsets(broker, NOW - 15) == [2, 0]
    assert await old_offsets(broker, NOW - 5) == [
        4,
        2,
        0,
    ]  # all segments are older, but the log end is as recent as the clock
    assert await old_offsets(broker, NOW) == [6, 4, 2, 0]


async def test_v0_offsets_are_between_log_start_and_high_watermark(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", b"1"))
    broker.log("a").delete_records_before(1)
    append_as_leader(broker.log("a"), make_batch(b"2"), 0, NOW)
    assert await old_offsets(broker, EARLIEST) == [1]
    assert await old_offsets(broker, LATEST) == [2, 1]
    assert await old_offsets(broker, LATEST, replica_id=-2) == [3, 1]


async def test_many_unloaded_logs_are_loaded_in_slices(broker: HandlerBroker) -> None:
    await broker.create_topic("a", partitions=40)
    broker.append("a", make_batch(b"one"), 39)
    answers = await ask(broker, *[LATEST] * 40, indexes=list(range(40)))
    assert [(answer.partition_index, answer.error_code, answer.offset) for answer in answers] == [
        (index, 0, 1 if index == 39 else 0) for index in range(40)
    ]
