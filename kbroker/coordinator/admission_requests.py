"""AddPartitionsToTxn requests (v4) of a partition's leader to transaction coordinators on other brokers (KIP-890).

A request verifies that partitions belong to open transactions, or adds them; it has all questions that wait for a
coordinator. Kafka's AddPartitionsToTxnManager does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.names import TopicPartition
from kbroker.protocol.error_codes import ErrorCode, error_code
from kbroker.protocol.messages import add_partitions_to_txn as messages
from kbroker.protocol.registry import api

if TYPE_CHECKING:
    from kbroker.client.connection import BrokerConnection

__all__ = [
    "PendingAdmission",
    "TransactionAdmission",
    "admission_members",
    "admission_results",
    "fail_admission",
    "send_admissions",
]

_ADD_PARTITIONS_TO_TXN: Final = api(24)
_BETWEEN_BROKERS_SINCE: Final = 4


class TransactionAdmission(NamedTuple):
    """A producer that wants to write to a partition in its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool
    """Whether the partition is added to the transaction; otherwise it must be part of it."""
    partition: TopicPartition


class PendingAdmission(NamedTuple):
    """`done` takes the coordinator's error code."""

    admission: TransactionAdmission
    done: Callable[[ErrorCode], None]


def fail_admission(pending: PendingAdmission) -> None:
    pending.done(ErrorCode.NETWORK_EXCEPTION)


async def send_admissions(
    connection: BrokerConnection, pending: list[PendingAdmission], *, timeout_s: float
) -> list[PendingAdmission]:
    """Sends the questions in one request, and completes each with its code. Returns those that need another request.

    A response names transactions by their ids, so a request has one producer epoch and one kind of question of each id.
    """
    asked: dict[str, tuple[int, int, bool]] = {}
    sent: list[PendingAdmission] = []
    left: list[PendingAdmission] = []
    for question in pending:
        transactional_id, producer_id, producer_epoch, adds, _ = question.admission
        kind = (producer_id, producer_epoch, adds)
        (sent if asked.setdefault(transactional_id, kind) == kind else left).append(question)
    response = await connection.send(
        _ADD_PARTITIONS_TO_TXN,
        at_least=_BETWEEN_BROKERS_SINCE,
        timeout_s=timeout_s,
        transactions=admission_members([question.admission for question in sent]),
    )
    results = admission_results(response)
    for question in sent:
        admission = question.admission
        question.done(results.get((admission.transactional_id, *admission.partition), _code_without_result(response)))
    return left


def _code_without_result(response: Any) -> ErrorCode:
    """Returns the code for partitions that the response does not name, as Kafka: they are not verified."""
    code = error_code(response.error_code)
    if code in (ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
        return ErrorCode.INVALID_TXN_STATE
    return code


def admission_members(admissions: Iterable[TransactionAdmission]) -> list[Any]:
    """Returns the transactions as in the request: one for each transactional id, with its partitions by topic."""
    by_transaction: dict[tuple[str, int, int, bool], dict[str, list[int]]] = {}
    for *transaction, (topic, index) in admissions:
        indexes = by_transaction.setdefault(tuple(transaction), {}).setdefault(topic, [])  # type: ignore[arg-type]
        if index not in indexes:
            indexes.append(index)
    return [
        messages.AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            verify_only=not adds,
            topics=[
                messages.AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in topics.items()
            ],
        )
        for (transactional_id, producer_id, producer_epoch, adds), topics in by_transaction.items()
    ]


def admission_results(response: Any) -> dict[tuple[str, str, int], ErrorCode]:
    """Returns the error codes of a response by transactional id, topic and partition."""
    return {
        (transaction.transactional_id, topic.name, partition.partition_index): error_code(
            partition.partition_error_code
        )
        for transaction in response.results_by_transaction
        for topic in transaction.topic_results
        for partition in topic.results_by_partition
    }
