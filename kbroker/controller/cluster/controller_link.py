"""Sends requests to the current controller: topic creation, ISR changes, controlled shutdown.

On the controller itself they become method calls. A request that is answered with NOT_CONTROLLER, or not answered
before another broker becomes the controller, is sent again, until its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed, NotServed
from kbroker.controller.cluster.controller_channels import ConnectToBroker, ControlConnection
from kbroker.controller.controller import Controller
from kbroker.controller.image import BrokerRegistration, Image, PartitionState, TopicImage
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.errors import PeerError, Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_partition, create_topics
from kbroker.protocol.registry import Api, api

__all__ = ["ControllerLink"]

CONTROLLED_SHUTDOWN: Final = api(7)
CREATE_TOPICS: Final = api(19)
ALTER_PARTITION: Final = api(56)

_RETRY_SECONDS: Final = 0.05
_TIMEOUT_SECONDS: Final = 10.0


class ControllerLink:
    def __init__(self, controller: Controller, broker_id: int, listener_name: str, connect: ConnectToBroker) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._listener_name = listener_name
        self._connect = connect
        self._connection: ControlConnection | None = None
        self._target: BrokerRegistration | None = None
        self._connecting = trio.Lock()
        self._changed = trio.Event()
        self._attempts: set[trio.CancelScope] = set()
        """Requests on their way to `_target`."""
        controller.add_listener(self._on_image)

    def _on_image(self, image: Image, changes: object) -> None:
        self._changed.set()
        self._changed = trio.Event()
        if image.brokers.get(image.controller_id) != self._target:
            # The earlier controller may be suspended or out of reach: it would answer late, or never.
            for attempt in self._attempts:
                attempt.cancel()

    async def wait_changed(self) -> None:
        """Waits for the next change of the image."""
        await self._changed.wait()

    @property
    def _image(self) -> Image:
        return self._controller.image

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()
            self._connection = None

    # Requests

    async def create_topics(self, requests: Sequence[NewTopic]) -> list[TopicImage | Refusal]:
        """Like `Controller.create_topics`, from any broker: for internal topics, and for auto-created topics.

        Waits up to a second until this broker knows the topics. After that, a topic's outcome is a Refusal with
        LEADER_NOT_AVAILABLE.
        """
        members = {"topics": [_creatable(request) for request in requests], "timeout_ms": 30_000}
        response = await self._send(
            CREATE_TOPICS, members, lambda answer: [topic.error_code for topic in answer.topics]
        )
        if response is None:
            return await self._controller.create_topics(requests)
        codes = {topic.name: (topic.error_code, topic.error_message) for topic in response.topics}
        with trio.move_on_after(1.0):
            while any(codes[request.name][0] == 0 and request.name not in self._image.topics for request in requests):
                await self._changed.wait()
        return [self._outcome(request.name, *codes[request.name]) for request in requests]

    def _outcome(self, name: str, code: int, message: str | None) -> TopicImage | Refusal:
        if code != ErrorCode.NONE:
            return Refusal(code, message)
        topic = self._image.topic(name)
        return Refusal(ErrorCode.LEADER_NOT_AVAILABLE, "The topic is being created.") if topic is None else topic

    async def alter_partitions(
        self, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[PartitionState | Refusal]:
        """Proposes ISRs for partitions that this broker leads.

        Returns an outcome for each proposal, in order: the partition's new state, or a Refusal. Raises Refusal if no
        controller answers, or if the broker's epoch is stale: the caller tries again later.
        """
        members = {
            "broker_id": self._broker_id,
            "broker_epoch": broker_epoch,
            "topics": _proposed(self._image, proposals),
        }
        response = await self._send(ALTER_PARTITION, members, lambda body: [body.error_code])
        if response is None:
            return await self._controller.alter_partitions(
                self._broker_id, broker_epoch=broker_epoch, proposals=proposals
            )
        if response.error_code:
            raise Refusal(response.error_code)
        answers = {
            (topic.topic_name or topic.topic_id, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        return [_altered(self._image, proposal, answers) for proposal in proposals]

    async def shut_down(self, broker_epoch: int, *, timeout_s: float = _TIMEOUT_SECONDS) -> list[tuple[str, int]]:
        """Moves this broker's leaderships to other brokers. Returns the partitions that it still leads."""
        members = {"broker_id": self._broker_id, "broker_epoch": broker_epoch}
        response = await self._send(CONTROLLED_SHUTDOWN, members, lambda body: [body.error_code], timeout_s=timeout_s)
        if response is None:
            return await self._controller.shut_down(self._broker_id, broker_epoch=broker_epoch)
        if response.error_code:
            raise Refusal(response.error_code)
        return [(partition.topic_name, partition.partition_index) for partition in response.remaining_partitions]

    # Sending

    async def _send(
        self,
        asked: Api,
        members: dict[str, Any],
        codes_of: Callable[[Any], Sequence[int]],
        *,
        timeout_s: float = _TIMEOUT_SECONDS,
    ) -> Any | None:
        """Returns the response, or None if this broker is the controller.

        Raises Refusal if the controller has not answered within `timeout_s`.
        """
        problem = "The controller is not available."
        with trio.move_on_after(timeout_s):
            while not self._controller.store.is_active:
                try:
                    response = await self._attempt(asked, members, timeout_s)
                    if response is not None and ErrorCode.NOT_CONTROLLER not in codes_of(response):
                        return response
                except (ConnectionFailed, PeerError, NotServed) as failure:
                    problem = str(failure)
                await trio.sleep(_RETRY_SECONDS)
            return None
        raise Refusal(ErrorCode.REQUEST_TIMED_OUT, problem)

    async def _attempt(self, asked: Api, members: dict[str, Any], timeout_s: float) -> Any | None:
        """Returns the response, or None if the controller is not known or changes before it answers."""
        with trio.CancelScope() as attempt:
            self._attempts.add(attempt)
            try:
                connection = await self._connect_to_controller()
                return None if connection is None else await connection.send(asked, timeout_s=timeout_s, **members)
            finally:
                self._attempts.remove(attempt)
        return None

    async def _connect_to_controller(self) -> ControlConnection | None:
        async with self._connecting:
            target = self._image.brokers.get(self._image.controller_id)
            current = self._connection
            if current is not None and (target != self._target or not current.is_open):
                await current.aclose()
                self._connection = None
            endpoint = None if target is None else target.endpoint(self._listener_name)
            if endpoint is None or self._image.controller_id == self._broker_id:
                return None
            if self._connection is None:
                address = Address(endpoint.host, endpoint.port)
                self._target = target
                self._connection = await self._connect(address, client_id=f"kbroker-{self._broker_id}")
            return self._connection


