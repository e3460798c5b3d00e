"""AddPartitionsToTxn (24), v0-5: adds partitions to a transaction, or verifies that they were added (KIP-98, KIP-890).

v0-3: one transaction, sent by a producer; if one partition is invalid, none is added. Before v2, PRODUCER_FENCED is
sent as INVALID_PRODUCER_EPOCH (KIP-588). v4: several transactions, sent by a broker; `verify_only` adds nothing. Before
v5, TRANSACTION_ABORTABLE is sent as INVALID_TXN_STATE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.pending_response import PendingResponse
from kbroker.errors import Refusal
from kbroker.names import INTERNAL_TOPICS
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import add_partitions_to_txn as messages
from kbroker.server.access.permissions import allows_cluster, allows_topic
from kbroker.server.coordinators.transaction_requests import find_transaction, known_error

if TYPE_CHECKING:
    from kbroker.coordinator.transaction_driver import TransactionDriver
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

FENCED_SINCE: Final = 2
BATCHED_SINCE: Final = 4
ABORTABLE_SINCE: Final = 5

_TopicResult = messages.AddPartitionsToTxnTopicResult.value
_PartitionResult = messages.AddPartitionsToTxnPartitionResult.value


def handle(context: Context, request: Request) -> Any:
    body = request.body
    if request.version >= BATCHED_SINCE:
        if not allows_cluster(context, request, AclOperation.CLUSTER_ACTION):
            raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        _Batch(context, request)
        return

    def answer(results: list[Any]) -> None:
        request.reply(messages.RESPONSE(results_by_topic_v3_and_below=results))

    transactional_id = body.v3_and_below_transactional_id
    topics = body.v3_and_below_topics
    producer = body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
    driver = find_transaction(context, request, transactional_id)
    _add(context, request, driver, transactional_id, producer, topics, answer)


def refuse(request: Request, code: int, message: str | None) -> Any:
    if request.version >= BATCHED_SINCE:
        return messages.RESPONSE(error_code=code)
    results = _results(request.body.v3_and_below_topics, lambda partition: code)
    return messages.RESPONSE(results_by_topic_v3_and_below=results)


class _Batch:
    """v4 request: several transactions, which complete at different times and share one response."""

    def __init__(self, context: Context, request: Request) -> None:
        self._request = request
        self._results: list[Any] = []
        self._count = len(request.body.transactions)
        for transaction in request.body.transactions:
            self._begin(context, transaction)
        if not self._count:
            request.reply(messages.RESPONSE())

    def _begin(self, context: Context, transaction: Any) -> None:
        transactional_id, topics = transaction.transactional_id, transaction.topics
        producer = transaction.producer_id, transaction.producer_epoch

        def answer(results: list[Any]) -> None:
            result = messages.AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=results)
            self._results.append(result)
            if len(self._results) == self._count:
                self._request.reply(messages.RESPONSE(results_by_transaction=self._results))

        try:
            # Not `find_transaction`: brokers need CLUSTER_ACTION only, no permission for the transactional id.
            driver = context.transactions.shards.find(transactional_id)
        except Refusal as refusal:
            code = refusal.code
            answer(_results(topics, lambda partition: code))
            return
        if transaction.verify_only:
            self._verify(driver, transactional_id, producer, topics, answer)
            return
        _add(context, self._request, driver, transactional_id, producer, topics, answer)

    def _verify(
        self,
        driver: TransactionDriver,
        transactional_id: str,
        producer: tuple[int, int],
        topics: list[Any],
        answer: Callable[[list[Any]], None],
    ) -> None:
        """Answers once the transaction's records are committed: the next coordinator then knows the partitions too."""
        verify = driver.shard.verify
        results = _results(topics, lambda partition: self._known(verify(transactional_id, *producer, partition)))
        pending = PendingResponse(answer, lambda code: answer(_results(topics, lambda partition: code)))
        driver.log.answer(pending, results)

    def _known(self, code: ErrorCode) -> ErrorCode:
        """Returns an error code that the request's version has."""
        if code == ErrorCode.TRANSACTION_ABORTABLE and self._request.version < ABORTABLE_SINCE:
            return ErrorCode.INVALID_TXN_STATE
        return code


def _add(
    context: Context,
    request: Request,
    driver: TransactionDriver,
    transactional_id: str,
    producer: tuple[int, int],
    topics: list[Any],
    answer: Callable[[list[Any]], None],
) -> None:
    problems = _problems(context, request, topics)
    if problems:
        answer(_results(topics, lambda partition: problems.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED)))
        return
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    client_version = 2 if request.version >= BATCHED_SINCE else 0
    result = driver.shard.add_partitions(
        transactional_id, *producer, partitions, driver.now_ms(), client_version=client_version
    )
    code = known_error(result.error, request, FENCED_SINCE)
    pending = PendingResponse(
        lambda done: answer(_results(topics, lambda partition: code)),
        lambda failed: answer(_results(topics, lambda partition: failed)),
    )
    driver.apply(transactional_id, result, pending)


def _results(topics: list[Any], code_of: Callable[[tuple[str, int]], int]) -> list[Any]:
    return [
        _TopicResult(
            name=topic.name,
            results_by_partition=[
                _PartitionResult(partition_index=index, partition_error_code=code_of((topic.name, index)))
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _problems(context: Context, request: Request, topics: list[Any]) -> dict[tuple[str, int], ErrorCode]:
    image = context.controller.image
    problems = {}
    for topic in topics:
        is_allowed = request.version >= BATCHED_SINCE or (
            topic.name not in INTERNAL_TOPICS and allows_topic(context, request, AclOperation.WRITE, topic.name)
        )
        for index in topic.partitions:
            if not is_allowed:
                problems[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif image.partition(topic.name, index) is None:
                problems[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return problems
