"""Requests about transactions between brokers: batches of markers and of admissions, and their answers."""

from __future__ import annotations

from typing import Any

from kbroker.client.connection import BrokerConnection
from kbroker.coordinator.admission_requests import PendingAdmission, TransactionAdmission, send_admissions
from kbroker.coordinator.marker_requests import OutgoingMarker, send_markers
from kbroker.coordinator.markers import TransactionEnd
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import add_partitions_to_txn, write_txn_markers
from kbroker.protocol.registry import Api

TIMEOUT_SECONDS = 30.0


class FakeConnection(BrokerConnection):
    """Answers each request with the next of the given responses."""

    def __init__(self, *responses: Any) -> None:
        self.requests: list[dict[str, Any]] = []
        self._responses = list(responses)

    async def send(self, api: Api, /, **members: Any) -> Any:
        self.requests.append(members)
        return self._responses.pop(0)


class Codes:
    def __init__(self) -> None:
        self.by_name: dict[object, int] = {}

    def marker(self, end: TransactionEnd, topic: str, index: int) -> OutgoingMarker:
        return OutgoingMarker(end, (topic, index), lambda code: self.by_name.__setitem__((topic, index), code))

    def admission(self, transactional_id: str, epoch: int, topic: str, index: int) -> PendingAdmission:
        admission = TransactionAdmission(transactional_id, 7, epoch, False, (topic, index))
        return PendingAdmission(
            admission, lambda code: self.by_name.__setitem__((transactional_id, epoch, index), code)
        )


def marker_response(producer_id: int, topic: str, codes: dict[int, int]) -> Any:
    partitions = [
        write_txn_markers.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        for index, code in codes.items()
    ]
    topics = [write_txn_markers.WritableTxnMarkerTopicResult(name=topic, partitions=partitions)]
    return write_txn_markers.WritableTxnMarkerResult(producer_id=producer_id, topics=topics)


async def test_one_request_has_the_markers_of_several_transactions() -> None:
    codes = Codes()
    commit, abort = TransactionEnd(7, 0, True, 3), TransactionEnd(8, 5, False, 4)
    markers = [codes.marker(commit, "t", 0), codes.marker(abort, "u", 0), codes.marker(commit, "t", 1)]
    answers = [marker_response(8, "u", {0: 6}), marker_response(7, "t", {0: 0, 1: 19})]
    connection = FakeConnection(write_txn_markers.RESPONSE(markers=answers))
    assert await send_markers(connection, markers, timeout_s=TIMEOUT_SECONDS) == []
    [request] = connection.requests
    sent = [
        (marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch)
        for marker in request["markers"]
    ]
    assert sent == [(7, 0, True, 3), (8, 5, False, 4)]
    assert [topic.partition_indexes for topic in request["markers"][0].topics] == [[0, 1]]
    assert codes.by_name == {("t", 0): 0, ("t", 1): 19, ("u", 0): 6}


async def test_a_marker_without_an_answer_is_not_written() -> None:
    codes = Codes()
    connection = FakeConnection(write_txn_markers.RESPONSE(markers=[]))
    await send_markers(connection, [codes.marker(TransactionEnd(7, 0, True, 3), "t", 0)], timeout_s=TIMEOUT_SECONDS)
    assert codes.by_name == {("t", 0): ErrorCode.UNKNOWN_SERVER_ERROR}


async def test_two_ends_of_one_producer_are_sent_one_after_the_other() -> None:
    codes = Codes()
    first = codes.marker(TransactionEnd(7, 0, True, 3), "t", 0)
    second = codes.marker(TransactionEnd(7, 1, False, 3), "t", 1)
    connection = FakeConnection(write_txn_markers.RESPONSE(markers=[marker_response(7, "t", {0: 0})]))
    assert await send_markers(connection, [first, second], timeout_s=TIMEOUT_SECONDS) == [second]
    assert codes.by_name == {("t", 0): 0}


def admission_response(transactional_id: str, topic: str, codes: dict[int, int]) -> Any:
    partitions = [
        add_partitions_to_txn.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        for index, code in codes.items()
    ]
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopicResult(name=topic, results_by_partition=partitions)]
    return add_partitions_to_txn.AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=topics)


async def test_one_request_has_the_partitions_of_several_transactions() -> None:
    codes = Codes()
    asked = [codes.admission("a", 0, "t", 0), codes.admission("b", 2, "t", 0), codes.admission("a", 0, "t", 1)]
    newer = codes.admission("a", 1, "t", 0)
    results = [admission_response("a", "t", {0: 0, 1: 48}), admission_response("b", "t", {0: 16})]
    connection = FakeConnection(add_partitions_to_txn.RESPONSE(results_by_transaction=results))
    assert await send_admissions(connection, [*asked, newer], timeout_s=TIMEOUT_SECONDS) == [newer]
    [request] = connection.requests
    assert request["at_least"] == 4
    assert [(sent.transactional_id, sent.producer_epoch, sent.verify_only) for sent in request["transactions"]] == [
        ("a", 0, True),
        ("b", 2, True),
    ]
    assert codes.by_name == {("a", 0, 0): 0, ("a", 0, 1): 48, ("b", 2, 0): 16}


async def test_an_admission_without_an_answer_is_not_verified() -> None:
    for top_level, code in (
        (ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
    ):
        codes = Codes()
        connection = FakeConnection(add_partitions_to_txn.RESPONSE(error_code=top_level))
        await send_admissions(connection, [codes.admission("a", 0, "t", 0)], timeout_s=TIMEOUT_SECONDS)
        assert codes.by_name == {("a", 0, 0): code}
