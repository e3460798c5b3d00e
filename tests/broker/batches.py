"""Batches as clients send them, and as they should not."""

from __future__ import annotations

import time
from collections.abc import Callable

from kbroker.protocol.compression import Codec
from kbroker.protocol.record_batch import HEADER_SIZE, BatchHeader, pack_batch, read_header
from kbroker.protocol.records import Record, build_batch

__all__ = ["LYING_BODIES", "forge", "make_batch", "now_ms"]


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


# Invalid bodies with a correct CRC


def cut_body(batch: bytearray) -> bytearray:
    return forge(batch, lambda body: body[: len(body) // 2])


def garbage_body(batch: bytearray) -> bytearray:
    return forge(batch, lambda body: b"\xff" * len(body))


LYING_BODIES: dict[str, Callable[[], bytearray]] = {
    "a record too many": lambda: forge(make_batch(b"a" * 9, b"b" * 9), last_offset_delta=2, record_count=3),
    "a record too few": lambda: forge(make_batch(b"a", b"b"), last_offset_delta=0, record_count=1),
    "a body cut in half": lambda: cut_body(make_batch(b"a" * 50, b"b" * 50)),
    "garbage": lambda: garbage_body(make_batch(b"a" * 100)),
    "a record longer than the batch": lambda: forge(make_batch(b"a"), lambda body: b"\xfe\xff\xff\xff\x0f" + body[1:]),
    "no gzip": lambda: forge(make_batch(b"a" * 100), attributes=Codec.GZIP),
    "no snappy": lambda: forge(make_batch(b"a" * 100), attributes=Codec.SNAPPY),
    "no lz4": lambda: forge(make_batch(b"a" * 100), attributes=Codec.LZ4),
    "no zstd": lambda: forge(make_batch(b"a" * 100), attributes=Codec.ZSTD),
    "half a gzip": lambda: cut_body(make_batch(b"abc" * 100, codec=Codec.GZIP)),
    "half an lz4": lambda: cut_body(make_batch(b"abc" * 100, codec=Codec.LZ4)),
    "half a zstd": lambda: cut_body(make_batch(b"abc" * 100, codec=Codec.ZSTD)),
    "a wrong delta": lambda: forge(make_batch(b"a"), lambda body: body[:3] + b"\x10" + body[4:]),
}
