"""Any order of heartbeats, lost answers, restarts, topics and time: what must hold of a consumer group all the same.

A partition is with one member at a time; epochs only grow; the log says what the shard says; and members that do what
they are told end up with every partition of their topics, evenly.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kbroker.errors import Refusal
from kbroker.group.classic.consumer_protocol_codec import read_assignment
from kbroker.group.consumer.consumer_records import Assignment, as_assignment
from kbroker.group.consumer.consumer_state import ConsumerGroupStatus
from kbroker.protocol.error_codes import ErrorCode
from tests.group.consumers import ConsumerWorld, set_topics, subscription
from tests.group.world import GROUP, Answer

SUBSCRIPTIONS = st.sampled_from([("a",), ("a", "b"), ("b", "c"), ("c",), ()])
TOPICS = st.fixed_dictionaries({"a": st.integers(1, 5)}, optional={"b": st.integers(1, 5), "c": st.integers(1, 3)})
REJOIN = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


class Client:
    """A process of the consumer protocol. What it holds, it holds until it is told otherwise."""

    def __init__(self, member_id: str, instance_id: str | None, topics: tuple[str, ...]) -> None:
        self.member_id, self.instance_id, self.topics = member_id, instance_id, topics
        self.epoch = 0
        self.owned: Assignment = {}
        self.shall_have: Assignment = {}

    def beat(self, world: ConsumerWorld, *, is_lost: bool = False, lets_go: bool = True) -> None:
        if lets_go:
            self.owned = self.shall_have
        if self.epoch == 0:
            response = world.join_consumer(self.member_id, self.topics, instance_id=self.instance_id)
        else:
            options: dict[str, Any] = {"topics": self.topics, "rebalance_timeout_ms": 60_000}
            response = world.beat(self.member_id, self.epoch, owned=self.owned, instance_id=self.instance_id, **options)
        if isinstance(response, int):
            if response in REJOIN:
                self.drop()
        elif not is_lost:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.shall_have = as_assignment(response.assignment.topic_partitions)
                # New ones are taken at once; those to give back only when it gets round to it.
                kept = {
                    topic_id: self.owned.get(topic_id, frozenset()) | new for topic_id, new in self.shall_have.items()
                }
                self.owned = {**self.owned, **kept}

    def drop(self) -> None:
        self.epoch, self.owned, self.shall_have = 0, {}, {}


class ClassicClient:
    """A process of the classic protocol, eager: it lets go of everything before it joins again."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.member_id, self.generation = "", -1
        self.waiting: Answer | None = None
        self.owned: list[tuple[str, list[int]]] = []

    def beat(self, world: ConsumerWorld) -> None:
        if self.waiting is not None:
            if self.waiting.is_waiting:
                return
            self._on_joined(world, self.waiting)
        elif self.generation < 0 or world.heartbeat(self.member_id, self.generation) != 0:
            self.join(world)

    def join(self, world: ConsumerWorld) -> None:
        self.owned, self.generation = [], -1
        try:
            answer = world.join(self.member_id, protocols=[("range", subscription(self.topics))])
        except Refusal:
            self.member_id = ""
            return
        if answer.is_waiting:
            self.waiting = answer
        else:
            self._on_joined(world, answer)

    def _on_joined(self, world: ConsumerWorld, answer: Answer) -> None:
        self.waiting = None
        response = answer.response
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self.join(world)
        elif response.error_code:
            self.member_id = self.member_id if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS else ""
        else:
            self.member_id, self.generation = response.member_id, response.generation_id
            given = {member.member_id: b"" for member in response.members}
            try:
                synced = world.sync(self.member_id, self.generation, given)
            except Refusal:
                return
            if not synced.is_waiting and synced.code == 0:
                self.owned = read_assignment(synced.response.assignment)


