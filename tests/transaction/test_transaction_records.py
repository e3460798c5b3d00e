"""What `__transaction_state` holds, byte for byte as Kafka writes it."""

from __future__ import annotations

import struct

import pytest

from kbroker.transaction.records import (
    Transaction,
    UnreadableTransaction,
    read_key,
    read_value,
    transaction_record,
    transaction_tombstone,
)
from kbroker.transaction.states import MAY_FOLLOW, TransactionState

ONGOING = Transaction(
    7, 3, 60_000, TransactionState.ONGOING, frozenset({("t", 1), ("t", 0)}), 1_000, 2_000, client_version=2
)


def test_a_record_has_the_bytes_that_kafka_writes() -> None:
    key, value = transaction_record("pay", ONGOING)
    assert key == b"\0\0\0\3pay"
    partitions = b"\2" + b"\2t" + b"\3" + struct.pack(">ii", 0, 1) + b"\0"
    tags = b"\1" + b"\2\2\0\2"  # the version of the client, alone: the other tags have their defaults
    assert value == struct.pack(">hqhib", 1, 7, 3, 60_000, 1) + partitions + struct.pack(">qq", 2_000, 1_000) + tags


def test_an_empty_transaction_has_no_list_of_partitions() -> None:
    _, value = transaction_record("pay", Transaction(7, 0, 60_000, update_ms=5))
    assert value == struct.pack(">hqhib", 1, 7, 0, 60_000, 0) + b"\0" + struct.pack(">qq", 5, -1) + b"\0"


@pytest.mark.parametrize(
    "transaction",
    [
        ONGOING,
        Transaction(1, 0, 1, update_ms=9),
        ONGOING._replace(state=TransactionState.PREPARE_COMMIT, next_producer_id=12, previous_producer_id=6),
        ONGOING._replace(state=TransactionState.COMPLETE_ABORT, partitions=frozenset(), client_version=0),
    ],
)
def test_what_is_written_is_read_again(transaction: Transaction) -> None:
    key, value = transaction_record("é", transaction)
    assert value is not None
    assert (read_key(key), read_value(value)) == ("é", transaction)


def test_version_0_is_read() -> None:
    head = struct.pack(">hqhib", 0, 7, 3, 60_000, 4)
    partitions = struct.pack(">i", 1) + b"\0\1t" + struct.pack(">ii", 1, 5)
    found = read_value(head + partitions + struct.pack(">qq", 2_000, 1_000))
    expected = ONGOING._replace(state=TransactionState.COMPLETE_COMMIT, partitions=frozenset({("t", 5)}))
    assert found == expected._replace(client_version=0)


def test_a_tombstone_has_the_key_alone() -> None:
    assert transaction_tombstone("pay") == (transaction_record("pay", ONGOING)[0], None)


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\7" + bytes(40), b"\0\1" + bytes(5)])
def test_values_that_are_none_are_told(value: bytes) -> None:
    with pytest.raises(UnreadableTransaction):
        read_value(value)


def test_a_state_that_nobody_knows_is_told() -> None:
    _, value = transaction_record("pay", ONGOING)
    assert value is not None
    with pytest.raises(UnreadableTransaction):
        read_value(value[:16] + b"\x63" + value[17:])


@pytest.mark.parametrize("key", [b"", b"\0\1\0\1a", b"\0\0\0\5a"])
def test_keys_that_are_none_are_told(key: bytes) -> None:
    with pytest.raises(UnreadableTransaction):
        read_key(key)


def test_clients_read_kafkas_names_of_the_states() -> None:
    assert [state.text for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
    assert set(MAY_FOLLOW) == set(TransactionState)
