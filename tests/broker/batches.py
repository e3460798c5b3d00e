"""Batches as clients send them, and as they should not."""

from __future__ import annotations

import time
from collections.abc import Callable

from kbroker.protocol.compression import Codec
from kbroker.protocol.record_batch import HEADER_SIZE, BatchHeader, pack_batch, read_header
from kbroker.protocol.records import Record, build_batch

__all__ = ["forge", "make_batch", "now_ms"]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_batch(
    *values: bytes,
    key: bytes | None = b"k",
    timestamp: int | None = None,
    codec: int = Codec.NONE,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = 0,
) -> bytearray:
    at = now_ms() if timestamp is None else timestamp
    return build_batch(
        [Record(number, at, key, value) for number, value in enumerate(values or (b"v",))],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
    )


def forge(batch: bytearray, change_body: Callable[[bytes], bytes] = bytes, /, **header: int) -> bytearray:
    """The batch with other claims in its header, or another body, under a CRC that is right."""
    changed: BatchHeader = read_header(batch)._replace(**header)
    return pack_batch(changed, change_body(bytes(batch[HEADER_SIZE:])))
