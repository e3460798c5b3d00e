"""A shard is rebuilt from whatever its log holds."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from kbroker.config.broker import BrokerConfig
from kbroker.config.topic import topic_config
from kbroker.controller.image import PartitionState
from kbroker.coordinator.loader import Loader
from kbroker.group.hard_state import HardState
from kbroker.group.offset_replay import OffsetReplay
from kbroker.group.records import StoredGroup, group_record, group_tombstone, offset_record, offset_tombstone
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.log.log_config import LogConfig
from kbroker.protocol.compression import Codec
from kbroker.protocol.keyed_batch import KeyAndValue
from kbroker.protocol.record_batch import restamp_max_timestamp
from kbroker.protocol.records import Record, build_batch
from kbroker.replication.flusher import Flusher
from kbroker.replication.partition import Partition
from kbroker.replication.peers import Peers
from kbroker.replication.storage_gate import StorageGate
from tests.coordinator.harness import NOW_MS, StillClock
from tests.log.batches import closed_log, make_batch, make_marker


class GrowingClock(StillClock):
    """Every look at it costs a second: so every slice ends at once."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1
        return self.seconds


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    partition = Partition(
        "__consumer_offsets",
        0,
        bytes(16),
        closed_log(OsFileSystem(), str(tmp_path / "log"), LogConfig(segment_bytes=100_000)),
        topic_config(BrokerConfig.from_properties({}), {}),
        gate=StorageGate(str(tmp_path)),
        flusher=Flusher(StillClock()),
        dirty=set(),
    )
    partition.become_leader(PartitionState(1, 0, (1,), (1,), 0), Peers(1, StillClock(), 30_000))
    return partition


def write(partition: Partition, records: Sequence[KeyAndValue], *, codec: int = Codec.NONE) -> None:
    batch = build_batch([Record(index, NOW_MS, key, value) for index, (key, value) in enumerate(records)], codec=codec)
    append(partition, batch)


def append(partition: Partition, batch: bytearray) -> None:
    assert partition.append_internal(batch, NOW_MS).error == 0


def offset(partition: int, value: int = 7, *, group: str = "group") -> KeyAndValue:
    return offset_record(group, "topic", partition, (value, 1, "", NOW_MS, -1))


async def load(partition: Partition) -> HardState:
    hard = HardState()
    await Loader(partition, partial(OffsetReplay, hard), StillClock()).load()
    return hard


def values(hard: HardState, group: str = "group") -> dict[int, int]:
    return {index: committed[0] for (_, index), committed in hard.offsets.get(group, {}).items()}


async def test_an_empty_log_makes_an_empty_shard(partition: Partition) -> None:
    assert await load(partition) == HardState()


async def test_the_last_record_of_each_key_counts(partition: Partition) -> None:
    write(partition, [offset(0, 1), offset(1, 1), group_record("group", StoredGroup("consumer", 3))])
    write(partition, [offset(0, 2), offset_tombstone("group", "topic", 1), group_tombstone("other")])
    hard = await load(partition)
    assert values(hard) == {0: 2}
    assert hard.groups == {"group": StoredGroup("consumer", 3)}


async def test_many_segments_and_batches_are_read(partition: Partition) -> None:
    for number in range(300):
        write(partition, [offset(number * 10 + index, number) for index in range(10)])
    assert len(partition.log.segment_base_offsets) > 1
    hard = await load(partition)
    assert values(hard) == {number * 10 + index: number for number in range(300) for index in range(10)}


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
async def test_compressed_batches_are_read(partition: Partition, codec: int) -> None:
    write(partition, [offset(number) for number in range(20)], codec=codec)
    assert len(values(await load(partition))) == 20


async def test_offsets_of_transactions_count_when_they_are_committed(partition: Partition) -> None:
    for producer_id, number in ((1, 0), (2, 1), (3, 2)):
        key, value = offset(number)
        batch = build_batch(
            [Record(0, NOW_MS, key, value)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        append(partition, batch)
    append(partition, make_marker(1, commit=True))
    append(partition, make_marker(2, commit=False))
    assert values(await load(partition)) == {0: 7}


async def test_a_record_that_is_not_readable_takes_no_other_along(
    partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    write(partition, [offset(0), (b"\0\1\0\5broken", b"value"), (b"\0\2\0\1g", b"\0\x63"), offset(1)])
    assert values(await load(partition)) == {0: 7, 1: 7}
    assert caplog.text.count("unreadable record") == 2


async def test_a_batch_that_does_not_parse_takes_no_other_along(
    partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    broken = make_batch(b"value", codec=Codec.NONE)
    broken[22] = Codec.GZIP  # what follows is no gzip; the CRC is put right again
    restamp_max_timestamp(broken, 0, NOW_MS)
    write(partition, [offset(0)])
    append(partition, broken)
    write(partition, [offset(1)])
    assert values(await load(partition)) == {0: 7, 1: 7}
    assert "Skipped a corrupt batch" in caplog.text


async def test_others_run_while_a_shard_is_loaded(partition: Partition) -> None:
    write(partition, [offset(number) for number in range(1000)])
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        await Loader(partition, partial(OffsetReplay, HardState()), GrowingClock()).load()
        nursery.cancel_scope.cancel()
    assert turns >= 15  # once for each 64 records at least


async def test_the_collector_is_left_as_it_was(partition: Partition) -> None:
    write(partition, [offset(0)])
    gc.unfreeze()  # a broker may have run in this process
    await load(partition)
    assert gc.get_freeze_count() == 0


async def test_a_heap_that_somebody_froze_stays_frozen(partition: Partition) -> None:
    write(partition, [offset(0)])
    gc.freeze()
    try:
        await load(partition)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


async def test_the_collector_walks_what_was_loaded_no_more(partition: Partition) -> None:
    for number in range(100):
        write(partition, [offset(number * 100 + index) for index in range(100)])
    hard = await load(partition)
    assert not gc.is_tracked(hard.offsets["group"])
