"""A client's view of a cluster: brokers, partition leaders, and one connection to each broker, opened on first use.

Decides when to refresh the metadata and when to retry. The other modules of this package build the requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import trio

from kbroker.client.address import Address
from kbroker.client.connection import SOFTWARE, BrokerConnection
from kbroker.client.connection import connect as connect_tcp
from kbroker.client.connection_security import ConnectionSecurity
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, NoSuchTopic
from kbroker.client.retry_backoff import RetryBackoff
from kbroker.errors import PeerError, UserError
from kbroker.names import ZERO_UUID
from kbroker.protocol.error_codes import ErrorCode, error_code
from kbroker.protocol.registry import api

__all__ = ["NO_LEADER", "BrokerInfo", "BrokerResponse", "Cluster", "PartitionInfo", "TopicInfo", "open_cluster"]

METADATA: Final = api(3)
FIND_COORDINATOR: Final = api(10)

NO_LEADER: Final = -1
RETRY_SECONDS: Final = 30.0
# Time that a broker may take to create a topic. Until then, Metadata answers that the topic is unknown.
CREATION_SECONDS: Final = 10.0

GROUP: Final = 0
TRANSACTION: Final = 1

PartitionRequest = TypeVar("PartitionRequest")
T = TypeVar("T")


class BrokerInfo(NamedTuple):
    node_id: int
    address: Address
    rack: str | None


class PartitionInfo(NamedTuple):
    number: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class TopicInfo(NamedTuple):
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]

    def partition(self, index: int) -> PartitionInfo:
        """Raises UserError if the partition does not exist."""
        for partition in self.partitions:
            if partition.number == index:
                return partition
        count = len(self.partitions)
        partitions = "1 partition" if count == 1 else f"{count} partitions"
        raise UserError(f"Topic '{self.name}' has {partitions}; partition {index} does not exist.")

    @property
    def has_id(self) -> bool:
        return self.topic_id != ZERO_UUID


class BrokerResponse(NamedTuple):
    """Response of a leader for one partition: the error code, and the value if there is no error."""

    code: int
    value: Any
    message: str | None = None


class OpenConnection(Protocol):
    async def __call__(self, address: Address, *, client_id: str) -> BrokerConnection: ...


SendToLeader = Callable[
    [BrokerConnection, TopicInfo, Mapping[int, PartitionRequest]], Awaitable[Mapping[int, BrokerResponse]]
]


class Cluster:
    """Client state of one cluster. Tests pass their own `connect`."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = SOFTWARE,
        retry_s: float = RETRY_SECONDS,
        connect: OpenConnection = connect_tcp,
    ) -> None:
        assert bootstrap
        self.brokers: dict[int, BrokerInfo] = {}
        self.cluster_id: str | None = None
        self.controller_id = NO_LEADER
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._retry_s = retry_s
        self._connect = connect
        self._topics: dict[str, TopicInfo] = {}
        self._connections: dict[Address, BrokerConnection] = {}
        self._connecting: dict[Address, trio.Lock] = {}

    async def aclose(self) -> None:
        for connection in self._connections.values():
            await connection.aclose()

    def backoff(self) -> RetryBackoff:
        """Starts the retry time of one operation."""
        return RetryBackoff(self._retry_s)

    # Connections

    async def connection_to(self, address: Address) -> BrokerConnection:
        async with self._connecting.setdefault(address, trio.Lock()):
            known = self._connections.get(address)
            if known is not None and known.is_open:
                return known
            if known is not None:
                await known.aclose()
            connection = self._connections[address] = await self._connect(address, client_id=self._client_id)
            return connection

    async def any_connection(self) -> BrokerConnection:
        """Returns an open connection, or connects to the first address that answers.

        Raises the first failure if no broker does.
        """
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        first_failure: Exception | None = None
        for address in dict.fromkeys([*self._bootstrap, *(broker.address for broker in self.brokers.values())]):
            try:
                return await self.connection_to(address)
            except (ConnectionFailed, PeerError) as failure:
                first_failure = first_failure or failure
        assert first_failure is not None
        raise first_failure

    async def broker_connection(self, node_id: int) -> BrokerConnection:
        if node_id not in self.brokers:
            await self.refresh([])
        if node_id not in self.brokers:
            raise UserError(f"Broker {node_id} does not exist. Run 'kbroker cluster describe' to see all brokers.")
        return await self.connection_to(self.brokers[node_id].address)

    async def controller_connection(self) -> BrokerConnection:
        """Connects to the controller, or to any broker if it is unknown.

        KRaft brokers name one broker, which forwards requests.
        """
        backoff = self.backoff()
        while True:
            if not self.brokers:
                await self.refresh([])
            if self.controller_id not in self.brokers:
                return await self.any_connection()
            try:
                return await self.broker_connection(self.controller_id)
            except ConnectionFailed as failure:
                await self._pause_until_noticed(failure, backoff)

    async def coordinator_connection(self, key: str, *, is_transaction: bool = False) -> BrokerConnection:
        """Connects to the coordinator of a group, or of a transactional id."""
        kind, key_type = ("transaction", TRANSACTION) if is_transaction else ("group", GROUP)
        backoff = self.backoff()
        while True:
            connection = await self.any_connection()
            response = await connection.send(FIND_COORDINATOR, key=key, key_type=key_type, coordinator_keys=[key])
            found = response.coordinators[0] if response.coordinators else response
            if found.error_code == ErrorCode.NONE:
                try:
                    return await self.connection_to(Address(found.host, found.port))
                except ConnectionFailed as failure:
                    await self._pause_until_noticed(failure, backoff)
                    continue
            refusal = BrokerRefusal(found.error_code, f"{kind} {key}", found.error_message)
            if not refusal.code.retriable:
                raise refusal
            await backoff.pause(refusal)

    async def ask_each_broker(self, ask: Callable[[int], Awaitable[T]]) -> list[T]:
        """Calls `ask` with the id of each broker. Begins again if one has died, when the others have noticed."""
        backoff = self.backoff()
        while True:
            await self.refresh([])
            try:
                return [await ask(node_id) for node_id in list(self.brokers)]
            except ConnectionFailed as failure:
                await self._pause_until_noticed(failure, backoff)

    async def _pause_until_noticed(self, failure: ConnectionFailed, backoff: RetryBackoff) -> None:
        """Gives the other brokers time to notice that one has died, and refreshes the metadata.

        Raises the failure after the retry time, and at once if there is no other broker.
        """
        await self.refresh([])
        if len(self.brokers) < 2:
            raise failure
        await backoff.pause(failure)

    # Metadata

    async def refresh(self, names: Iterable[str] | None, *, may_create: bool = False) -> Any:
        """Updates the brokers and the named topics (None: all topics).

        Returns the response, including errors of topics.
        """
        from kbroker.protocol.messages.metadata import MetadataRequestTopic

        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        backoff = self.backoff()
        while True:
            try:
                connection = await self.any_connection()
                response = await connection.send(
                    METADATA, at_least=1, topics=topics, allow_auto_topic_creation=may_create
                )
            except ConnectionFailed as failure:
                if not self.brokers:
                    raise  # No address has worked yet: probably a wrong address, so do not retry.
                await backoff.pause(failure)
                continue
            if response.error_code != ErrorCode.NONE:
                raise BrokerRefusal(response.error_code, "metadata")
            self._update(response)
            return response

    def _update(self, response: Any) -> None:
        self.brokers = {
            broker.node_id: BrokerInfo(broker.node_id, Address(broker.host, broker.port), broker.rack)
            for broker in response.brokers
        }
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        for topic in response.topics:
            if topic.error_code == ErrorCode.NONE:
                self._topics[topic.name] = _topic_of(topic)
            elif topic.name is not None:
                self._topics.pop(topic.name, None)

    async def topics(self) -> list[TopicInfo]:
        response = await self.refresh(None)
        found = [_topic_of(topic) for topic in response.topics if topic.error_code == ErrorCode.NONE]
        return sorted(found, key=lambda topic: topic.name)

    async def topic(self, name: str, *, may_create: bool = False, is_fresh: bool = False) -> TopicInfo:
        """Returns a topic.

        Raises NoSuchTopic if it does not exist and `may_create` is false or the creation times out.
        """
        if not is_fresh and name in self._topics:
            return self._topics[name]
        backoff = self.backoff()
        creation = RetryBackoff(CREATION_SECONDS)
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
                await backoff.pause(BrokerRefusal(code, f"topic {name}"))
            else:
                raise BrokerRefusal(found.error_code, f"topic {name}")

    # Requests to leaders

    async def send_to_leaders(
        self,
        name: str,
        requests: Mapping[int, PartitionRequest],
        send: SendToLeader[PartitionRequest],
        *,
        may_create: bool = False,
        done: dict[int, Any] | None = None,
    ) -> dict[int, Any]:
        """Sends requests to the leaders of partitions in parallel, and retries on retriable errors.

        Returns partition -> value. `done`: gets the same, also if a request fails in the end.
        """
        backoff = self.backoff()
        left = dict(requests)
        done = {} if done is None else done
        is_fresh = False
        while left:
            topic = await self.topic(name, may_create=may_create, is_fresh=is_fresh)
            responses = await self._send_to_each_leader(topic, left, send)
            problem: BrokerRefusal | None = None
            for index, response in responses.items():
                if response.code == ErrorCode.NONE:
                    done[index] = response.value
                    del left[index]
                    continue
                problem = BrokerRefusal(response.code, f"partition {index} of topic {name}", response.message)
                if not problem.code.retriable:
                    raise problem
            if problem is not None:
                await backoff.pause(problem)
                is_fresh = True
        return done

    async def _send_to_each_leader(
        self, topic: TopicInfo, requests: Mapping[int, PartitionRequest], send: SendToLeader[PartitionRequest]
    ) -> dict[int, BrokerResponse]:
        by_leader: dict[int, dict[int, PartitionRequest]] = {}
        for index, request in requests.items():
            by_leader.setdefault(topic.partition(index).leader, {})[index] = request
        responses: dict[int, BrokerResponse] = {}
        failures: list[Exception] = []

        async def send_one(leader: int, share: Mapping[int, PartitionRequest]) -> None:
            try:
                responses.update(await self._send_to_leader(topic, leader, share, send))
            except Exception as failure:  # The first one is raised below: callers do not expect an exception group.
                failures.append(failure)

        if len(by_leader) == 1:
            await send_one(*by_leader.popitem())
        else:
            async with trio.open_nursery() as nursery:
                for leader, share in by_leader.items():
                    nursery.start_soon(send_one, leader, share)
        if failures:
            raise failures[0]
        return responses

    async def _send_to_leader(
        self, topic: TopicInfo, leader: int, share: Mapping[int, PartitionRequest], send: SendToLeader[PartitionRequest]
    ) -> Mapping[int, BrokerResponse]:
        if leader not in self.brokers:
            return {index: BrokerResponse(ErrorCode.LEADER_NOT_AVAILABLE, None) for index in share}
        try:
            connection = await self.broker_connection(leader)
            responses = await send(connection, topic, share)
        except ConnectionFailed as failure:
            return {index: BrokerResponse(ErrorCode.NETWORK_EXCEPTION, None, str(failure)) for index in share}
        if responses.keys() != share.keys():
            raise PeerError(f"The response of {connection.address} has other partitions than the request")
        return responses


def _topic_of(topic: Any) -> TopicInfo:
    partitions = (
        PartitionInfo(
            partition.partition_index,
            partition.leader_id,
            partition.leader_epoch,
            tuple(partition.replica_nodes),
            tuple(partition.isr_nodes),
            tuple(partition.offline_replicas),
        )
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    )
    return TopicInfo(topic.name, bytes(topic.topic_id), topic.is_internal, tuple(partitions))


@asynccontextmanager
async def open_cluster(
    bootstrap: Sequence[Address],
    *,
    client_id: str = SOFTWARE,
    retry_s: float = RETRY_SECONDS,
    security: ConnectionSecurity | None = None,
) -> AsyncIterator[Cluster]:
    """Yields a cluster that connects on the first request. Closes its connections on exit."""
    secure = partial(connect_tcp, security=security)
    cluster = Cluster(bootstrap, client_id=client_id, retry_s=retry_s, connect=secure)
    try:
        yield cluster
    finally:
        await cluster.aclose()
