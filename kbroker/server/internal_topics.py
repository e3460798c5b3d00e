"""The topics that the broker keeps for itself: with how many partitions and which configs they are made."""

from __future__ import annotations

from kbroker.config import BrokerConfig
from kbroker.controller.topic_rules import NewTopic
from kbroker.names import CONSUMER_OFFSETS, TRANSACTION_STATE

__all__ = ["new_topic"]


def new_topic(name: str, config: BrokerConfig, *, broker_count: int) -> NewTopic:
    """The topic as it is created on first use; one that is not internal gets the broker's defaults."""
    if name == CONSUMER_OFFSETS:
        return NewTopic(
            name,
            partitions=config.offsets_topic_num_partitions,
            replication_factor=_replication_factor(config.offsets_topic_replication_factor, broker_count),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
    if name == TRANSACTION_STATE:
        factor = _replication_factor(config.transaction_state_log_replication_factor, broker_count)
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


def _replication_factor(wanted: int, broker_count: int) -> int:
    """A cluster of one cannot keep three replicas, and must work without settings all the same."""
    return 1 if broker_count <= 1 else wanted