class ConsumerMachine(RuleBasedStateMachine):
    @initialize(counts=TOPICS)
    def start(self, counts: dict[str, int]) -> None:
        self.world = ConsumerWorld(counts)
        self.clients: list[Client] = []
        self.classic: list[ClassicClient] = []
        self.made = 0
        self.epoch = 0

    @rule(topics=SUBSCRIPTIONS, instance_id=st.sampled_from([None, None, "x", "y"]))
    def begin(self, topics: tuple[str, ...], instance_id: str | None) -> None:
        self.made += 1
        client = Client(f"m{self.made}", instance_id, topics)
        self.clients.append(client)
        client.beat(self.world)

    @rule(data=st.data(), is_lost=st.booleans(), lets_go=st.sampled_from([True, True, False]))
    def beat(self, data: st.DataObject, is_lost: bool, lets_go: bool) -> None:
        if self.clients:
            data.draw(st.sampled_from(self.clients)).beat(self.world, is_lost=is_lost, lets_go=lets_go)

    @rule()
    def everybody_beats(self) -> None:
        for client in self.clients:
            client.beat(self.world)
        for other in self.classic:
            other.beat(self.world)

    @rule(data=st.data(), topics=SUBSCRIPTIONS)
    def change_subscription(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        if self.clients:
            client = data.draw(st.sampled_from(self.clients))
            client.topics = topics
            client.beat(self.world)

    @rule(data=st.data(), epoch=st.sampled_from([-1, -1, -2]))
    def leave(self, data: st.DataObject, epoch: int) -> None:
        if self.clients:
            client = data.draw(st.sampled_from(self.clients))
            self.clients.remove(client)
            self.world.beat(client.member_id, epoch if client.instance_id else -1, instance_id=client.instance_id)

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        if self.clients:
            self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @rule(topics=SUBSCRIPTIONS)
    def begin_classic(self, topics: tuple[str, ...]) -> None:
        client = ClassicClient(topics)
        self.classic.append(client)
        client.beat(self.world)

    @rule(data=st.data(), is_crash=st.booleans())
    def end_classic(self, data: st.DataObject, is_crash: bool) -> None:
        if self.classic:
            client = data.draw(st.sampled_from(self.classic))
            self.classic.remove(client)
            if not is_crash:
                self.world.leave((client.member_id, None))

    @rule(counts=TOPICS)
    def change_topics(self, counts: dict[str, int]) -> None:
        set_topics(self.world.topics, counts)

    @rule(milliseconds=st.sampled_from([1, 1000, 9_999, 10_000, 44_999, 45_000, 60_000]))
    def wait(self, milliseconds: int) -> None:
        self.world.advance(milliseconds)

    @rule()
    def restart(self) -> None:
        self.world.restart()
        for client in self.classic:
            client.waiting = None

    @rule()
    def expire(self) -> None:
        self.world.append(self.world.shard.offsets.expire(GROUP, self.world.now))
        if GROUP not in self.world.shard.hard:
            self.epoch = 0  # another group of the same name counts anew

    @invariant()
    def a_partition_is_with_one_member_at_a_time(self) -> None:
        if not hasattr(self, "world") or self.world.consumers is None:
            return
        state = self.world.consumers
        seen: dict[tuple[bytes, int], str] = {}
        for member_id, current in state.currents.items():
            assert member_id in state.members
            for assignment in (current.assigned, current.pending_revocation):
                for topic, partitions in assignment.items():
                    for index in partitions:
                        assert (topic, index) not in seen, f"{seen[topic, index]} and {member_id} have {index}"
                        seen[topic, index] = member_id
        assert seen == state.owners

    @invariant()
    def nobody_holds_what_the_broker_does_not_know_of(self) -> None:
        """So two processes that are in the group never read the same partition."""
        if not hasattr(self, "world") or self.world.consumers is None:
            return
        owners = self.world.consumers.owners
        for client in self.clients:
            if client.member_id in self.world.consumers.members and client.epoch:
                for topic, partitions in client.owned.items():
                    for index in partitions:
                        assert owners.get((topic, index)) == client.member_id
        names = self.world.topics.image.topics
        # Classic members know topics by name: one that was created anew is the same to them.
        for other in self.classic if self.world.topics.version == 1 else ():
            if other.member_id in self.world.consumers.members and other.generation >= 0:
                for name, indexes in other.owned:
                    for index in indexes:
                        assert owners.get((names[name].id, index)) == other.member_id

    @invariant()
    def epochs_only_grow(self) -> None:
        if hasattr(self, "world") and self.world.consumers is not None:
            state = self.world.consumers
            if state.members:
                assert state.epoch >= self.epoch
                self.epoch = state.epoch
            assert state.target_epoch <= state.epoch
            assert all(current.epoch <= state.epoch for current in state.currents.values())
        elif hasattr(self, "world"):
            self.epoch = 0

    @invariant()
    def the_log_says_what_the_shard_says(self) -> None:
        if hasattr(self, "world"):
            self.world.check_log()

    @invariant()
    def a_group_with_members_will_be_woken(self) -> None:
        if hasattr(self, "world") and self.world.consumers is not None and self.world.consumers.members:
            assert self.world.wakes

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for client in self.classic:
            self.world.leave((client.member_id, None))
        for _ in range(24):  # longer than any session: vanished members are removed
            self.world.advance(5_000)
            for member in self.clients:
                member.beat(self.world)
        state = self.world.consumers
        if state is None or not state.members:
            return
        assert state.status is ConsumerGroupStatus.STABLE
        topics = self.world.topics
        wanted = topics.partition_counts(topics.ids(state.subscribed_topics()))
        assert set(state.owners) == {(topic, index) for topic, count in wanted.items() for index in range(count)}
        assert {client.member_id for client in self.clients if client.epoch} == set(state.members)


TestConsumerMachine = ConsumerMachine.TestCase
TestConsumerMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
