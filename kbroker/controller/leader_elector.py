"""Leader elections and ISR changes of the controller: applies the rules of election.py to the image and the tree.

Callers hold `MetadataStore.as_controller`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.config.topic import topic_config
from kbroker.controller.changes import PartitionsChanged
from kbroker.controller.image import NO_LEADER, Image, PartitionState, TopicImage
from kbroker.controller.metadata_store import MetadataStore
from kbroker.controller.rules.election import (
    elect,
    elect_for_shutdown,
    elect_preferred,
    initial_state,
    is_online,
    shrink_isr,
)
from kbroker.controller.rules.isr_rules import IsrProposal, validate_proposal
from kbroker.controller.rules.leader_imbalance import imbalanced_partitions
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import BadVersion, Create, NoNode, TreeOperation
from kbroker.controller.trees.writes import partition_nodes, state_writes
from kbroker.errors import Refusal
from kbroker.histogram import Histogram
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["LeaderElector"]

logger = logging.getLogger(__name__)

_Changed = dict[str, dict[int, PartitionState]]
_Rule = Callable[[TopicImage, PartitionState], PartitionState | None]

_NOT_NEEDED: Final = Refusal(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


class LeaderElector:
    def __init__(self, store: MetadataStore, config: BrokerConfig, clock: Clock) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self.election_times = Histogram()
        """Time that the tree took to store the new leaders of a decision, in which at least one leader changed."""
        self.unclean_elections = 0
        """Partitions for which a replica outside the ISR was elected: records may be lost."""
        self.shutting_down: set[int] = set()
        """Brokers in a controlled shutdown: they are not elected, and may not join an ISR."""

    @property
    def _image(self) -> Image:
        return self._store.image

    @property
    def _eligible(self) -> set[int]:
        return set(self._image.brokers).difference(self.shutting_down)

    # Decisions of the controller

    async def elect_leaders(self, *, shrink_isrs: bool = False) -> None:
        """Elects a leader for every partition that has none, or whose leader is not a live broker.

        `shrink_isrs`: also removes dead brokers from the ISR of partitions with a live leader, with a new leader
        epoch. Producers with acks=all then do not wait for them.
        """
        image = self._image
        brokers = self._eligible if self.shutting_down else image.brokers
        created: _Changed = {}
        for name, topic in image.topics.items():
            for index, partition in enumerate(topic.partitions):
                if partition.partition_epoch < 0:
                    state = initial_state(partition.replicas, brokers, image.controller_epoch)
                    created.setdefault(name, {})[index] = state
        for name, partitions in created.items():
            await self._create_states(name, partitions)

        def rule(topic: TopicImage, partition: PartitionState) -> PartitionState | None:
            if is_online(partition, partition.leader, image.brokers):
                if shrink_isrs:
                    return shrink_isr(partition, image.brokers, controller_epoch=image.controller_epoch)
                return None
            return elect(
                partition,
                brokers,
                controller_epoch=image.controller_epoch,
                unclean_is_allowed=topic_config(self._config, topic.configs).unclean_leader_election_enable,
            )

        await self.change_states(self._decide(rule))

    async def mark_offline(self, broker_id: int, partitions: Iterable[tuple[str, int]]) -> None:
        """Notes replicas of a live broker in failed data directories, and elects other leaders for them."""
        changed: _Changed = {}
        for name, index in partitions:
            state = self._image.partition(name, index)
            if state is not None and broker_id in state.replicas and broker_id not in state.offline_replicas:
                offline = (*state.offline_replicas, broker_id)
                changed.setdefault(name, {})[index] = state._replace(offline_replicas=offline)
        if changed:
            count = sum(map(len, changed.values()))
            logger.warning("%d replicas of broker %d are in failed data directories", count, broker_id)
            self._store.commit([PartitionsChanged(name, states) for name, states in changed.items()])
            await self.elect_leaders(shrink_isrs=True)

    def forget_offline(self, broker_ids: Container[int]) -> None:
        """Forgets failed data directories of brokers that have left: when they return, they report them again."""

        def rule(_topic: TopicImage, partition: PartitionState) -> PartitionState | None:
            kept = tuple(replica for replica in partition.offline_replicas if replica not in broker_ids)
            return None if kept == partition.offline_replicas else partition._replace(offline_replicas=kept)

        self._store.commit([PartitionsChanged(name, states) for name, states in self._decide(rule).items()])

    async def rebalance(self) -> None:
        share = self._config.leader_imbalance_per_broker_percentage / 100
        due = imbalanced_partitions(self._image.topics.values(), self._eligible, share)
        if due:
            outcomes = await self.elect(due, is_unclean=False)
            count = sum(outcome is None for outcome in outcomes.values())
            logger.info("Elected the preferred leaders of %d partitions", count)

    def _decide(self, rule: _Rule) -> _Changed:
        changed: _Changed = {}
        for name, topic in self._image.topics.items():
            for index, partition in enumerate(topic.partitions):
                state = rule(topic, partition)
                if state is not None:
                    changed.setdefault(name, {})[index] = state
        return changed

    # Requests

    async def bump_leader_epochs(self, partitions: Iterable[tuple[str, int]]) -> None:
        changed: _Changed = {}
        for name, index in partitions:
            partition = self._image.partition(name, index)
            if partition is None:
                continue  # deleted while the request waited
            changed.setdefault(name, {})[index] = partition._replace(
                leader_epoch=partition.leader_epoch + 1,
                partition_epoch=partition.partition_epoch + 1,
                controller_epoch=self._image.controller_epoch,
            )
        await self.change_states(changed)

    async def shut_down(self, broker_id: int, *, broker_epoch: int) -> list[tuple[str, int]]:
        """Moves leaderships away from a broker that is about to stop, and removes it from ISRs.

        Returns the partitions with several replicas that it still leads. `broker_epoch`: -1 if the request has none.
        """
        image = self._image
        known = image.brokers.get(broker_id)
        if known is None:
            raise Refusal(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker id {broker_id} does not exist.")
        if broker_epoch != -1 and broker_epoch < known.epoch:
            raise Refusal(ErrorCode.STALE_BROKER_EPOCH, "Broker epoch has changed.")
        self.shutting_down.add(broker_id)
        eligible = self._eligible

        def rule(_topic: TopicImage, partition: PartitionState) -> PartitionState | None:
            return elect_for_shutdown(partition, broker_id, eligible, controller_epoch=image.controller_epoch)

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
        """Elects preferred leaders, or with `is_unclean` any live replica for partitions without a leader.

        `wanted`: None for all partitions. The outcome of a partition is None if a new leader was elected.
        """
        image = self._image
        if wanted is None:
            wanted = [(name, index) for name, topic in image.topics.items() for index in range(len(topic.partitions))]
        eligible = self._eligible
        outcomes: dict[tuple[str, int], Refusal | None] = {}
        changed: _Changed = {}
        for name, index in wanted:
            outcome = self._election(name, index, eligible, is_unclean=is_unclean)
            if isinstance(outcome, PartitionState):
                changed.setdefault(name, {})[index] = outcome
                outcomes[name, index] = None
            else:
                outcomes[name, index] = outcome
        await self.change_states(changed)
        return outcomes

    def _election(
        self, name: str, index: int, eligible: Container[int], *, is_unclean: bool
    ) -> PartitionState | Refusal:
        image = self._image
        if name not in image.topics:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
        partition = image.partition(name, index)
        if partition is None:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
        has_leader = is_online(partition, partition.leader, image.brokers)
        epoch = image.controller_epoch
        if is_unclean:
            if has_leader:
                return _NOT_NEEDED
            elected = elect(partition, eligible, controller_epoch=epoch, unclean_is_allowed=True)
            if elected is not None and elected.leader in image.brokers:
                return elected
            return Refusal(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
            )
        if has_leader and partition.leader == partition.replicas[0]:
            return _NOT_NEEDED
        preferred = elect_preferred(partition, eligible, controller_epoch=epoch)
        if preferred is not None:
            return preferred
        return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")

    async def alter_partitions(
        self, broker_id: int, *, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> list[PartitionState | Refusal]:
        """Validates and writes ISRs that a leader proposes.

        Returns an outcome for each proposal, in order: the partition's new state, or a Refusal.
        """
        image = self._image
        known = image.brokers.get(broker_id)
        if known is None or known.epoch != broker_epoch:
            raise Refusal(ErrorCode.STALE_BROKER_EPOCH, "Broker epoch has changed.")
        outcomes: list[PartitionState | Refusal] = []
        changed: _Changed = {}
        for proposal in proposals:
            partition = image.partition(proposal.topic_name, proposal.index)
            if partition is None:
                outcomes.append(Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            outcome = validate_proposal(
                partition, proposal, broker_id, self._eligible, controller_epoch=image.controller_epoch
            )
            if isinstance(outcome, PartitionState) and outcome is not partition:
                changed.setdefault(proposal.topic_name, {})[proposal.index] = outcome
            outcomes.append(outcome)
        await self.change_states(changed)
        return outcomes

    # Writing

    async def _create_states(self, name: str, partitions: Mapping[int, PartitionState]) -> None:
        """Creates the missing nodes of partitions: a creation that was interrupted may have left some of them."""
        store = self._store
        operations = [Create(znodes.partitions_path(name)), *partition_nodes(name, partitions)]
        nodes = await store.tree.get_many([operation.path for operation in operations])
        missing = [operation for operation, node in zip(operations, nodes, strict=True) if node is None]
        await store.write(missing)
        store.commit([PartitionsChanged(name, partitions)])

    async def change_states(
        self, changed: Mapping[str, Mapping[int, PartitionState]], topic_nodes: Sequence[TreeOperation] = ()
    ) -> None:
        """Writes new states to the tree, then to the image. `topic_nodes`: the replicas that belong to the states."""
        began, elections = self._clock.monotonic(), self._elections(changed)
        try:
            # The states first, if all do not fit into one multi: a leader must not be outside of the replicas.
            await self._store.write([*state_writes(changed), *topic_nodes])
        except (BadVersion, NoNode) as failure:
            # Another writer changed or deleted a node after it was read here, so the decision is out of date.
            self._store.on_conflict()
            raise Refusal(
                ErrorCode.INVALID_UPDATE_VERSION, f"{failure.path} was changed by another writer."
            ) from failure
        self._store.commit([PartitionsChanged(name, partitions) for name, partitions in changed.items()])
        if elections:
            self.election_times.observe(1000 * (self._clock.monotonic() - began))
            self.unclean_elections += sum(is_unclean for is_unclean in elections)

    def _elections(self, changed: Mapping[str, Mapping[int, PartitionState]]) -> list[bool]:
        """Returns, for each partition that gets another leader, whether its election is unclean."""
        elections = []
        for name, partitions in changed.items():
            for index, state in partitions.items():
                before = self._image.partition(name, index)
                if before is not None and state.leader not in (before.leader, NO_LEADER):
                    elections.append(state.leader not in before.isr)
        return elections
