"""Model of three brokers and a controller as plain values. In any order of fetches, crashes, elections from the ISR,
late images and lost responses, a record that was acknowledged with acks=all, or visible to consumers, keeps its offset
in the log of every broker that may be elected."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.controller.image import NO_LEADER, PartitionState
from kbroker.controller.rules.election import elect
from kbroker.log.leader_epochs import EpochEntry
from kbroker.replication.follower_view import truncation_offset
from kbroker.replication.leader_view import LeaderView, Proposal
from tests.replication.model_log import ModelLog

BROKERS = (1, 2, 3)
LAG_MS = 100

brokers = st.sampled_from(BROKERS)

_STEPS = (
    *("produce",) * 4,
    *("fetch",) * 8,
    *("hear",) * 3,
    *("decide",) * 2,
    *("receive", "shrink", "crash", "restart", "restart", "move", "checkpoint"),
)


class Broker:
    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.log = ModelLog()
        self.checkpointed_high_watermark = 0
        self.is_alive = True
        self.state: PartitionState | None = None
        self.view: LeaderView | None = None

    def take(self, state: PartitionState, now_ms: int) -> None:
        """Applies an image if its partition epoch is newer."""
        known = self.state
        if known is not None and state.partition_epoch <= known.partition_epoch:
            return
        self.state = state
        if state.leader != self.id:
            self.view = None
        elif self.view is None or self.view.leader_epoch != state.leader_epoch:
            self.view = LeaderView(
                self.id,
                state.replicas,
                state.isr,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                epoch_start_offset=self.log.log_end_offset,
                max_lag_ms=LAG_MS,
                now_ms=now_ms,
            )
        else:
            self.view.on_committed(state.isr, state.partition_epoch)

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        """Returns the end offset as a leader does, which knows its own epoch before it has records in it."""
        assert self.view is not None
        end = self.log.log_end_offset
        if epoch == self.view.leader_epoch:
            return EpochEntry(epoch, end)
        if epoch > self.log.latest_epoch:
            return EpochEntry(self.log.latest_epoch if self.log.entries else epoch, end)
        return self.log.end_offset_for_epoch(epoch)

    def crash(self) -> None:
        """Crashes: records stay; high watermark and role are lost."""
        self.is_alive = False
        self.state = self.view = None
        self.log.high_watermark = min(self.checkpointed_high_watermark, self.log.log_end_offset)


class Replication(RuleBasedStateMachine):
    @initialize(min_isr=st.integers(1, 3))
    def start(self, min_isr: int) -> None:
        self.min_isr = min_isr
        self.now_ms = 0
        self.brokers = {broker_id: Broker(broker_id) for broker_id in BROKERS}
        self.truth = PartitionState(1, 0, BROKERS, BROKERS, 0)
        self.history = [self.truth]
        self.acknowledged: dict[int, str] = {}
        self.answers: dict[int, tuple[Any, ...]] = {}  # of fetches, on their way to a follower
        self.proposals: list[tuple[int, Proposal]] = []  # on their way to the controller
        self.count = 0
        for broker in self.brokers.values():
            broker.take(self.truth, 0)

    def live(self) -> set[int]:
        return {broker.id for broker in self.brokers.values() if broker.is_alive}

    def set_truth(self, state: PartitionState) -> None:
        self.truth = state
        self.history.append(state)

    # Clients

    @rule(broker_id=brokers)
    def produce(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if broker.is_alive and broker.view is not None and len(broker.view.isr) >= self.min_isr:
            self.count += 1
            broker.log.entries.append((broker.view.leader_epoch, f"record {self.count}"))
            self.advance(broker)

    def advance(self, leader: Broker) -> None:
        assert leader.view is not None
        offset = leader.view.high_watermark(leader.log.log_end_offset, self.now_ms, self.live(), self.min_isr)
        if offset is None or offset <= leader.log.high_watermark:
            return
        leader.log.high_watermark = offset
        for number in range(offset):
            value = leader.log.entries[number][1]
            known = self.acknowledged.setdefault(number, value)
            assert known == value, f"offset {number} was acknowledged as {known}, and now as {value}"

    # Followers

    @rule(broker_id=brokers)
    def fetch(self, broker_id: int) -> None:
        """Handles the request at once; the response may be delayed or lost."""
        follower = self.brokers[broker_id]
        state = follower.state
        if not follower.is_alive or state is None or state.leader in (NO_LEADER, follower.id):
            return
        leader = self.brokers[state.leader]
        if not leader.is_alive or leader.view is None or leader.view.leader_epoch != state.leader_epoch:
            return  # fenced, or not there
        log, end = follower.log, leader.log.log_end_offset
        offset = log.log_end_offset
        if log.latest_epoch >= 0:
            found = leader.end_offset_for_epoch(log.latest_epoch)
            if found.epoch < log.latest_epoch or found.start_offset < offset:
                self.answers[broker_id] = (state.leader_epoch, offset, found, [], 0)
                return
        leader.view.on_fetch(broker_id, offset, 0, 1, leader_end=end, now_ms=self.now_ms)
        self.advance(leader)
        records = copy.copy(leader.log.entries[offset : offset + 3])
        self.answers[broker_id] = (state.leader_epoch, offset, None, records, leader.log.high_watermark)
        proposal = leader.view.propose_addition(broker_id, leader.log.high_watermark, self.live())
        if proposal is not None:
            self.proposals.append((leader.id, proposal))

    @rule(broker_id=brokers)
    def receive(self, broker_id: int) -> None:
        answer = self.answers.pop(broker_id, None)
        follower = self.brokers[broker_id]
        if answer is None or not follower.is_alive or follower.state is None:
            return
        epoch, offset, diverging, records, high_watermark = answer
        log = follower.log
        if follower.state.leader_epoch != epoch or follower.view is not None or log.log_end_offset != offset:
            return
        if diverging is not None:
            log.truncate_to(truncation_offset(log, diverging))
            return
        log.entries += records
        log.high_watermark = max(log.high_watermark, min(high_watermark, log.log_end_offset))

    # The in-sync set

    @rule(broker_id=brokers)
    def shrink(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if broker.is_alive and broker.view is not None:
            proposal = broker.view.propose_removals(broker.log.log_end_offset, self.now_ms)
            if proposal is not None:
                self.proposals.append((broker_id, proposal))

    @precondition(lambda self: self.proposals)
    @rule(is_answer_lost=st.booleans())
    def decide(self, is_answer_lost: bool) -> None:
        """Decides on a proposal by its epochs. If the response is lost, the leader's proposal stays pending."""
        broker_id, proposal = self.proposals.pop(0)
        leader, truth = self.brokers[broker_id], self.truth
        is_right = (
            truth.leader == broker_id
            and truth.leader_epoch == proposal.leader_epoch
            and truth.partition_epoch == proposal.partition_epoch
            and all(broker_id in self.live() for broker_id in proposal.isr)
        )
        if is_right:
            self.set_truth(truth._replace(isr=proposal.isr, partition_epoch=truth.partition_epoch + 1))
        if is_answer_lost or leader.view is None or leader.view.pending is not proposal:
            return
        if is_right:
            leader.view.on_committed(self.truth.isr, self.truth.partition_epoch)
            self.advance(leader)
        elif truth.leader_epoch == proposal.leader_epoch and truth.partition_epoch == proposal.partition_epoch:
            leader.view.on_rejected(proposal)

    # The controller and the world

    @rule(broker_id=brokers, age=st.integers(0, 2))
    def hear(self, broker_id: int, age: int) -> None:
        """Delivers images late, but in order."""
        broker = self.brokers[broker_id]
        if broker.is_alive:
            broker.take(self.history[max(len(self.history) - 1 - age, 0)], self.now_ms)
            if broker.view is not None:
                self.advance(broker)

    @rule(broker_id=brokers)
    def crash(self, broker_id: int) -> None:
        self.brokers[broker_id].crash()
        self.answers.pop(broker_id, None)

    @rule()
    def elect(self) -> None:
        state = elect(self.truth, self.live(), controller_epoch=0)
        if state is not None:
            self.set_truth(state)

    @rule(broker_id=brokers)
    def come_back(self, broker_id: int) -> None:
        """Restarts a broker. The controller noticed the crash before: the broker leads nothing."""
        broker = self.brokers[broker_id]
        if not broker.is_alive and self.truth.leader != broker_id:
            broker.is_alive = True
            self.elect()
            broker.take(self.truth, self.now_ms)

    @rule(broker_id=brokers)
    def move_leadership(self, broker_id: int) -> None:
        truth = self.truth
        if broker_id in truth.isr and broker_id in self.live() and truth.leader != broker_id:
            self.set_truth(
                truth._replace(
                    leader=broker_id, leader_epoch=truth.leader_epoch + 1, partition_epoch=truth.partition_epoch + 1
                )
            )

    @rule(broker_id=brokers)
    def checkpoint(self, broker_id: int) -> None:
        self.brokers[broker_id].checkpointed_high_watermark = self.brokers[broker_id].log.high_watermark

    @rule(ms=st.sampled_from([1, LAG_MS + 1]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(fetching=st.sets(brokers, min_size=1), rounds=st.integers(1, 3))
    def let_it_run(self, fetching: set[int], rounds: int) -> None:
        """Delivers everything. Without this step most runs end before a record is acknowledged."""
        for broker_id in BROKERS:
            self.hear(broker_id, 0)
        for _ in range(rounds):
            for broker_id in BROKERS:
                self.produce(broker_id)
            for broker_id in sorted(fetching):
                self.fetch(broker_id)
                self.receive(broker_id)

    @invariant()
    def every_acknowledged_record_is_where_it_was(self) -> None:
        """Checks the logs of all brokers that may be elected next."""
        for broker_id in self.truth.isr:
            entries = self.brokers[broker_id].log.entries
            for offset, value in self.acknowledged.items():
                assert offset < len(entries), f"broker {broker_id} has lost offset {offset}"
                assert entries[offset][1] == value, f"broker {broker_id} has other records at offset {offset}"


TestReplication = Replication.TestCase
TestReplication.settings = settings(max_examples=50, stateful_step_count=40)


@pytest.mark.parametrize("seed", range(4))
def test_long_histories_lose_nothing(seed: int) -> None:
    """The same model with random steps: a hundred times faster than Hypothesis, for rare sequences of many steps."""
    choose = Random(seed)
    for _ in range(1500):
        world = Replication()
        world.start(choose.choice([1, 1, 2]))
        for _ in range(60):
            broker_id = choose.choice(BROKERS)
            match choose.choice(_STEPS):
                case "produce":
                    world.produce(broker_id)
                case "fetch":
                    world.fetch(broker_id)
                    if choose.random() < 0.8:
                        world.receive(broker_id)
                case "receive":
                    world.receive(broker_id)
                case "hear":
                    world.hear(broker_id, choose.choice([0, 0, 1]))
                case "shrink":
                    world.wait(LAG_MS + 1)
                    world.fetch(broker_id)
                    world.shrink(world.truth.leader if world.truth.leader in BROKERS else broker_id)
                case "decide" if world.proposals:
                    world.decide(choose.random() < 0.3)
                case "crash":
                    world.crash(broker_id)
                    world.elect()
                case "restart":
                    world.come_back(broker_id)
                case "move":
                    world.move_leadership(broker_id)
                case "checkpoint":
                    world.checkpoint(broker_id)
            world.every_acknowledged_record_is_where_it_was()
