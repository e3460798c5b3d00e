"""Builds the parts of a broker that handlers use, connects them to the image, and puts them into a `Context`."""

from __future__ import annotations

import os
import random
import uuid
from functools import partial
from typing import TYPE_CHECKING

import trio

from kbroker.clock import Clock
from kbroker.config.broker import RACK_AWARE_SELECTOR, BrokerConfig
from kbroker.config.group import consumer_timeouts
from kbroker.controller.changes import EntityConfigsChanged, TopicAdded
from kbroker.controller.controller import Controller
from kbroker.coordinator.group_coordinator import GroupCoordinator
from kbroker.coordinator.marker_delivery import MarkerDelivery
from kbroker.coordinator.markers import Markers
from kbroker.coordinator.transaction_channels import TransactionChannels
from kbroker.coordinator.transaction_coordinator import TransactionConfig, TransactionCoordinator
from kbroker.group.consumer.assignors import known_assignors
from kbroker.group.result import ConsumerTimeouts, GroupCoordinatorConfig
from kbroker.names import CONSUMER_OFFSETS, TRANSACTION_STATE, random_uuid
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.partition import Partition
from kbroker.server.access.authorization import AllowAll
from kbroker.server.cluster import connect_to_broker
from kbroker.server.context import Context
from kbroker.server.coordinators.producer_ids import ProducerIds
from kbroker.server.quotas.request_quotas import Quotas
from kbroker.server.requests.fetch_session import FetchSessions
from kbroker.server.requests.run import Run
from kbroker.server.requests.thread_work import ThreadWork
from kbroker.server.topics.internal_topics import InternalTopics
from kbroker.server.topics.preferred_replicas import PreferredReplicas
from kbroker.server.topics.topic_creation import AutoCreationRate
from kbroker.server.wire.deadlines import Deadlines

if TYPE_CHECKING:
    from kbroker.client.connection_security import ConnectionSecurity
    from kbroker.client.frames import SocketWatch
    from kbroker.controller.cluster.cluster_member import ClusterMember
    from kbroker.controller.token_store import TokenStore
    from kbroker.server.access.acls import AclAccess

__all__ = ["ContextBuilder"]


