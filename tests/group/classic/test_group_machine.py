"""Any order of requests, restarts and time: what must hold of a classic group all the same.

Each generation gives a partition to one member at most; generations only grow; the log says what the shard says; and
nobody waits for ever.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kbroker.errors import Refusal
from kbroker.group.classic.states import GroupState
from tests.group.world import GROUP, Answer, World

PARTITIONS = 7
HOUR_MS = 3_600_000
INSTANCES = [None, None, None, "a", "b"]
PROTOCOLS = st.sampled_from(
    [(("range", b"1"),), (("range", b"2"), ("sticky", b"2")), (("sticky", b"3"), ("range", b"3"))]
)


class Client:
    """One process, as far as it knows."""

    def __init__(self, instance_id: str | None, protocols: Any) -> None:
        self.instance_id = instance_id
        self.protocols = protocols
        self.member_id = ""
        self.generation = -1
        self.join: Answer | None = None
        self.sync: Answer | None = None
        self.others: list[str] = []

    @property
    def is_waiting(self) -> bool:
        return any(pending is not None and pending.is_waiting for pending in (self.join, self.sync))


class GroupMachine(RuleBasedStateMachine):
    @initialize(delay_ms=st.sampled_from([0, 3000]), max_size=st.sampled_from([3, 100]))
    def start(self, delay_ms: int, max_size: int) -> None:
        self.world = World(initial_rebalance_delay_ms=delay_ms, max_size=max_size)
        self.clients: list[Client] = []
        self.owners: dict[tuple[int, int], str] = {}
        self.assigned: dict[int, dict[str, bytes]] = {}
        self.generation = 0
        self.answers: list[Answer] = []

    @rule(instance_id=st.sampled_from(INSTANCES), protocols=PROTOCOLS)
    def begin(self, instance_id: str | None, protocols: Any) -> None:
        client = Client(instance_id, protocols)
        self.clients.append(client)
        self._join(client)

    @rule(data=st.data())
    def join_again(self, data: st.DataObject) -> None:
        client = self._any(data)
        if client is not None:
            self._join(client)

    @rule(data=st.data(), protocols=PROTOCOLS)
    def change_subscription(self, data: st.DataObject, protocols: Any) -> None:
        client = self._any(data)
        if client is not None:
            client.protocols = protocols
            self._join(client)

    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        client = self._any(data)
        if client is None or client.generation < 0 or client.is_waiting:
            return
        assignments: dict[str, bytes] = {}
        for partition in range(PARTITIONS if client.others else 0):
            owner = client.others[partition % len(client.others)]
            assignments[owner] = assignments.get(owner, b"") + bytes([partition])
        client.sync = self._waited_for(
            self.world.sync(client.member_id, client.generation, assignments, instance_id=client.instance_id)
        )

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        client = self._any(data)
        if client is not None:
            self.world.heartbeat(client.member_id, client.generation, instance_id=client.instance_id)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = self._any(data)
        if client is not None:
            self.world.leave((client.member_id, client.instance_id))
            self._forget(client)

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        client = self._any(data)
        if client is not None:
            self._forget(client)

    @rule(data=st.data(), offset=st.integers(0, 100))
    def commit(self, data: st.DataObject, offset: int) -> None:
        client = self._any(data)
        if client is None:
            return
        try:
            self.world.commit(
                offset, member_id=client.member_id, generation=client.generation, instance_id=client.instance_id
            )
        except Refusal:
            return
        assert self.world.offset() == offset

    @rule(milliseconds=st.sampled_from([1, 1000, 3000, 9_999, 10_000, 30_000, 60_000]))
    def wait(self, milliseconds: int) -> None:
        self.world.advance(milliseconds)

    @rule()
    def restart(self) -> None:
        """Everybody's connection breaks, too."""
        self.world.restart()
        self.generation = 0
        for client in self.clients:
            client.join = client.sync = None
        self.answers.clear()

    @rule()
    def expire(self) -> None:
        self.world.append(self.world.shard.offsets.expire(GROUP, self.world.now))
        if self.world.state is GroupState.DEAD:
            # Another group of the same name counts anew.
            self.generation = 0
            self.owners.clear()

    @invariant()
    def take_answers(self) -> None:
        for client in list(getattr(self, "clients", ())):
            if client.join is not None and not client.join.is_waiting:
                self._on_joined(client, client.join.response)
                client.join = None
            if client.sync is not None and not client.sync.is_waiting:
                self._on_synced(client, client.sync.response)
                client.sync = None

    @invariant()
    def the_log_says_what_the_shard_says(self) -> None:
        if hasattr(self, "world"):
            self.world.check_log()

    @invariant()
    def a_group_that_is_not_idle_will_be_woken(self) -> None:
        if hasattr(self, "world"):
            group = self.world.group
            assert group is None or group.is_idle or self.world.wakes

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.advance(HOUR_MS)
            assert [answer for answer in self.answers if answer.is_waiting] == []
            assert self.world.state in (GroupState.EMPTY, GroupState.DEAD)

    def _any(self, data: st.DataObject) -> Client | None:
        return data.draw(st.sampled_from(self.clients)) if self.clients else None

    def _forget(self, client: Client) -> None:
        self.clients.remove(client)

    def _waited_for(self, answer: Answer) -> Answer:
        self.answers.append(answer)
        return answer

    def _join(self, client: Client) -> None:
        client.join = self._waited_for(
            self.world.join(client.member_id, instance_id=client.instance_id, protocols=client.protocols)
        )
        if not client.join.is_waiting and client.join.response.error_code == 79:  # MEMBER_ID_REQUIRED
            client.member_id = client.join.response.member_id
            client.join = self._waited_for(self.world.join(client.member_id, protocols=client.protocols))

    def _on_joined(self, client: Client, response: Any) -> None:
        if response.error_code:
            client.generation, client.others = -1, []
            if response.error_code == 25:  # UNKNOWN_MEMBER_ID
                client.member_id = ""
            return
        client.member_id = response.member_id
        client.generation = response.generation_id
        is_leader = response.leader == response.member_id and not response.skip_assignment
        client.others = [member.member_id for member in response.members] if is_leader else []
        assert response.generation_id >= self.generation, "a generation has come back"
        self.generation = response.generation_id

    def _on_synced(self, client: Client, response: Any) -> None:
        if response.error_code:
            return
        owner = client.instance_id or client.member_id
        for partition in response.assignment:
            earlier = self.owners.setdefault((client.generation, partition), owner)
            assert earlier == owner, f"{earlier} and {owner} own partition {partition}"


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
