"""The guard of a verification: what happens in the partition between the question and the answer of the coordinator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.log.producers.producer_state import ProducerState
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import BatchHeader, read_header
from kbroker.protocol.records import EndTransactionMarker, Record, build_batch, build_end_transaction_batch
from kbroker.server.coordinators.transactional_records import Verification

PRODUCER = (7, 3)


def data_header() -> BatchHeader:
    producer_id, epoch = PRODUCER
    return read_header(
        build_batch(
            [Record(0, 0, None, b"v")],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            is_transactional=True,
        )
    )


def marker_header() -> BatchHeader:
    producer_id, epoch = PRODUCER
    return read_header(
        build_end_transaction_batch(
            EndTransactionMarker(False, 0), producer_id=producer_id, producer_epoch=epoch, timestamp=0
        )
    )


@pytest.fixture(params=["an unknown producer", "a known producer"])
def producers(request: pytest.FixtureRequest) -> ProducerState:
    state = ProducerState()
    if request.param == "a known producer":
        state.end_transaction(marker_header(), offset=0, coordinator_epoch=0, is_abort=True)
    return state


def ask(producers: ProducerState) -> Verification:
    partition = cast(Any, SimpleNamespace(log=SimpleNamespace(producers=producers)))
    return Verification(partition, PRODUCER, producers.entries.get(PRODUCER[0]))


def test_records_are_admitted_if_nothing_happened_meanwhile(producers: ProducerState) -> None:
    verification = ask(producers)
    verification.answer(ErrorCode.NONE)
    assert verification.verdict() is ErrorCode.NONE


def test_records_are_refused_behind_a_marker(producers: ProducerState) -> None:
    verification = ask(producers)
    producers.end_transaction(marker_header(), offset=1, coordinator_epoch=1, is_abort=True)
    verification.answer(ErrorCode.NONE)
    assert verification.verdict() is ErrorCode.CONCURRENT_TRANSACTIONS


def test_records_are_admitted_if_other_records_have_opened_the_transaction(producers: ProducerState) -> None:
    verification = ask(producers)
    producers.update(data_header(), 1)
    verification.answer(ErrorCode.NONE)
    assert verification.verdict() is ErrorCode.NONE


def test_the_coordinators_error_counts_in_any_case(producers: ProducerState) -> None:
    verification = ask(producers)
    verification.answer(ErrorCode.PRODUCER_FENCED)
    assert verification.verdict() is ErrorCode.PRODUCER_FENCED


async def test_a_verification_waits_for_its_answer(producers: ProducerState) -> None:
    verification = ask(producers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(verification.wait)
        await wait_all_tasks_blocked()
        verification.answer(ErrorCode.NONE)
    await verification.wait()
