from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.log.append_rules import AppendRules, Rejection
from kbroker.log.log_config import LogConfig
from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.legacy_message_set import build_message_set
from kbroker.protocol.record_batch import (
    BatchHeader,
    pack_batch,
    read_header,
    restamp_max_timestamp,
    validate_batch,
)
from kbroker.protocol.records import Record, iter_records
from tests.log.batches import NOW, make_batch, make_marker


def accept(batch: bytearray, config: LogConfig | None = None) -> tuple[bytearray, BatchHeader]:
    checked = AppendRules(config or LogConfig()).check(batch, NOW)
    assert not isinstance(checked, Rejection), checked
    buffer, header = checked
    assert validate_batch(buffer) == header
    return bytearray(buffer), header


def refuse(batch: bytearray, config: LogConfig | None = None) -> Rejection:
    checked = AppendRules(config or LogConfig()).check(batch, NOW)
    assert isinstance(checked, Rejection), checked
    return checked


def change_header(batch: bytearray, **fields: int) -> bytearray:
    """With a right CRC, so that only the lie itself can be noticed."""
    return pack_batch(read_header(batch)._replace(**fields), bytes(batch[61:]))


def test_an_ordinary_batch_is_taken_as_it_is() -> None:
    batch = make_batch(b"a", b"b")
    assert accept(bytearray(batch))[0] == batch


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (make_batch(b"a")[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (make_batch(b"a")[:-1], ErrorCode.INVALID_RECORD),
        (make_batch(b"a") + make_batch(b"b"), ErrorCode.INVALID_RECORD),
        (bytearray(), ErrorCode.INVALID_RECORD),
        (change_header(make_batch(b"a"), record_count=2), ErrorCode.INVALID_RECORD),
        (change_header(make_batch(b"a"), last_offset_delta=5), ErrorCode.INVALID_RECORD),
        (change_header(make_batch(b"a"), attributes=6), ErrorCode.INVALID_RECORD),
        (change_header(make_batch(b"a"), base_offset=3), ErrorCode.INVALID_RECORD),
        (change_header(make_batch(b"a"), attributes=8), ErrorCode.INVALID_TIMESTAMP),
        (change_header(make_batch(b"a"), producer_id=5, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (make_marker(5, commit=True), ErrorCode.INVALID_RECORD),
    ],
)
def test_a_header_that_lies_is_refused(batch: bytearray, code: ErrorCode) -> None:
    assert refuse(batch).code == code


def test_a_batch_above_max_message_bytes_is_too_large() -> None:
    batch = make_batch(b"a" * 100)
    assert refuse(batch, LogConfig(max_message_bytes=len(batch) - 1)).code == ErrorCode.MESSAGE_TOO_LARGE
    accept(batch, LogConfig(max_message_bytes=len(batch)))


BOUNDED = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)


@pytest.mark.parametrize(("timestamps", "guilty"), [([NOW - 1001, NOW], 0), ([NOW, NOW + 501], 1)])
def test_a_timestamp_out_of_bounds_names_its_record(timestamps: list[int], guilty: int) -> None:
    rejection = refuse(make_batch(b"a", b"b", timestamps=timestamps), BOUNDED)
    assert rejection.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _reason in rejection.record_errors] == [guilty]


def test_an_old_timestamp_behind_a_newer_one_is_seen_only_by_full_validation() -> None:
    batch = make_batch(b"a", b"b", timestamps=[NOW, NOW - 1001])
    accept(bytearray(batch), BOUNDED)
    assert refuse(batch, replace(BOUNDED, record_validation="full")).code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("timestamp", [NOW - 1000, NOW + 500, -1])
def test_a_timestamp_within_bounds_or_none_at_all_is_taken(timestamp: int) -> None:
    accept(make_batch(b"a", timestamp=timestamp), BOUNDED)


def test_a_maximum_below_the_base_is_put_right() -> None:
    batch = make_batch(b"a", b"b", timestamps=[NOW, NOW + 5])
    restamp_max_timestamp(batch, 0, -1)
    _buffer, header = accept(batch)
    assert header.max_timestamp == NOW + 5


def test_a_compacted_topic_refuses_keyless_records() -> None:
    compacted = LogConfig(cleanup_policy=frozenset({"compact"}))
    rejection = refuse(make_batch(b"a", key=None), compacted)
    assert rejection.code == ErrorCode.INVALID_RECORD
    assert [index for index, _reason in rejection.record_errors] == [0]
    accept(make_batch(b"a"), compacted)
    accept(make_batch(b"a", codec=Codec.GZIP), compacted)


def test_log_append_time_takes_the_brokers_clock() -> None:
    _buffer, header = accept(make_batch(b"a", timestamp=5), LogConfig(message_timestamp_type="LogAppendTime"))
    assert header.is_log_append_time
    assert header.max_timestamp == NOW


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_forced_codec_is_applied_and_the_rest_of_the_batch_kept(name: str) -> None:
    batch = make_batch(b"a" * 50, b"b" * 50, producer_id=4, epoch=2, sequence=8, codec=Codec.GZIP, transactional=True)
    before = read_header(batch)
    records = list(iter_records(batch))
    buffer, header = accept(batch, LogConfig(compression_type=name))
    assert header.codec == (0 if name == "uncompressed" else Codec[name.upper()])
    assert list(iter_records(buffer)) == records
    assert header[7:] == before[7:]
    assert header.is_transactional


def test_a_lying_body_is_stored_by_default_and_refused_when_validation_is_full() -> None:
    good = make_batch(b"a", b"b")
    lying = pack_batch(read_header(good), b"\x7f" * 20)
    accept(bytearray(lying))
    assert refuse(lying, LogConfig(record_validation="full")).code == ErrorCode.INVALID_RECORD
    accept(good, LogConfig(record_validation="full"))


def test_old_messages_become_one_batch_in_the_topics_codec() -> None:
    old = build_message_set([Record(0, NOW, b"k", b"v"), Record(1, NOW, None, b"w")], magic=1)
    rules = AppendRules(replace(LogConfig(), compression_type="gzip"))
    batch = rules.convert(old)
    assert not isinstance(batch, Rejection)
    assert validate_batch(batch).codec == Codec.GZIP
    assert [record.value for record in iter_records(batch)] == [b"v", b"w"]
    refused = rules.convert(old[:-1] + b"?")
    assert isinstance(refused, Rejection)
    assert refused.code == ErrorCode.CORRUPT_MESSAGE


def test_the_brokers_own_batches_may_be_markers_but_not_too_large() -> None:
    rules = AppendRules(LogConfig(max_message_bytes=200))
    assert not isinstance(rules.check_internal(make_marker(5, commit=True), NOW), Rejection)
    large = rules.check_internal(make_batch(b"x" * 300), NOW)
    assert isinstance(large, Rejection)
    assert large.code == ErrorCode.MESSAGE_TOO_LARGE
