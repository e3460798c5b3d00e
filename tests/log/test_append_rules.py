from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import kbroker.log.append_rules as append_rules_module
import kbroker.protocol.legacy_message_set as legacy_module
import kbroker.protocol.records as records_module
from kbroker.log.append_rules import LONG_CHECK, AppendRules, CheckedBatch, Rejection
from kbroker.log.log_config import LogConfig
from kbroker.protocol.compression import MAX_DECOMPRESSED_SIZE, Codec, compress, decompress
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.legacy_message_set import build_message_set
from kbroker.protocol.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    pack_batch,
    read_header,
    restamp_max_timestamp,
    validate_batch,
)
from kbroker.protocol.records import Record, build_batch, iter_records, renumber_records
from tests.log.batches import NOW, make_batch, make_marker


def accept(batch: bytearray, config: LogConfig | None = None) -> tuple[bytearray, BatchHeader]:
    checked = AppendRules(config or LogConfig(), "t-0").check(batch, NOW)
    assert not isinstance(checked, Rejection), checked
    buffer, header = checked
    assert validate_batch(buffer) == header
    return bytearray(buffer), header


def refuse(batch: bytearray, config: LogConfig | None = None) -> Rejection:
    checked = AppendRules(config or LogConfig(), "t-0").check(batch, NOW)
    assert isinstance(checked, Rejection), checked
    return checked


def check_in_thread(batch: bytearray, config: LogConfig, *, is_message_set: bool = False) -> CheckedBatch | Rejection:
    """Checks what `check` leaves to a thread. Also checks that `check` and `convert` do leave it."""
    rules = AppendRules(config, "t-0")
    on_loop = rules.convert(batch) if is_message_set else rules.check(batch, NOW)
    assert on_loop is LONG_CHECK
    return rules.check_at_length(batch, NOW, is_message_set=is_message_set, pause=lambda: None)


def change_header(batch: bytearray, **fields: int) -> bytearray:
    """Changes a header field and corrects the CRC, so that only the field itself is wrong."""
    return pack_batch(read_header(batch)._replace(**fields), bytes(batch[61:]))


def test_an_ordinary_batch_is_accepted_unchanged() -> None:
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
def test_a_batch_with_a_forbidden_header_field_is_rejected(batch: bytearray, code: ErrorCode) -> None:
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
def test_a_timestamp_within_bounds_or_no_timestamp_is_accepted(timestamp: int) -> None:
    accept(make_batch(b"a", timestamp=timestamp), BOUNDED)


def test_a_max_timestamp_below_the_base_timestamp_is_corrected() -> None:
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


def test_log_append_time_is_the_time_of_the_broker() -> None:
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


def test_invalid_records_are_rejected_only_by_full_validation() -> None:
    good = make_batch(b"a", b"b")
    lying = pack_batch(read_header(good), b"\x7f" * 20)
    accept(bytearray(lying))
    assert refuse(lying, LogConfig(record_validation="full")).code == ErrorCode.INVALID_RECORD
    accept(good, LogConfig(record_validation="full"))