def _creatable(request: NewTopic) -> Any:
    return create_topics.CreatableTopic(
        name=request.name,
        num_partitions=request.partitions,
        replication_factor=request.replication_factor,
        assignments=[
            create_topics.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in (request.assignment or {}).items()
        ],
        configs=[create_topics.CreatableTopicConfig(name=name, value=text) for name, text in request.configs.items()],
    )


def _topic_id(image: Image, name: str) -> bytes:
    topic = image.topic(name)
    return bytes(16) if topic is None else topic.id


def _proposed(image: Image, proposals: Sequence[IsrProposal]) -> list[Any]:
    by_topic: dict[str, list[Any]] = {}
    for proposal in proposals:
        by_topic.setdefault(proposal.topic_name, []).append(
            alter_partition.PartitionData(
                partition_index=proposal.index,
                leader_epoch=proposal.leader_epoch,
                new_isr=list(proposal.isr),
                new_isr_with_epochs=[alter_partition.BrokerState(broker_id=replica) for replica in proposal.isr],
                partition_epoch=proposal.partition_epoch,
            )
        )
    return [
        alter_partition.TopicData(topic_name=name, topic_id=_topic_id(image, name), partitions=partitions)
        for name, partitions in by_topic.items()
    ]


def _altered(image: Image, proposal: IsrProposal, answers: dict[Any, Any]) -> PartitionState | Refusal:
    by_id = answers.get((_topic_id(image, proposal.topic_name), proposal.index))
    answer = answers.get((proposal.topic_name, proposal.index), by_id)
    known = image.partition(proposal.topic_name, proposal.index)
    if answer is None or known is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if answer.error_code:
        return Refusal(answer.error_code)
    return known._replace(
        leader=answer.leader_id,
        leader_epoch=answer.leader_epoch,
        isr=tuple(answer.isr),
        partition_epoch=answer.partition_epoch,
    )
