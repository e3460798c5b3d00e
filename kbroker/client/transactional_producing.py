"""Produces inside a transaction, and ends transactions, possibly from another connection or process.

A ProducerTransaction names what EndTxn needs. With transaction.version 2 (KIP-890) the broker itself adds partitions,
and every end raises the epoch, so that a late write of the ended transaction is refused. With older brokers the
partitions are added first, and the epoch is raised by InitProducerId.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import BrokerResponse, Cluster, TopicInfo
from kbroker.client.connection import BrokerConnection
from kbroker.client.coordinator import send_to_transaction_coordinator
from kbroker.client.failures import BrokerRefusal
from kbroker.client.producing import ACKS_ALL, ProducerBatch, send_batches
from kbroker.errors import UserError
from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = [
    "ProducerTransaction",
    "TransactionForgotten",
    "TransactionLost",
    "TransactionalProducer",
    "end_transaction",
    "init_producer",
]

INIT_PRODUCER_ID: Final = api(22)
ADD_PARTITIONS_TO_TXN: Final = api(24)
END_TXN: Final = api(26)

_LAST_ADD_OF_CLIENTS: Final = 3  # later versions are for brokers
_LAST_PRODUCE_BEFORE_V2: Final = 11
_LAST_END_BEFORE_V2: Final = 4
_SEQUENCE_MASK: Final = 0x7FFFFFFF

_LOST: Final = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class ProducerTransaction(NamedTuple):
    """Open transaction of a producer, or the next one that it may begin."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionLost(UserError):
    """The transaction has ended the other way: the broker aborted it, or another producer of the same id did."""


class TransactionForgotten(UserError):
    """The broker does not know the transactional id any more, so it cannot say how the transaction ended."""


def has_version_2(connection: BrokerConnection) -> bool:
    return connection.features.get("transaction.version", 0) >= 2


async def init_producer(
    cluster: Cluster, transactional_id: str, timeout_ms: int, *, previous: ProducerTransaction | None = None
) -> ProducerTransaction:
    """Fences earlier producers of the id and aborts their open transaction.

    `previous`: succeeds only if no other producer of the id came after it.
    """
    kept = {} if previous is None else {"producer_id": previous.producer_id, "producer_epoch": previous.producer_epoch}

    async def send(connection: BrokerConnection) -> tuple[int, ProducerTransaction]:
        response = await connection.send(
            INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, **kept
        )
        if response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise UserError(
                f"The broker refuses a transaction timeout of {timeout_ms} ms: set transaction.timeout.ms to at most "
                "its transaction.max.timeout.ms."
            )
        transaction = ProducerTransaction(transactional_id, response.producer_id, response.producer_epoch)
        return response.error_code, transaction

    found: ProducerTransaction = await send_to_transaction_coordinator(cluster, transactional_id, send)
    return found


async def end_transaction(
    cluster: Cluster, transaction: ProducerTransaction, *, is_commit: bool
) -> ProducerTransaction | None:
    """Commits or aborts. Harmless if the transaction has already ended in the same way.

    Returns the transaction that the producer may begin next; None if the broker cannot tell (before KIP-890). Raises
    TransactionLost or TransactionForgotten if the transaction has not ended this way, or the broker does not know.
    """
    transactional_id = transaction.transactional_id

    async def send(connection: BrokerConnection) -> tuple[int, ProducerTransaction | None]:
        response = await connection.send(
            END_TXN,
            at_most=None if has_version_2(connection) else _LAST_END_BEFORE_V2,
            transactional_id=transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            committed=is_commit,
        )
        if response.error_code != ErrorCode.NONE or response.producer_id < 0:
            return response.error_code, None
        return response.error_code, transaction._replace(
            producer_id=response.producer_id, producer_epoch=response.producer_epoch
        )

    try:
        following: ProducerTransaction | None = await send_to_transaction_coordinator(cluster, transactional_id, send)
    except BrokerRefusal as refusal:
        if refusal.code in _LOST:
            raise TransactionLost(str(refusal)) from None
        if refusal.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            raise TransactionForgotten(str(refusal)) from None
        raise
    return following


class TransactionalProducer:
    """Sends batches that the caller has built with the producer id, the epoch and the sequences of this producer.

    One request at a time for each partition: a retry then keeps the order of the sequences.
    """

    def __init__(
        self,
        cluster: Cluster,
        transaction: ProducerTransaction,
        *,
        codec: int = Codec.NONE,
        timeout_ms: int = 30_000,
    ) -> None:
        self.transaction = transaction
        self._cluster = cluster
        self._codec = codec
        self._timeout_ms = timeout_ms
        self._sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int]] = set()

    def take_sequence(self, topic: str, partition: int, *, record_count: int) -> int:
        """Returns the base sequence of the next batch of a partition."""
        key = (topic, partition)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + record_count & _SEQUENCE_MASK
        return sequence

    async def send(self, topic: str, batches: Mapping[int, ProducerBatch]) -> dict[int, int]:
        """Sends one batch for each partition. Returns partition -> base offset after all are acknowledged."""
        return await self._cluster.send_to_leaders(topic, batches, self._send_to_leader)

    async def _send_to_leader(
        self, connection: BrokerConnection, topic: TopicInfo, batches: Mapping[int, ProducerBatch]
    ) -> dict[int, BrokerResponse]:
        is_version_2 = has_version_2(connection)
        if not is_version_2:
            await self._add_partitions(topic.name, batches)
        return await send_batches(
            connection,
            topic,
            batches,
            acks=ACKS_ALL,
            codec=self._codec,
            timeout_ms=self._timeout_ms,
            transactional_id=self.transaction.transactional_id,
            last_version=None if is_version_2 else _LAST_PRODUCE_BEFORE_V2,
        )

    async def _add_partitions(self, topic: str, batches: Mapping[int, Any]) -> None:
        from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnTopic

        missing = [index for index in batches if (topic, index) not in self._added]
        if not missing:
            return
        transaction = self.transaction

        async def send(connection: BrokerConnection) -> tuple[int, None]:
            response = await connection.send(
                ADD_PARTITIONS_TO_TXN,
                at_most=_LAST_ADD_OF_CLIENTS,
                v3_and_below_transactional_id=transaction.transactional_id,
                v3_and_below_producer_id=transaction.producer_id,
                v3_and_below_producer_epoch=transaction.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=missing)],
            )
            codes = [
                result.partition_error_code
                for results in response.results_by_topic_v3_and_below
                for result in results.results_by_partition
            ]
            return next((code for code in codes if code != ErrorCode.NONE), ErrorCode.NONE), None

        await send_to_transaction_coordinator(self._cluster, transaction.transactional_id, send)
        self._added.update((topic, index) for index in missing)
