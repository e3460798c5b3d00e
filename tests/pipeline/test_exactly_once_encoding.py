"""Arrow columns become the batches that the builder of single records makes, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.client.partitioning import murmur2
from kbroker.client.transactional_producing import ProducerTransaction
from kbroker.errors import UserError
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import Record, build_batch, iter_records
from tests.pipeline.any_records import records

np = pytest.importorskip("numpy", reason="needs numpy")
pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
encoding = pytest.importorskip("kbroker.pipeline.arrow.encoding")
partitioning = pytest.importorskip("kbroker.pipeline.arrow.partitioning")
varints = pytest.importorskip("kbroker.pipeline.arrow.varints")

TRANSACTION = ProducerTransaction("t", 7, 3)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def columns_of(found: list[Record], *, has_headers: bool = True) -> Any:
    headers = [[{"key": name, "value": value} for name, value in record.headers] or None for record in found]
    return encoding.RecordColumns(
        pa.array([record.key for record in found], pa.binary()),
        pa.array([record.value for record in found], pa.binary()),
        np.array([record.timestamp for record in found], dtype=np.int64),
        pa.array(headers, HEADERS) if has_headers else None,
    )


def sealed(encoded: Any, codec: int = Codec.NONE) -> bytes:
    return bytes(encoding.seal_batch(encoded, codec=codec, transaction=TRANSACTION, base_sequence=11).data)


@given(st.lists(records, min_size=1, max_size=20), st.booleans())
def test_columns_give_the_bytes_that_single_records_give(found: list[Record], has_headers: bool) -> None:
    if not has_headers:
        found = [record._replace(headers=()) for record in found]
    columns = columns_of(found, has_headers=has_headers)
    (encoded,) = encoding.encode_records(columns, np.full(len(found), 5, dtype=np.int32), 1 << 20)
    expected = build_batch(
        [record._replace(offset=number) for number, record in enumerate(found)],
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        is_transactional=True,
    )
    assert encoded.partition == 5
    assert sealed(encoded) == bytes(expected)


def test_batches_end_at_partitions_and_at_the_size() -> None:
    found = [Record(0, 1000 + number, b"k", b"v" * 60) for number in range(10)]
    partitions = np.array([0] * 7 + [2] * 3, dtype=np.int32)
    batches = list(encoding.encode_records(columns_of(found), partitions, 3 * 90))
    assert [(batch.partition, batch.record_count) for batch in batches] == [(0, 3), (0, 3), (0, 1), (2, 3)]
    values = [record.timestamp for batch in batches for record in iter_records(sealed(batch))]
    assert values == list(range(1000, 1010))


def test_a_record_larger_than_a_batch_has_a_batch_of_its_own() -> None:
    found = [Record(0, 0, None, b"v" * size) for size in (10, 5000, 10)]
    batches = list(encoding.encode_records(columns_of(found), np.zeros(3, dtype=np.int32), 1000))
    assert [batch.record_count for batch in batches] == [1, 1, 1]


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_are_compressed(codec: Codec) -> None:
    found = [Record(0, 5, b"key", b"v" * 500, (("h", b"x"),))] * 10
    (encoded,) = encoding.encode_records(columns_of(found), np.zeros(10, dtype=np.int32), 1 << 20)
    read = list(iter_records(sealed(encoded, codec)))
    assert [record._replace(offset=0) for record in read] == found


def test_slices_of_arrow_arrays_are_encoded_like_whole_arrays() -> None:
    found = [Record(0, number, b"%d" % number, None if number % 3 else b"x") for number in range(9)]
    whole = columns_of(found)
    part = whole._replace(key=whole.key[4:], value=whole.value[4:], timestamps_ms=whole.timestamps_ms[4:])
    part = part._replace(headers=whole.headers[4:])
    (encoded,) = encoding.encode_records(part, np.zeros(5, dtype=np.int32), 1 << 20)
    assert [record.key for record in iter_records(sealed(encoded))] == [record.key for record in found[4:]]


def test_a_header_without_a_key_is_refused() -> None:
    columns = columns_of([Record(0, 0, None, None)])._replace(
        headers=pa.array([[{"key": None, "value": b""}]], HEADERS)
    )
    with pytest.raises(UserError, match="header has no key"):
        list(encoding.encode_records(columns, np.zeros(1, dtype=np.int32), 100))


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=30))
def test_keys_have_the_hash_of_all_clients(keys: list[bytes]) -> None:
    data, starts, lengths = encoding.binary_bounds(pa.array(keys, pa.binary()))
    assert partitioning.murmur2_of_keys(data, starts, lengths).tolist() == [murmur2(key) for key in keys]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=30))
def test_numbers_are_read_as_they_were_written(numbers: list[int]) -> None:
    columns = varints.VarintColumns(len(numbers))
    columns.add(np.array(numbers, dtype=np.int64))
    data, lengths = columns.join()
    assert lengths.tolist() == varints.varint_sizes(np.array(numbers, dtype=np.int64)).tolist()
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
    read, ends = varints.read_varints(data, starts)
    assert read.tolist() == numbers
    assert ends[-1] == len(data)


def test_records_without_a_key_are_spread_in_runs() -> None:
    assert partitioning.spread(6, 6000, 4, 1, 2000).tolist() == [1, 1, 2, 2, 3, 3]
    assert partitioning.spread(3, 30, 4, 3, 2000).tolist() == [3, 3, 3]
