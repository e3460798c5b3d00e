"""Who leads and who is in sync, decided by the controller: elections, hand-overs, and what leaders propose.

The rules are those of election.py; here they meet the image and the tree. Callers hold the ledger's turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

from kbroker.config import BrokerConfig, topic_config
from kbroker.controller import znodes
from kbroker.controller.balance import imbalanced
from kbroker.controller.changes import PartitionsChanged
from kbroker.controller.election import elect, elect_preferred, hand_over, initial_state, without_dead
from kbroker.controller.image import Image, Partition, Topic
from kbroker.controller.isr_rules import IsrProposal, judge_proposal
from kbroker.controller.ledger import Ledger
from kbroker.controller.tree import BadVersion, Create
from kbroker.controller.writes import partition_nodes, state_writes
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["Leadership"]

logger = logging.getLogger(__name__)

_Changed = dict[str, dict[int, Partition]]
_Rule = Callable[[Topic, Partition], Partition | None]

_NOT_NEEDED: Final = Refusal(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


class Leadership:
    def __init__(self, ledger: Ledger, config: BrokerConfig) -> None:
        self._ledger = ledger
        self._config = config
        self.leaving: set[int] = set()
        """Brokers that are on their way down: they lead nothing from now on, and enter no ISR."""

    @property
    def _image(self) -> Image:
        return self._ledger.image

    @property
    def _ready(self) -> set[int]:
        return set(self._image.brokers).difference(self.leaving)

    # What the controller does by itself

    async def elect_leaders(self, *, drop_dead: bool = False) -> None:
        """A leader for every partition that has none, or whose leader is not there.

        `drop_dead`: brokers that are gone leave the ISR of those who live, at once and under a new leader epoch, so
        that nobody waits for them.
        """
        image = self._image
        brokers = self._ready if self.leaving else image.brokers
        created: _Changed = {}
        for name, topic in image.topics.items():
            for index, partition in enumerate(topic.partitions):
                if partition.partition_epoch < 0:
                    state = initial_state(partition.replicas, brokers, image.controller_epoch)
                    created.setdefault(name, {})[index] = state
        for name, partitions in created.items():
            await self._create_states(name, partitions)

        def rule(topic: Topic, partition: Partition) -> Partition | None:
            if partition.leader in image.brokers:
                if drop_dead:
                    return without_dead(partition, image.brokers, controller_epoch=image.controller_epoch)
                return None
            return elect(
                partition,
                brokers,
                controller_epoch=image.controller_epoch,
                unclean_is_allowed=topic_config(self._config, topic.configs).unclean_leader_election_enable,
            )

        await self.change_states(self._decide(rule))

    async def rebalance(self) -> None:
        share = self._config.leader_imbalance_per_broker_percentage / 100
        due = imbalanced(self._image.topics.values(), self._ready, share)
        if due:
            outcomes = await self.elect(due, is_unclean=False)
            count = sum(outcome is None for outcome in outcomes.values())
            logger.info("%d partitions are led by their preferred replicas again", count)

    def _decide(self, rule: _Rule) -> _Changed:
        changed: _Changed = {}
        for name, topic in self._image.topics.items():
            for index, partition in enumerate(topic.partitions):
                state = rule(topic, partition)
                if state is not None:
                    changed.setdefault(name, {})[index] = state
        return changed

    # What somebody asks for

    async def bump_leader_epochs(self, partitions: Iterable[tuple[str, int]]) -> None:
        changed: _Changed = {}
        for name, index in partitions:
            partition = self._image.partition(name, index)
            if partition is None:
                continue  # deleted while this waited for its turn
            changed.setdefault(name, {})[index] = partition._replace(
                leader_epoch=partition.leader_epoch + 1,
                partition_epoch=partition.partition_epoch + 1,
                controller_epoch=self._image.controller_epoch,
            )
        await self.change_states(changed)

    async def shut_down(self, broker_id: int, broker_epoch: int) -> list[tuple[str, int]]:
        """Takes leaderships and places in ISRs from a broker that is about to stop; what it leads still is returned.

        `broker_epoch`: -1 from a broker that does not tell. Partitions with one replica have nowhere to go.
        """
        image = self._image
        known = image.brokers.get(broker_id)
        if known is None:
            raise Refusal(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker id {broker_id} does not exist.")
        if broker_epoch != -1 and broker_epoch < known.epoch:
            raise Refusal(ErrorCode.STALE_BROKER_EPOCH, f"The broker's epoch is {known.epoch}.")
        self.leaving.add(broker_id)
        ready = self._ready

        def rule(_topic: Topic, partition: Partition) -> Partition | None:
            return hand_over(partition, broker_id, ready, controller_epoch=image.controller_epoch)

        await self.change_states(self._decide(rule))
        return [
            (name, index)
            for name, topic in self._image.topics.items()
            for index, partition in enumerate(topic.partitions)
            if partition.leader == broker_id and len(partition.replicas) > 1
        ]

    async def elect(
        self, wanted: Sequence[tuple[str, int]] | None, *, is_unclean: bool
    ) -> dict[tuple[str, int], Refusal | None]:
        """Leadership to preferred replicas, or to any replica if the rest is lost; None stands for all partitions.

        Each outcome is None where a new leader was elected.
        """
        image = self._image
        if wanted is None:
            wanted = [(name, index) for name, topic in image.topics.items() for index in range(len(topic.partitions))]
        ready = self._ready
        outcomes: dict[tuple[str, int], Refusal | None] = {}
        changed: _Changed = {}
        for name, index in wanted:
            outcome = self._election(name, index, ready, is_unclean=is_unclean)
            if isinstance(outcome, Partition):
                changed.setdefault(name, {})[index] = outcome
                outcomes[name, index] = None
            else:
                outcomes[name, index] = outcome
        await self.change_states(changed)
        return outcomes

    def _election(self, name: str, index: int, ready: Container[int], *, is_unclean: bool) -> Partition | Refusal:
        image = self._image
        if name not in image.topics:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
        partition = image.partition(name, index)
        if partition is None:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
        has_leader = partition.leader in image.brokers
        epoch = image.controller_epoch
        if is_unclean:
            if has_leader:
                return _NOT_NEEDED
            elected = elect(partition, ready, controller_epoch=epoch, unclean_is_allowed=True)
            if elected is not None and elected.leader in image.brokers:
                return elected
            return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica of the partition is there to lead it.")
        if has_leader and partition.leader == partition.replicas[0]:
            return _NOT_NEEDED
        preferred = elect_preferred(partition, ready, controller_epoch=epoch)
        if preferred is not None:
            return preferred
        message = f"The preferred leader, broker {partition.replicas[0]}, is not there or not in sync."
        return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[Partition | Refusal]:
        """ISRs that a leader proposes; an outcome for each, in order: the state as it is now, or why it stays."""
        image = self._image
        known = image.brokers.get(broker_id)
        if known is None or known.epoch != broker_epoch:
            raise Refusal(ErrorCode.STALE_BROKER_EPOCH, "The broker has registered anew, or is gone.")
        outcomes: list[Partition | Refusal] = []
        changed: _Changed = {}
        for each in proposals:
            partition = image.partition(each.topic_name, each.index)
            if partition is None:
                outcomes.append(Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            outcome = judge_proposal(partition, each, broker_id, self._ready, controller_epoch=image.controller_epoch)
            if isinstance(outcome, Partition) and outcome is not partition:
                changed.setdefault(each.topic_name, {})[each.index] = outcome
            outcomes.append(outcome)
        await self.change_states(changed)
        return outcomes

    # Writing

    async def _create_states(self, name: str, partitions: Mapping[int, Partition]) -> None:
        """A creation that was cut short left some of the nodes behind; the rest is added."""
        ledger = self._ledger
        wished = [operation.path for operation in partition_nodes(name, partitions)]
        paths = [znodes.partitions_path(name), *wished]
        nodes = await ledger.tree.get_many(paths)
        there = {path for path, node in zip(paths, nodes, strict=True) if node is not None}
        operations = [Create(znodes.partitions_path(name)), *partition_nodes(name, partitions)]
        await ledger.write([operation for operation in operations if operation.path not in there])
        ledger.commit([PartitionsChanged(name, partitions)])

    async def change_states(self, changed: Mapping[str, Mapping[int, Partition]]) -> None:
        try:
            await self._ledger.write(state_writes(changed))
        except BadVersion as failure:
            # Somebody else wrote a state: what was decided here was decided upon something else.
            self._ledger.on_conflict()
            raise Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"{failure.path} was changed meanwhile.") from failure
        self._ledger.commit([PartitionsChanged(name, partitions) for name, partitions in changed.items()])
