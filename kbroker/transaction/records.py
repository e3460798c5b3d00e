"""The records of `__transaction_state`, in Kafka's format: one for each change of a transactional id.

A tombstone removes the id. Keys begin with an INT16, always 0; values begin with an INT16, the version. Version 1 is
written, as by Kafka 4.1; version 0, of Kafka before 4.0, is read too. Never changes state: see shard.py.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final, NamedTuple

from kbroker.errors import PeerError
from kbroker.names import TopicPartition
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.keyed_batch import KeyAndValue
from kbroker.protocol.transaction_records import TRANSACTION_LOG_KEY, TRANSACTION_LOG_VALUE, PartitionsSchema
from kbroker.transaction.states import TransactionState

__all__ = [
    "NO_EPOCH",
    "NO_ID",
    "NO_TIMESTAMP",
    "Transaction",
    "UnreadableTransaction",
    "read_key",
    "read_value",
    "transaction_record",
    "transaction_tombstone",
]

NO_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1

_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 1

_INT16 = Struct(">h")
_key = codec(TRANSACTION_LOG_KEY, _KEY_VERSION)
_value = codec(TRANSACTION_LOG_VALUE, _VALUE_VERSION)


class UnreadableTransaction(Exception):
    """The bytes do not match their version, or the version is not supported."""


class Transaction(NamedTuple):
    """The state of a transactional id, as in its last record."""

    producer_id: int
    producer_epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    update_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    client_version: int = 0
    """2 if the producer epoch is bumped at the end of every transaction (KIP-890)."""

    def by_topic(self) -> dict[str, list[int]]:
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(self.partitions):
            topics.setdefault(topic, []).append(index)
        return topics


def transaction_record(transactional_id: str, transaction: Transaction) -> KeyAndValue:
    partitions = [
        PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in transaction.by_topic().items()
    ]
    value = TRANSACTION_LOG_VALUE(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
    )
    return _key_of(transactional_id), _INT16.pack(_VALUE_VERSION) + _value.to_bytes(value)


def transaction_tombstone(transactional_id: str) -> KeyAndValue:
    return _key_of(transactional_id), None


def _key_of(transactional_id: str) -> bytes:
    return _INT16.pack(_KEY_VERSION) + _key.to_bytes(TRANSACTION_LOG_KEY(transactional_id=transactional_id))


def read_key(key: bytes) -> str:
    try:
        if _INT16.unpack_from(key)[0] != _KEY_VERSION:
            raise UnreadableTransaction("unsupported key version")
        decoded, _ = _key.decode(key, 2)
    except (error, PeerError) as problem:
        raise UnreadableTransaction(f"invalid transaction key: {problem}") from None
    transactional_id: str = decoded.transactional_id
    return transactional_id


def read_value(value: bytes) -> Transaction:
    try:
        version = _INT16.unpack_from(value)[0]
        if version not in TRANSACTION_LOG_VALUE.versions:
            raise UnreadableTransaction(f"unsupported version {version} of TransactionLogValue")
        decoded, _ = codec(TRANSACTION_LOG_VALUE, version).decode(value, 2)
        state = TransactionState(decoded.transaction_status)
    except (error, PeerError, ValueError) as problem:
        raise UnreadableTransaction(f"invalid transaction value: {problem}") from None
    return Transaction(
        decoded.producer_id,
        decoded.producer_epoch,
        decoded.transaction_timeout_ms,
        state,
        frozenset(
            (topic.topic, index) for topic in decoded.transaction_partitions or () for index in topic.partition_ids
        ),
        decoded.transaction_start_timestamp_ms,
        decoded.transaction_last_update_timestamp_ms,
        decoded.previous_producer_id,
        decoded.next_producer_id,
        decoded.client_transaction_version,
    )
