"""A broker's way to the controller: what only the controller may do, asked of whoever it is at the moment.

On the controller itself nothing goes over the wire. An answer that the controller has moved is asked again, until time
is up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed, NotServed
from kbroker.controller.channels import Connect, Peer
from kbroker.controller.controller import Controller
from kbroker.controller.image import Broker, Image, Partition, Topic
from kbroker.controller.isr_rules import IsrProposal
from kbroker.controller.topic_rules import NewTopic
from kbroker.errors import PeerError, Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_partition, create_topics
from kbroker.protocol.registry import Api, api

__all__ = ["ControllerLink"]

CONTROLLED_SHUTDOWN: Final = api(7)
CREATE_TOPICS: Final = api(19)
ALTER_PARTITION: Final = api(56)

_RETRY_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 10.0


class ControllerLink:
    def __init__(self, controller: Controller, broker_id: int, listener_name: str, connect: Connect) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._listener_name = listener_name
        self._connect = connect
        self._connection: Peer | None = None
        self._target: Broker | None = None
        self._connecting = trio.Lock()
        self._changed = trio.Event()
        controller.add_listener(self._on_image)

    def _on_image(self, image: Image, changes: object) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_changed(self) -> None:
        """Until the image is another."""
        await self._changed.wait()

    @property
    def _image(self) -> Image:
        return self._controller.image

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()
            self._connection = None

    # What brokers ask for

    async def create_topics(self, wishes: Sequence[NewTopic]) -> list[Topic | Refusal]:
        """As `Controller.create_topics`, from any broker: internal topics, and those that come by being asked for.

        A topic that was created elsewhere is waited for; one that does not come in time has no leader yet.
        """
        members = {"topics": [_creatable(each) for each in wishes], "timeout_ms": 30_000}
        response = await self._ask(CREATE_TOPICS, members, lambda answer: [each.error_code for each in answer.topics])
        if response is None:
            return await self._controller.create_topics(wishes)
        codes = {each.name: (each.error_code, each.error_message) for each in response.topics}
        with trio.move_on_after(1.0):
            while any(codes[each.name][0] == 0 and each.name not in self._image.topics for each in wishes):
                await self._changed.wait()
        return [self._outcome(each.name, *codes[each.name]) for each in wishes]

    def _outcome(self, name: str, code: int, message: str | None) -> Topic | Refusal:
        if code != ErrorCode.NONE:
            return Refusal(code, message)
        topic = self._image.topic(name)
        return Refusal(ErrorCode.LEADER_NOT_AVAILABLE, "The topic is being created.") if topic is None else topic

    async def alter_partitions(self, broker_epoch: int, proposals: Sequence[IsrProposal]) -> list[Partition | Refusal]:
        """ISRs that this broker proposes as a leader; an outcome for each: the partition's state now, or a refusal.

        A Refusal is raised where no controller can be asked, or the broker's epoch is stale: try again later.
        """
        members = {
            "broker_id": self._broker_id,
            "broker_epoch": broker_epoch,
            "topics": _proposed(self._image, proposals),
        }
        response = await self._ask(ALTER_PARTITION, members, lambda answer: [answer.error_code])
        if response is None:
            return await self._controller.alter_partitions(self._broker_id, broker_epoch, proposals)
        if response.error_code:
            raise Refusal(response.error_code)
        answers = {
            (topic.topic_name or topic.topic_id, each.partition_index): each
            for topic in response.topics
            for each in topic.partitions
        }
        return [_altered(self._image, each, answers) for each in proposals]

    async def shut_down(self, broker_epoch: int, *, timeout_s: float = _PATIENCE_SECONDS) -> list[tuple[str, int]]:
        """Hands this broker's leaderships over; returns the partitions that it still leads."""
        members = {"broker_id": self._broker_id, "broker_epoch": broker_epoch}
        response = await self._ask(
            CONTROLLED_SHUTDOWN, members, lambda answer: [answer.error_code], timeout_s=timeout_s
        )
        if response is None:
            return await self._controller.shut_down(self._broker_id, broker_epoch)
        if response.error_code:
            raise Refusal(response.error_code)
        return [(each.topic_name, each.partition_index) for each in response.remaining_partitions]

    # Asking

    async def _ask(
        self,
        asked: Api,
        members: dict[str, Any],
        codes_of: Callable[[Any], Sequence[int]],
        *,
        timeout_s: float = _PATIENCE_SECONDS,
    ) -> Any | None:
        """None: this broker is the controller itself."""
        problem = "There is no controller."
        with trio.move_on_after(timeout_s):
            while not self._controller.ledger.is_active:
                try:
                    connection = await self._connected()
                    if connection is not None:
                        response = await connection.ask(asked, timeout_s=timeout_s, **members)
                        if ErrorCode.NOT_CONTROLLER not in codes_of(response):
                            return response
                except (ConnectionFailed, PeerError, NotServed) as failure:
                    problem = str(failure)
                await trio.sleep(_RETRY_SECONDS)
            return None
        raise Refusal(ErrorCode.REQUEST_TIMED_OUT, problem)

    async def _connected(self) -> Peer | None:
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
                self._connection = await self._connect(address, client_id=f"kbroker-{self._broker_id}")
                self._target = target
            return self._connection


def _creatable(wish: NewTopic) -> Any:
    return create_topics.CreatableTopic(
        name=wish.name,
        num_partitions=wish.partitions,
        replication_factor=wish.replication_factor,
        assignments=[
            create_topics.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in (wish.assignment or {}).items()
        ],
        configs=[create_topics.CreatableTopicConfig(name=name, value=text) for name, text in wish.configs.items()],
    )


def _topic_id(image: Image, name: str) -> bytes:
    topic = image.topic(name)
    return bytes(16) if topic is None else topic.id


def _proposed(image: Image, proposals: Sequence[IsrProposal]) -> list[Any]:
    by_topic: dict[str, list[Any]] = {}
    for each in proposals:
        by_topic.setdefault(each.topic_name, []).append(
            alter_partition.PartitionData(
                partition_index=each.index,
                leader_epoch=each.leader_epoch,
                new_isr=list(each.isr),
                new_isr_with_epochs=[alter_partition.BrokerState(broker_id=replica) for replica in each.isr],
                partition_epoch=each.partition_epoch,
            )
        )
    return [
        alter_partition.TopicData(topic_name=name, topic_id=_topic_id(image, name), partitions=partitions)
        for name, partitions in by_topic.items()
    ]


def _altered(image: Image, each: IsrProposal, answers: dict[Any, Any]) -> Partition | Refusal:
    by_id = answers.get((_topic_id(image, each.topic_name), each.index))
    answer = answers.get((each.topic_name, each.index), by_id)
    known = image.partition(each.topic_name, each.index)
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
