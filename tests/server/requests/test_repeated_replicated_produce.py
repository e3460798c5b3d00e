"""Recognised Produce requests for a partition with followers wait for the high watermark, like decoded ones."""

from __future__ import annotations

import pytest

from kbroker.controller.image import PartitionState
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.leader_state import LeaderState
from kbroker.replication.peers import Peers
from kbroker.server.wire.request_slot import RequestSlot
from tests.log.batches import make_batch
from tests.server.handlers.harness import HandlerBroker
from tests.server.requests.twins import KNOWN_PRODUCES, WAITS, Twins, content_of, produce_frame, produced

FOLLOWER = 2
LONG_MS = 30_000


class Replicated:
    """Twins whose partition t-0 has a follower, which the test plays. Requests wait until `confirm`."""

    def __init__(self, twins: Twins) -> None:
        self.twins = twins
        self.slots: list[list[RequestSlot]] = []
        for broker in twins.brokers:
            state = PartitionState(broker.context.broker_id, 1, (broker.context.broker_id, FOLLOWER), (), 1)
            state = state._replace(replicas=state.isr)
            partition = broker.context.partitions.get("t", 0)
            assert partition is not None
            partition.become_leader(state, Peers(broker.context.broker_id, broker.clock, LONG_MS))

    def leaderships(self) -> list[LeaderState]:
        found = [broker.context.partitions.get("t", 0) for broker in self.twins.brokers]
        return [partition.leadership for partition in found if partition is not None and partition.leadership]

    def send(self, *frames: bytes) -> None:
        """Sends the frames of one run. None of them is answered in it."""
        self.slots = [self._send(number, frames) for number in (0, 1)]
        assert all(slot.parts is None for slots in self.slots for slot in slots)

    def send_known(self, *frames: bytes) -> None:
        before = self.twins.decoded
        self.send(*frames)
        assert self.twins.decoded - before == len(frames), "only the other broker should have decoded them"

    def _send(self, number: int, frames: tuple[bytes, ...]) -> list[RequestSlot]:
        broker: HandlerBroker = self.twins.brokers[number]
        slots = []
        for frame in frames:
            slots.append(RequestSlot(self.twins.peers[number]))  # type: ignore[arg-type]
            broker.dispatch.handle(slots[-1].connection, memoryview(bytearray(frame)), slots[-1])
        broker.context.run.write()
        return slots

    def confirm(self, end_offset: int) -> None:
        for leadership in self.leaderships():
            assert leadership.on_fetch(FOLLOWER, end_offset, 0, -1)

    def answers(self) -> list[bytes]:
        """Returns the responses to the frames that were sent last, which must be equal."""
        quick, plain = ([content_of(slot) for slot in slots] for slots in self.slots)
        assert quick == plain
        return quick


@pytest.fixture
def replicated(twins: Twins) -> Replicated:
    return Replicated(twins)


@pytest.mark.parametrize("version", KNOWN_PRODUCES)
async def test_a_recognised_produce_is_answered_when_the_followers_have_its_records(
    replicated: Replicated, version: int
) -> None:
    frame = produce_frame(version, make_batch(b"v"), acks=-1)
    replicated.send(frame)
    replicated.confirm(1)
    assert [produced(version, answer) for answer in replicated.answers()] == [(0, 0)]
    replicated.send_known(frame, frame, frame)
    replicated.confirm(2)
    assert [slot.parts is None for slot in replicated.slots[0]] == [False, True, True]
    replicated.confirm(4)
    assert [produced(version, answer) for answer in replicated.answers()] == [(0, 1), (0, 2), (0, 3)]


async def test_with_acks_1_it_waits_for_no_follower(replicated: Replicated) -> None:
    frame = produce_frame(9, make_batch(b"v"), acks=1)
    replicated.twins.ask_unknown(frame)
    assert [produced(9, answer) for answer in replicated.twins.ask_known(frame, frame)] == [(0, 1), (0, 2)]


@pytest.mark.parametrize("version", KNOWN_PRODUCES)
async def test_its_timeout_is_answered_once(replicated: Replicated, version: int) -> None:
    frame = produce_frame(version, make_batch(b"v"), acks=-1)
    replicated.send(frame)
    replicated.confirm(1)
    replicated.send_known(frame)
    for broker in replicated.twins.brokers:
        ((_, _, deadline),) = (entry for entry in broker.context.deadlines._heap if entry[2].callback is not None)
        assert deadline.callback is not None
        deadline.callback()
    (answer,) = replicated.answers()
    assert produced(version, answer) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    replicated.confirm(2)


@pytest.mark.parametrize("version", KNOWN_PRODUCES)
async def test_it_fails_when_the_leader_changes(replicated: Replicated, version: int) -> None:
    frame = produce_frame(version, make_batch(b"v"), acks=-1)
    replicated.send(frame)
    replicated.confirm(1)
    replicated.send_known(frame)
    for broker in replicated.twins.brokers:
        partition = broker.context.partitions.get("t", 0)
        assert partition is not None
        own = broker.context.broker_id
        state = PartitionState(FOLLOWER, 2, (own, FOLLOWER), (own, FOLLOWER), 2)
        partition.become_follower(state, Peers(own, broker.clock, LONG_MS))
    (answer,) = replicated.answers()
    assert produced(version, answer) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_with_too_few_replicas_in_sync_it_is_refused_by_the_handler(replicated: Replicated) -> None:
    frame = produce_frame(9, make_batch(b"v"), acks=-1)
    replicated.send(frame)
    replicated.confirm(1)
    for broker in replicated.twins.brokers:
        partition = broker.context.partitions.get("t", 0)
        assert partition is not None
        partition.insync_replicas, partition.min_insync_replicas = 1, 2
    (answer,) = replicated.twins.ask_unknown(frame)
    assert produced(9, answer) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)


async def test_a_connection_that_closes_ends_the_wait(replicated: Replicated) -> None:
    frame = produce_frame(9, make_batch(b"v"), acks=-1)
    replicated.send(frame)
    replicated.confirm(1)
    replicated.send_known(frame)
    for peer in replicated.twins.peers:
        peer.is_closed = True
    assert replicated.answers() == [WAITS]  # cancels the slots
    for broker in replicated.twins.brokers:
        assert all(entry[2].callback is None for entry in broker.context.deadlines._heap)
    replicated.confirm(2)
