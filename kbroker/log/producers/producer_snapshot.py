"""`.snapshot`: the producer state of a partition at the offset in the file name. Kafka's version 1:

    version int16 | crc uint32 (CRC-32C of the rest) | count int32 | count times
    producer id int64, epoch int16, last sequence int32, last offset int64, offset delta int32, timestamp int64,
    coordinator epoch int32, first offset of the open transaction int64

Of the five batches of a producer in memory, only the last is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from kbroker.log.producers.producer_state import MAX_SEQUENCE, BatchTrace, ProducerEntry
from kbroker.protocol.crc32c import crc32c

__all__ = ["SNAPSHOT_SUFFIX", "CorruptSnapshot", "decode_snapshot", "encode_snapshot"]

SNAPSHOT_SUFFIX = ".snapshot"
_VERSION = 1
_HEAD = Struct(">hIi")
_CRC_END = 6
_ENTRY = Struct(">qhiqiqiq")


class CorruptSnapshot(Exception):
    """Raised for an incomplete snapshot or another version: an older snapshot or the log is used instead."""


def encode_snapshot(entries: Mapping[int, ProducerEntry]) -> bytes:
    out = bytearray(_HEAD.pack(_VERSION, 0, len(entries)))
    for producer_id, entry in entries.items():
        delta = 0
        if entry.batches:
            delta = entry.batches[-1].last_offset - entry.batches[-1].base_offset
        out += _ENTRY.pack(
            producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            delta,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
    _HEAD.pack_into(out, 0, _VERSION, crc32c(memoryview(out)[_CRC_END:]), len(entries))
    return bytes(out)


def decode_snapshot(content: bytes) -> list[tuple[int, ProducerEntry]]:
    if len(content) < _HEAD.size:
        raise CorruptSnapshot(f"{len(content)} bytes")
    version, crc, count = _HEAD.unpack_from(content)
    if version != _VERSION or crc != crc32c(memoryview(content)[_CRC_END:]):
        raise CorruptSnapshot(f"version {version} or wrong CRC")
    if len(content) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"{count} entries in {len(content)} bytes")
    return [_entry(*fields) for fields in _ENTRY.iter_unpack(content[_HEAD.size :])]


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> tuple[int, ProducerEntry]:
    batches: tuple[BatchTrace, ...] = ()
    if last_offset >= 0:
        first_sequence = (last_sequence - delta) & MAX_SEQUENCE
        batches = (BatchTrace(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp),)
    return producer_id, ProducerEntry(epoch, batches, timestamp, coordinator_epoch, txn_first_offset)
