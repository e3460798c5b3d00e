"""A cluster as a client sees it: its brokers, who leads what, one connection to each broker, opened when needed.

Owns when to ask for metadata again and when to try again. What is asked is the business of the other modules.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import trio

from kbroker.client.address import Address
from kbroker.client.connection import SOFTWARE, Connection
from kbroker.client.connection import connect as connect_plainly
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, NoSuchTopic, error_code
from kbroker.client.retrying import Patience
from kbroker.errors import PeerError, UserError
from kbroker.names import ZERO_UUID
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = ["NO_LEADER", "Answer", "Broker", "Cluster", "Partition", "Topic", "open_cluster"]

METADATA: Final = api(3)
FIND_COORDINATOR: Final = api(10)

NO_LEADER: Final = -1
RETRY_SECONDS: Final = 30.0
# How long a topic that a broker may be creating right now stays unknown.
CREATION_SECONDS: Final = 10.0

GROUP: Final = 0
TRANSACTION: Final = 1

Asked = TypeVar("Asked")


class Broker(NamedTuple):
    node_id: int
    address: Address
    rack: str | None


class Partition(NamedTuple):
    number: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class Topic(NamedTuple):
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[Partition, ...]

    def partition(self, index: int) -> Partition:
        for each in self.partitions:
            if each.number == index:
                return each
        raise UserError(f"topic {self.name} has {len(self.partitions)} partitions, and none has number {index}")

    @property
    def has_id(self) -> bool:
        return self.topic_id != ZERO_UUID


class Answer(NamedTuple):
    """What a leader said about one partition."""

    code: int
    value: Any
    message: str | None = None


class Connect(Protocol):
    async def __call__(self, address: Address, *, client_id: str) -> Connection: ...


AskLeader = Callable[[Connection, Topic, Mapping[int, Asked]], Awaitable[Mapping[int, Answer]]]


class Cluster:
    """`connect` makes a connection to an address: another one for tests, and one day for TLS."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = SOFTWARE,
        retry_s: float = RETRY_SECONDS,
        connect: Connect = connect_plainly,
    ) -> None:
        assert bootstrap
        self.brokers: dict[int, Broker] = {}
        self.cluster_id: str | None = None
        self.controller_id = NO_LEADER
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._retry_s = retry_s
        self._connect = connect
        self._topics: dict[str, Topic] = {}
        self._connections: dict[Address, Connection] = {}
        self._connecting: dict[Address, trio.Lock] = {}

    async def aclose(self) -> None:
        for connection in self._connections.values():
            await connection.aclose()

    def patience(self) -> Patience:
        return Patience(self._retry_s)

    # Connections

    async def connection_to(self, address: Address) -> Connection:
        async with self._connecting.setdefault(address, trio.Lock()):
            known = self._connections.get(address)
            if known is not None and known.is_open:
                return known
            if known is not None:
                await known.aclose()
            made = self._connections[address] = await self._connect(address, client_id=self._client_id)
            return made

    async def any_connection(self) -> Connection:
        """To a broker that we are connected to already, else to the first one that answers."""
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        last_failure: Exception | None = None
        for address in dict.fromkeys([*self._bootstrap, *(each.address for each in self.brokers.values())]):
            try:
                return await self.connection_to(address)
            except (ConnectionFailed, PeerError) as failure:
                last_failure = last_failure or failure
        assert last_failure is not None
        raise last_failure

    async def broker_connection(self, node_id: int) -> Connection:
        if node_id not in self.brokers:
            await self.refresh([])
        if node_id not in self.brokers:
            known = ", ".join(map(str, sorted(self.brokers)))
            raise UserError(f"no broker has id {node_id}: the cluster has {known}")
        return await self.connection_to(self.brokers[node_id].address)

    async def controller_connection(self) -> Connection:
        """Where changes of topics go. In KRaft every broker forwards them, and one of them is named."""
        if not self.brokers:
            await self.refresh([])
        if self.controller_id in self.brokers:
            return await self.broker_connection(self.controller_id)
        return await self.any_connection()

    async def coordinator_connection(self, key: str, *, is_transaction: bool = False) -> Connection:
        """Of a group, or of a transactional id."""
        kind, key_type = ("transaction", TRANSACTION) if is_transaction else ("group", GROUP)
        patience = self.patience()
        while True:
            connection = await self.any_connection()
            response = await connection.ask(FIND_COORDINATOR, key=key, key_type=key_type, coordinator_keys=[key])
            found = response.coordinators[0] if response.coordinators else response
            if found.error_code == ErrorCode.NONE:
                return await self.connection_to(Address(found.host, found.port))
            refusal = BrokerRefusal(found.error_code, f"{kind} {key}", found.error_message)
            if not refusal.code.retriable:
                raise refusal
            await patience.pause(refusal)

    # Metadata

    async def refresh(self, names: Iterable[str] | None, *, may_create: bool = False) -> Any:
        """Brokers, and these topics; None: all topics. The raw answer, with the errors of topics in it."""
        from kbroker.protocol.messages.metadata import MetadataRequestTopic

        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        patience = self.patience()
        while True:
            try:
                connection = await self.any_connection()
                response = await connection.ask(
                    METADATA, at_least=1, topics=topics, allow_auto_topic_creation=may_create
                )
            except ConnectionFailed as failure:
                if not self.brokers:
                    raise  # a first address that is wrong is told at once; a broker that was there may come back
                await patience.pause(failure)
                continue
            if response.error_code != ErrorCode.NONE:
                raise BrokerRefusal(response.error_code, "metadata")
            self._learn(response)
            return response

    def _learn(self, response: Any) -> None:
        self.brokers = {
            each.node_id: Broker(each.node_id, Address(each.host, each.port), each.rack) for each in response.brokers
        }
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        for topic in response.topics:
            if topic.error_code == ErrorCode.NONE:
                self._topics[topic.name] = _topic_of(topic)
            elif topic.name is not None:
                self._topics.pop(topic.name, None)

    async def topics(self) -> list[Topic]:
        response = await self.refresh(None)
        return sorted((_topic_of(each) for each in response.topics if each.error_code == 0), key=lambda each: each.name)

    async def topic(self, name: str, *, may_create: bool = False, is_fresh: bool = False) -> Topic:
        """NoSuchTopic where there is none, at once; unless the broker may create it, which takes it a moment."""
        if not is_fresh and name in self._topics:
            return self._topics[name]
        patience = self.patience()
        creation = Patience(CREATION_SECONDS)
        asks_to_create = False
        while True:
            (found,) = (await self.refresh([name], may_create=asks_to_create)).topics
            code = error_code(found.error_code)
            if code is ErrorCode.NONE:
                return self._topics[name]
            if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                if not may_create:
                    raise NoSuchTopic(name)
                if asks_to_create:
                    await creation.pause(NoSuchTopic(name))
                asks_to_create = True
            elif code.retriable:
                await patience.pause(BrokerRefusal(code, f"topic {name}"))
            else:
                raise BrokerRefusal(found.error_code, f"topic {name}")

    # Requests to leaders

    async def ask_leaders(
        self, name: str, wanted: Mapping[int, Asked], ask: AskLeader[Asked], *, may_create: bool = False
    ) -> dict[int, Any]:
        """Asks the leader of each partition, all at a time, and again where that may help. Partition -> value."""
        patience = self.patience()
        left = dict(wanted)
        done: dict[int, Any] = {}
        is_fresh = False
        while left:
            topic = await self.topic(name, may_create=may_create, is_fresh=is_fresh)
            answers = await self._ask_each_leader(topic, left, ask)
            problem: BrokerRefusal | None = None
            for index, answer in answers.items():
                if answer.code == ErrorCode.NONE:
                    done[index] = answer.value
                    del left[index]
                    continue
                problem = BrokerRefusal(answer.code, f"partition {index} of topic {name}", answer.message)
                if not problem.code.retriable:
                    raise problem
            if problem is not None:
                await patience.pause(problem)
                is_fresh = True
        return done

    async def _ask_each_leader(
        self, topic: Topic, wanted: Mapping[int, Asked], ask: AskLeader[Asked]
    ) -> dict[int, Answer]:
        by_leader: dict[int, dict[int, Asked]] = {}
        for index, what in wanted.items():
            by_leader.setdefault(topic.partition(index).leader, {})[index] = what
        answers: dict[int, Answer] = {}
        failures: list[Exception] = []

        async def ask_one(leader: int, share: Mapping[int, Asked]) -> None:
            try:
                answers.update(await self._ask_leader(topic, leader, share, ask))
            except Exception as failure:  # raised below, one of them: callers expect no group
                failures.append(failure)

        if len(by_leader) == 1:
            await ask_one(*by_leader.popitem())
        else:
            async with trio.open_nursery() as nursery:
                for leader, share in by_leader.items():
                    nursery.start_soon(ask_one, leader, share)
        if failures:
            raise failures[0]
        return answers

    async def _ask_leader(
        self, topic: Topic, leader: int, share: Mapping[int, Asked], ask: AskLeader[Asked]
    ) -> Mapping[int, Answer]:
        if leader not in self.brokers:
            return {index: Answer(ErrorCode.LEADER_NOT_AVAILABLE, None) for index in share}
        try:
            connection = await self.broker_connection(leader)
            answers = await ask(connection, topic, share)
        except ConnectionFailed as failure:
            return {index: Answer(ErrorCode.NETWORK_EXCEPTION, None, str(failure)) for index in share}
        if answers.keys() != share.keys():
            raise PeerError(f"{connection.address} answers for other partitions than it was asked for")
        return answers


def _topic_of(topic: Any) -> Topic:
    partitions = (
        Partition(
            each.partition_index,
            each.leader_id,
            each.leader_epoch,
            tuple(each.replica_nodes),
            tuple(each.isr_nodes),
            tuple(each.offline_replicas),
        )
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
    )
    return Topic(topic.name, bytes(topic.topic_id), topic.is_internal, tuple(partitions))


@asynccontextmanager
async def open_cluster(
    bootstrap: Sequence[Address], *, client_id: str = SOFTWARE, retry_s: float = RETRY_SECONDS
) -> AsyncIterator[Cluster]:
    """Connects when something is asked; every connection is closed on leaving."""
    cluster = Cluster(bootstrap, client_id=client_id, retry_s=retry_s)
    try:
        yield cluster
    finally:
        await cluster.aclose()
