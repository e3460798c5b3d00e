"""Codecs: round trips, foreign encoders, the bound on output, and no exception but one."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from contextlib import suppress

import kafka.codec
import lz4.frame
import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.compression import (
    Codec,
    break_lz4_header,
    compress,
    decompress,
    mend_lz4_header,
)
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import InvalidBatch

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
TEXT = b"the same words, again and again; " * 5000


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=2000), repeat=st.integers(1, 50))
def test_what_was_compressed_comes_back(codec: Codec, data: bytes, repeat: int) -> None:
    data *= repeat
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_view_serves_as_well_as_bytes(codec: Codec) -> None:
    padded = memoryview(b"xx" + compress(codec, memoryview(TEXT)) + b"xx")
    assert decompress(codec, padded[2:-2]) == TEXT


@pytest.mark.parametrize("codec", COMPRESSED)
def test_output_may_have_exactly_the_size_of_the_bound_and_not_a_byte_more(codec: Codec) -> None:
    compressed = compress(codec, TEXT)
    assert decompress(codec, compressed, len(TEXT)) == TEXT
    with pytest.raises(InvalidBatch):
        decompress(codec, compressed, len(TEXT) - 1)


def test_plain_bytes_are_bounded_too() -> None:
    assert decompress(Codec.NONE, b"abc", 3) == b"abc"
    with pytest.raises(InvalidBatch):
        decompress(Codec.NONE, b"abc", 2)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_is_refused_without_its_memory(codec: Codec) -> None:
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidBatch):
            decompress(codec, bomb, 1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(bomb) * 4 + (4 << 20)


def test_output_far_larger_than_the_input_comes_out_whole() -> None:
    for codec in COMPRESSED:
        assert decompress(codec, compress(codec, bytes(5 << 20))) == bytes(5 << 20)


@pytest.mark.parametrize("claimed", [1 << 20, (1 << 32) - 1])
def test_a_raw_snappy_length_that_its_bytes_cannot_hold_is_refused(claimed: int) -> None:
    length = bytearray()
    while claimed > 0x7F:
        length.append(claimed & 0x7F | 0x80)
        claimed >>= 7
    length.append(claimed)
    with pytest.raises(InvalidBatch, match="claims"):
        decompress(Codec.SNAPPY, bytes(length) + b"\x00a", 1 << 33)


@pytest.mark.parametrize("codec", range(8))
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_invalid_batch(codec: int, data: bytes) -> None:
    _decompress_or_refuse(codec, data)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.binary(max_size=300), position=st.integers(0, 1 << 16), bit=st.integers(0, 7), cut=st.integers(0, 40))
def test_damaged_streams_raise_nothing_but_invalid_batch(
    codec: Codec, data: bytes, position: int, bit: int, cut: int
) -> None:
    damaged = bytearray(compress(codec, data * 5))
    damaged[position % len(damaged)] ^= 1 << bit
    _decompress_or_refuse(codec, damaged)
    _decompress_or_refuse(codec, damaged[: len(damaged) - cut])


def _decompress_or_refuse(codec: int, data: bytes | bytearray) -> None:
    with suppress(InvalidBatch):
        assert len(decompress(codec, data, 1 << 20)) <= 1 << 20


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_stream_that_is_cut_off_is_refused(codec: Codec) -> None:
    compressed = compress(codec, TEXT)
    for size in (0, 1, len(compressed) // 2, len(compressed) - 1):
        with pytest.raises(InvalidBatch) as refusal:
            decompress(codec, compressed[:size])
        assert refusal.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("damage", [b"\x00", b"\x00\x00\x00", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"])
def test_a_xerial_block_that_does_not_fit_is_refused(damage: bytes) -> None:
    with pytest.raises(InvalidBatch):
        decompress(Codec.SNAPPY, compress(Codec.SNAPPY, b"words") + damage)


def test_a_xerial_header_that_is_cut_off_is_refused() -> None:
    with pytest.raises(InvalidBatch):
        decompress(Codec.SNAPPY, XERIAL_HEADER[:10])


def test_snappy_is_written_as_xerial_blocks_of_32_kb() -> None:
    compressed = compress(Codec.SNAPPY, TEXT)
    assert compressed.startswith(XERIAL_HEADER)
    (first,) = struct.unpack_from(">i", compressed, 16)
    assert snappy.decompress(compressed[20 : 20 + first]) == TEXT[: 32 << 10]


def test_raw_snappy_is_understood() -> None:
    assert decompress(Codec.SNAPPY, snappy.compress(TEXT)) == TEXT


def test_xerial_streams_appended_to_one_another_are_one() -> None:
    stream = compress(Codec.SNAPPY, b"one ") + compress(Codec.SNAPPY, b"two")
    assert decompress(Codec.SNAPPY, stream) == b"one two"


def test_gzip_members_appended_to_one_another_are_one() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


def test_foreign_encoders_are_understood_and_understand_us() -> None:
    assert decompress(Codec.GZIP, gzip.compress(TEXT)) == TEXT
    assert gzip.decompress(compress(Codec.GZIP, TEXT)) == TEXT
    assert decompress(Codec.LZ4, lz4.frame.compress(TEXT)) == TEXT
    assert lz4.frame.decompress(compress(Codec.LZ4, TEXT)) == TEXT
    assert decompress(Codec.SNAPPY, kafka.codec.snappy_encode(TEXT)) == TEXT
    assert kafka.codec.snappy_decode(compress(Codec.SNAPPY, TEXT)) == TEXT


def test_lz4_blocks_are_independent_for_java_reads_no_others() -> None:
    assert lz4.frame.get_frame_info(compress(Codec.LZ4, TEXT))["block_linked"] is False


@pytest.mark.parametrize(("codec", "low", "high"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 12), (Codec.ZSTD, -5, 15)])
def test_a_level_changes_the_effort_not_the_meaning(codec: Codec, low: int, high: int) -> None:
    fast, small = compress(codec, TEXT, low), compress(codec, TEXT, high)
    assert fast != small
    assert decompress(codec, fast) == decompress(codec, small) == TEXT


def test_kafkas_default_gzip_level_is_the_librarys() -> None:
    assert compress(Codec.GZIP, TEXT, -1) == compress(Codec.GZIP, TEXT)


def test_compressing_with_an_unknown_codec_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="unknown compression codec"):
        compress(5, b"")


@pytest.mark.parametrize("content_size", [False, True])
def test_the_lz4_header_of_magic_0_is_mended(content_size: bool) -> None:
    frame = lz4.frame.compress(TEXT, store_size=content_size)
    broken = break_lz4_header(frame)
    assert broken != frame
    with pytest.raises(InvalidBatch):
        decompress(Codec.LZ4, broken)
    assert mend_lz4_header(broken) == frame
    assert mend_lz4_header(frame) == frame


@given(st.binary(max_size=20).map(lambda rest: b"\x04\x22\x4d\x18" + rest) | st.binary(max_size=20))
def test_mending_whatever_bytes_raises_nothing_but_invalid_batch(data: bytes) -> None:
    with suppress(InvalidBatch):
        assert len(mend_lz4_header(data)) == len(data)