class ContextBuilder:
    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        clock: Clock,
        controller: Controller,
        member: ClusterMember | None,
        replicas: AssignedReplicas,
        security: ConnectionSecurity | None = None,
        acls: AclAccess | None = None,
        tokens: TokenStore | None = None,
    ) -> None:
        """`security`: of connections to other brokers; None for PLAINTEXT. `acls`: None without an authorizer.

        `tokens`: None without delegation tokens.
        """
        self.watch: SocketWatch | None = None
        """Watches the sockets of transaction coordinators to other brokers. None: trio does."""
        self._acls = acls
        self._tokens = tokens
        self._broker_id = broker_id
        self._security = security
        self._config = config
        self._clock = clock
        self._controller = controller
        self._member = member
        self._replicas = replicas
        self._internal_topics = InternalTopics(config, controller, member)

    def build(self, nursery: trio.Nursery) -> Context:
        randomness = random.Random()
        deadlines = Deadlines()
        run = Run(self._clock)
        groups = self._groups(deadlines, run)
        markers = Markers(find=self._find_led, groups=groups, clock=self._clock)
        return Context(
            broker_id=self._broker_id,
            config=self._config,
            clock=self._clock,
            controller=self._controller,
            partitions=self._replicas.table,
            log_dirs=self._replicas.log_dirs,
            moves=self._replicas.moves,
            producer_ids=ProducerIds(self._controller.allocate_producer_ids),
            fetch_sessions=FetchSessions(
                self._config.max_incremental_fetch_session_cache_slots,
                lambda: randomness.getrandbits(31),
                self._clock,
            ),
            authorizer=AllowAll() if self._acls is None else self._acls.authorizer,
            acls=None if self._acls is None else self._acls.store,
            tokens=self._tokens,
            deadlines=deadlines,
            run=run,
            groups=groups,
            transactions=self._transactions(deadlines, markers),
            markers=markers,
            quotas=self._quotas(deadlines),
            auto_creation=AutoCreationRate(self._clock),
            thread_work=ThreadWork(self._clock),
            nursery=nursery,
            preferred_replicas=self._preferred_replicas(),
            member=self._member,
        )

    def _preferred_replicas(self) -> PreferredReplicas | None:
        config = self._config
        if config.replica_selector_class != RACK_AWARE_SELECTOR:
            return None
        return PreferredReplicas(self._controller, config.broker_rack)

    def _quotas(self, deadlines: Deadlines) -> Quotas:
        quotas = Quotas(self._config, self._clock, deadlines)
        entities = self._controller.image.entity_configs
        quotas.on_image(self._controller.image, [EntityConfigsChanged(*entity) for entity in entities.items()])
        self._controller.add_listener(quotas.on_image)
        return quotas

    def _groups(self, deadlines: Deadlines, run: Run) -> GroupCoordinator:
        config = self._config
        controller = self._controller

        groups = GroupCoordinator(
            broker_id=self._broker_id,
            partitions=self._replicas.table,
            config=_group_config(config),
            expiry_interval_ms=config.offsets_retention_check_interval_ms,
            clock=self._clock,
            timers=deadlines,
            new_id=lambda: str(uuid.UUID(bytes=random_uuid(os.urandom))),
            timeouts=lambda overrides: ConsumerTimeouts(*consumer_timeouts(config, overrides)),
            create_topic=partial(self._internal_topics.create, CONSUMER_OFFSETS),
            flush_at_end=run.flush_at_end,
        )
        groups.on_image(controller.image, [TopicAdded(topic) for topic in controller.image.topics.values()])
        controller.add_listener(groups.on_image)
        return groups

    def _find_led(self, topic: str, index: int) -> Partition | ErrorCode:
        """Returns a partition that this broker leads, or the error for a marker that must be written to it."""
        if self._replicas.log_dirs.is_offline(topic, index):
            return ErrorCode.KAFKA_STORAGE_ERROR
        is_known = self._controller.image.partition(topic, index) is not None
        missing = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self._replicas.table.get(topic, index) or missing

    def _leader_of(self, topic: str, index: int) -> int | None:
        partition = self._controller.image.partition(topic, index)
        return None if partition is None else partition.leader

    def _transactions(self, deadlines: Deadlines, markers: Markers) -> TransactionCoordinator:
        config, controller = self._config, self._controller
        channels = TransactionChannels(
            broker_id=self._broker_id,
            listener_name=config.inter_broker_endpoint.name,
            timeout_s=config.request_timeout_ms / 1000,
            connect=None if self._member is None else connect_to_broker(self._security, lambda: self.watch),
        )
        transactions = TransactionCoordinator(
            broker_id=self._broker_id,
            partitions=self._replicas.table,
            config=TransactionConfig(
                config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                config.transaction_remove_expired_transaction_cleanup_interval_ms,
                config.transactional_id_expiration_ms,
            ),
            clock=self._clock,
            timers=deadlines,
            markers=MarkerDelivery(
                broker_id=self._broker_id,
                leader_of=self._leader_of,
                append=markers.append,
                send=channels.markers.put,
                timers=deadlines,
            ),
            leader_of=self._leader_of,
            channels=channels,
            create_topic=partial(self._internal_topics.create, TRANSACTION_STATE),
        )
        transactions.on_image(controller.image, [TopicAdded(topic) for topic in controller.image.topics.values()])
        controller.add_listener(transactions.on_image)
        return transactions


def _group_config(config: BrokerConfig) -> GroupCoordinatorConfig:
    # Kafka waits 3 s for more members before the first rebalance. On a single node that only slows tests and
    # development, so the delay is used only if it is configured.
    is_delayed = "group.initial.rebalance.delay.ms" in config.texts
    return GroupCoordinatorConfig(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        max_size=config.group_max_size,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms if is_delayed else 0,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        consumer_max_size=config.group_consumer_max_size,
        consumer_assignors=known_assignors(config.group_consumer_assignors),
        may_upgrade=config.group_consumer_migration_policy.lower() in ("upgrade", "bidirectional"),
        may_downgrade=config.group_consumer_migration_policy.lower() in ("downgrade", "bidirectional"),
    )
