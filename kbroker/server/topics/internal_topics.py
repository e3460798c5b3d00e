"""Internal topics: their creation on first use, with their own partition counts, replication factors and configs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kbroker.config.broker import BrokerConfig
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.errors import Refusal
from kbroker.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.topics.topic_creation import create_topics

if TYPE_CHECKING:
    from kbroker.controller.cluster.cluster_member import ClusterMember
    from kbroker.controller.controller import Controller

__all__ = ["InternalTopics", "new_topic"]

logger = logging.getLogger(__name__)

_FACTOR_CONFIGS: Final = {
    CONSUMER_OFFSETS: "offsets.topic.replication.factor",
    TRANSACTION_STATE: "transaction.state.log.replication.factor",
}


class InternalTopics:
    """Creates internal topics when a coordinator needs them. `member`: None on a single node."""

    def __init__(self, config: BrokerConfig, controller: Controller, member: ClusterMember | None) -> None:
        self._config = config
        self._controller = controller
        self._member = member
        self._refused: dict[str, int] = {}
        """Number of live brokers at the last logged refusal, by topic: clients ask many times a second."""

    async def create(self, name: str) -> None:
        """Creates the topic, unless there are fewer live brokers than it has replicas.

        The caller then answers COORDINATOR_NOT_AVAILABLE, as Kafka does, and clients ask again. A topic created with
        fewer replicas would keep them: committed offsets would be lost with one broker.
        """
        new = new_topic(name, self._config, is_single_node=self._member is None)
        (outcome,) = await create_topics(self._controller, self._member, [new])
        broker_count = len(self._controller.image.brokers)
        is_refused = isinstance(outcome, Refusal) and outcome.code == ErrorCode.INVALID_REPLICATION_FACTOR
        if is_refused and self._refused.get(name) != broker_count:
            self._refused[name] = broker_count
            logger.error(
                "Number of alive brokers '%d' does not meet the required replication factor '%d' for auto creation of "
                "topic '%s' which is configured by %s. This error can be ignored if the cluster is starting up and not "
                "all brokers are up yet.",
                broker_count,
                new.replication_factor,
                name,
                _FACTOR_CONFIGS[name],
            )


def new_topic(name: str, config: BrokerConfig, *, is_single_node: bool) -> NewTopic:
    """Returns a topic to create on first use. A topic that is not internal gets the broker's defaults.

    A single node has no other broker to wait for, so the default of 3 replicas becomes 1 there.
    """
    if name == CONSUMER_OFFSETS:
        return NewTopic(
            name,
            partitions=config.offsets_topic_num_partitions,
            replication_factor=1 if is_single_node else config.offsets_topic_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
    if name == TRANSACTION_STATE:
        factor = 1 if is_single_node else config.transaction_state_log_replication_factor
        return NewTopic(
            name,
            partitions=config.transaction_state_log_num_partitions,
            replication_factor=factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(min(config.transaction_state_log_min_isr, factor)),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
    return NewTopic(name)