WALKED = LogConfig(record_validation="full")


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(lambda data: b"\x7f" * 20, id="garbage"),
        pytest.param(lambda data: data[:-1], id="cut"),
        pytest.param(lambda data: data + b"\0", id="too long"),
        pytest.param(lambda data: data[len(data) // 2 :] * 2, id="offset deltas out of order"),
        pytest.param(lambda data: data[: len(data) // 2], id="one record missing"),
    ],
)
def test_a_wrong_body_of_an_uncompressed_batch_is_rejected(payload: Callable[[bytes], bytes]) -> None:
    good = make_batch(b"a", b"b")
    wrong = pack_batch(read_header(good), payload(bytes(good[HEADER_SIZE:])))
    assert refuse(wrong, WALKED).code == ErrorCode.INVALID_RECORD
    buffer, header = accept(good, WALKED)
    assert bytes(buffer) == bytes(good)
    assert header == read_header(good)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(lambda codec, data: b"\x7f" * 20, id="garbage"),
        pytest.param(lambda codec, data: compress(codec, data)[:-2], id="cut"),
        pytest.param(lambda codec, data: compress(codec, data[:-1]), id="cut before it was compressed"),
        pytest.param(lambda codec, data: compress(codec, data + b"\0"), id="too long"),
        pytest.param(lambda codec, data: compress(codec, data[: len(data) // 2]), id="one record missing"),
    ],
)
def test_a_wrong_body_of_a_compressed_batch_is_rejected(codec: Codec, payload: Callable[[Codec, bytes], bytes]) -> None:
    good = make_batch(b"a", b"b", codec=codec)
    wrong = pack_batch(read_header(good), payload(codec, decompress(codec, good[HEADER_SIZE:])))
    rules = AppendRules(WALKED, "t-0")
    checked = rules.check(wrong, NOW)
    if checked is LONG_CHECK:  # the thread finds out what is wrong with compressed bytes
        checked = rules.check_at_length(wrong, NOW, is_message_set=False, pause=lambda: None)
    assert isinstance(checked, Rejection)
    assert checked.code == ErrorCode.INVALID_RECORD
    buffer, header = accept(good, WALKED)
    assert (bytes(buffer), header) == (bytes(good), read_header(good))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compressed_records_with_wrong_offset_deltas_are_numbered_anew_as_in_kafka(codec: Codec) -> None:
    records = [Record(index, NOW + index, b"k", b"%d" % index, (("h", b"x"),)) for index in range(4)]
    plain = build_batch(records)
    parts = [bytes(build_batch([record], base_offset=0)[HEADER_SIZE:]) for record in reversed(records)]
    header = read_header(plain)._replace(attributes=codec, base_timestamp=NOW)
    data = b"".join(renumber_records(part, header._replace(record_count=1)) for part in parts)  # each has delta 0
    checked = check_in_thread(pack_batch(header, compress(codec, data)), WALKED)
    assert not isinstance(checked, Rejection)
    buffer, new_header = checked
    assert validate_batch(buffer) == new_header
    assert new_header.codec == codec
    assert [(record.offset, record.value, record.headers) for record in iter_records(buffer)] == [
        (index, b"%d" % (3 - index), (("h", b"x"),)) for index in range(4)
    ]


def test_large_batches_are_left_to_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b""] * (append_rules_module._RECORDS_AT_ONCE + 1)
    many = make_batch(*values)
    accept(bytearray(many), LogConfig())
    checked = check_in_thread(bytearray(many), WALKED)
    assert not isinstance(checked, Rejection)
    assert bytes(checked[0]) == bytes(many)
    bomb = make_batch(bytes(3 << 20), codec=Codec.ZSTD)
    assert len(bomb) < 1000
    assert not isinstance(check_in_thread(bomb, WALKED), Rejection)
    text = make_batch(os.urandom(100 << 10))
    accept(bytearray(text), WALKED)
    recoded = check_in_thread(text, LogConfig(compression_type="gzip"))
    assert not isinstance(recoded, Rejection)
    assert recoded[1].codec == Codec.GZIP


def test_decompressed_records_have_a_maximum_size() -> None:
    zeros = compress(Codec.ZSTD, bytes(MAX_DECOMPRESSED_SIZE + 1))
    rejection = check_in_thread(pack_batch(read_header(make_batch(b"a", codec=Codec.ZSTD)), zeros), WALKED)
    assert isinstance(rejection, Rejection)
    assert rejection.code == ErrorCode.INVALID_RECORD


def test_a_long_check_pauses_every_few_records() -> None:
    count = 5 * records_module._RECORDS_PER_STEP
    batch = make_batch(*[b""] * count)
    pauses = 0

    def pause() -> None:
        nonlocal pauses
        pauses += 1

    AppendRules(WALKED, "t-0").check_at_length(batch, NOW, is_message_set=False, pause=pause)
    assert pauses == 4
    pauses = 0
    messages = build_message_set([Record(index, NOW, b"k", b"") for index in range(1000)], magic=1, codec=Codec.GZIP)
    AppendRules(LogConfig(), "t-0").check_at_length(bytearray(messages), NOW, is_message_set=True, pause=pause)
    assert pauses == 1000 / legacy_module._MESSAGES_PER_STEP


@pytest.mark.parametrize("magic", [0, 1])
def test_compressed_and_large_message_sets_are_left_to_a_thread(magic: int) -> None:
    records = [Record(index, NOW, b"k", b"value") for index in range(3)]
    wrapped = bytearray(build_message_set(records, magic=magic, codec=Codec.GZIP))
    checked = check_in_thread(wrapped, LogConfig(), is_message_set=True)
    assert not isinstance(checked, Rejection)
    assert [record.value for record in iter_records(checked[0])] == [b"value"] * 3
    large = bytearray(build_message_set([Record(0, NOW, b"k", bytes(10_000))], magic=magic))
    assert not isinstance(check_in_thread(large, LogConfig(), is_message_set=True), Rejection)
    compacted = LogConfig(cleanup_policy=frozenset({"compact"}))
    keyless = bytearray(build_message_set([Record(0, NOW, None, bytes(10_000))], magic=magic))
    assert isinstance(check_in_thread(keyless, compacted, is_message_set=True), Rejection)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("validation", ["header", "full"])
def test_a_batch_cannot_claim_more_records_than_its_bytes_can_have(codec: Codec, validation: Any) -> None:
    claim = (1 << 31) - 1
    batch = change_header(make_batch(b"v" * 50, codec=codec), record_count=claim, last_offset_delta=claim - 1)
    assert refuse(batch, LogConfig(record_validation=validation)).code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_as_many_records_as_compression_makes_possible_are_accepted(codec: Codec) -> None:
    batch = build_batch([Record(index, NOW, None, None) for index in range(5000)], codec=codec)
    accept(batch)


def test_a_walk_corrects_a_wrong_maximum_timestamp() -> None:
    batch = change_header(make_batch(b"a", timestamp=NOW), max_timestamp=NOW + 5)
    _buffer, header = accept(batch, WALKED)
    assert header.max_timestamp == NOW


def test_a_walk_finds_an_old_timestamp_among_newer_ones() -> None:
    batch = build_batch([Record(0, NOW, b"k", b"v"), Record(1, NOW - 5000, b"k", b"v"), Record(2, NOW, b"k", b"v")])
    config = replace(WALKED, message_timestamp_before_max_ms=1000)
    assert refuse(batch, config).code == ErrorCode.INVALID_TIMESTAMP


def test_old_messages_become_one_batch_in_the_topics_codec() -> None:
    old = build_message_set([Record(0, NOW, b"k", b"v"), Record(1, NOW, None, b"w")], magic=1)
    rules = AppendRules(replace(LogConfig(), compression_type="gzip"), "t-0")
    batch = rules.convert(old)
    assert not isinstance(batch, Rejection)
    assert validate_batch(batch).codec == Codec.GZIP
    assert [record.value for record in iter_records(batch)] == [b"v", b"w"]
    refused = rules.convert(old[:-1] + b"?")
    assert isinstance(refused, Rejection)
    assert refused.code == ErrorCode.CORRUPT_MESSAGE


def test_internal_batches_may_be_markers_but_not_too_large() -> None:
    rules = AppendRules(LogConfig(max_message_bytes=200), "t-0")
    assert not isinstance(rules.check_internal(make_marker(5, commit=True), NOW), Rejection)
    large = rules.check_internal(make_batch(b"x" * 300), NOW)
    assert isinstance(large, Rejection)
    assert large.code == ErrorCode.MESSAGE_TOO_LARGE
