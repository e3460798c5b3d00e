"""Batches that were refused with a retriable error: later ones of the same producer wait for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.producers.producer_state import MAX_SEQUENCE, ProducerState
from kbroker.log.producers.refused_batches import RefusedBatches
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import read_header
from tests.log.batches import NOW, make_batch

TOPIC = b"t" * 16
FULL = ErrorCode.KAFKA_STORAGE_ERROR
FEW = ErrorCode.NOT_ENOUGH_REPLICAS


class Leader:
    """A partition that accepts or refuses batches of one record."""

    def __init__(self) -> None:
        self.refused = RefusedBatches()
        self.producers = ProducerState()
        self.offset = 0

    def refuse(
        self, sequence: int, code: ErrorCode = FEW, *, producer_id: int = 1, epoch: int = 0, at: int = NOW
    ) -> None:
        batch = make_batch(b"v", producer_id=producer_id, sequence=sequence, epoch=epoch)
        self.refused.note(TOPIC, 0, batch, code, at)

    def send(self, sequence: int, *, producer_id: int = 1, epoch: int = 0, at: int = NOW) -> ErrorCode:
        batch = make_batch(b"v", producer_id=producer_id, sequence=sequence, epoch=epoch)
        held_back = self.refused.check(TOPIC, 0, batch, self.producers, at)
        if held_back is not None:
            return held_back
        header = read_header(batch)
        verdict = self.producers.check(header)
        if isinstance(verdict, ErrorCode):
            return verdict
        if verdict is None:
            self.producers.update(header, self.offset)
            self.offset += 1
        return ErrorCode.NONE


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_later_batches_get_the_code_of_the_refusal_until_the_refused_one_arrives(leader: Leader) -> None:
    assert leader.send(0) == ErrorCode.NONE
    leader.refuse(1)
    assert [leader.send(sequence) for sequence in (2, 3, 2)] == [FEW, FEW, FEW]
    assert [leader.send(sequence) for sequence in (1, 3, 2, 3)] == [0, FEW, 0, 0]
    assert leader.send(5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not leader.refused.entries


def test_a_producer_that_the_log_does_not_know_waits_for_its_first_refused_batch(leader: Leader) -> None:
    leader.refuse(4)
    leader.refuse(0)
    assert [leader.send(sequence) for sequence in (5, 0, 1)] == [FEW, 0, 0]


def test_a_batch_that_is_in_the_log_is_still_a_duplicate(leader: Leader) -> None:
    assert [leader.send(sequence) for sequence in (0, 1)] == [0, 0]
    leader.refuse(2)
    assert [leader.send(sequence) for sequence in (0, 1, 2)] == [0, 0, 0]
    assert leader.offset == 3


def test_sequences_wrap(leader: Leader) -> None:
    assert leader.send(MAX_SEQUENCE - 1) == ErrorCode.NONE
    leader.refuse(MAX_SEQUENCE, FULL)
    assert [leader.send(sequence) for sequence in (0, MAX_SEQUENCE, 0)] == [FULL, 0, 0]


def test_other_producers_epochs_and_partitions_are_not_affected(leader: Leader) -> None:
    assert leader.send(0) == ErrorCode.NONE
    leader.refuse(1)
    assert leader.send(7, producer_id=2) == ErrorCode.NONE
    batch = make_batch(b"v", producer_id=1, sequence=2)
    assert leader.refused.check(TOPIC, 1, batch, leader.producers, NOW) is None
    assert leader.refused.check(TOPIC, 0, make_batch(b"v"), leader.producers, NOW) is None
    assert leader.refused.check(TOPIC, 0, None, leader.producers, NOW) is None


def test_a_new_epoch_waits_for_its_own_first_batch_and_fences_the_old_one(leader: Leader) -> None:
    assert leader.send(0) == ErrorCode.NONE
    leader.refuse(1)
    leader.refuse(0, FULL, epoch=1)
    assert [leader.send(sequence, epoch=1) for sequence in (1, 0, 1)] == [FULL, 0, 0]
    assert leader.send(2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert [key[-1] for key in leader.refused.entries] == [1]


def test_a_refusal_is_forgotten_after_a_minute(leader: Leader) -> None:
    assert leader.send(0) == ErrorCode.NONE
    leader.refuse(1)
    assert leader.send(2, at=NOW + 59_999) == FEW  # which refuses it too
    assert leader.send(2, at=NOW + 119_999) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    leader.refuse(1)
    leader.refuse(1, producer_id=2, at=NOW + 1)
    leader.refused.expire(NOW + 60_000)
    assert [key[2] for key in leader.refused.entries] == [2]


def test_the_number_of_remembered_producers_is_bounded(leader: Leader) -> None:
    for producer_id in range(10_500):
        leader.refuse(1, producer_id=producer_id)
    assert len(leader.refused.entries) == 10_000
    assert next(iter(leader.refused.entries))[2] == 500


class PipeliningClient:
    """An idempotent producer with several batches in flight, which sends refused batches again, lowest first."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.unsent = list(range(_BATCHES))
        self.in_flight: list[int] = []
        self.log: list[int] = []

    def send(self) -> None:
        if self.unsent and len(self.in_flight) < 5:
            self.in_flight.append(self.unsent.pop(0))

    def answer(self, *, is_refused: bool, is_lost: bool) -> None:
        """The leader handles the oldest request. If the response is lost, the client sends the batch again."""
        if not self.in_flight:
            return
        sequence = self.in_flight.pop(0)
        before = self.leader.offset
        if is_refused:
            self.leader.refuse(sequence)
            code = FEW
        else:
            code = self.leader.send(sequence)
        assert code in (ErrorCode.NONE, FEW), "librdkafka would raise its epoch"
        if self.leader.offset > before:
            self.log.append(sequence)
        if code != ErrorCode.NONE or is_lost:
            self.unsent = sorted([*self.unsent, sequence])


_BATCHES = 12


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=120))
def test_whatever_is_refused_or_lost_every_batch_is_written_once_and_in_order(
    steps: list[tuple[bool, bool, bool]],
) -> None:
    client = PipeliningClient(Leader())
    for is_send, is_refused, is_lost in steps:
        if is_send:
            client.send()
        else:
            client.answer(is_refused=is_refused, is_lost=is_lost)
    while client.unsent or client.in_flight:
        client.send()
        client.answer(is_refused=False, is_lost=False)
    assert client.log == list(range(_BATCHES))
