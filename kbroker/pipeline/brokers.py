"""Questions to the brokers of a pipeline before it starts and for its status. Uses kbroker's own client, not Spark."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import trio

from kbroker.client.address import parse_addresses
from kbroker.client.cluster import Cluster, TopicInfo, open_cluster
from kbroker.client.failures import ConnectionFailed, NoSuchTopic
from kbroker.client.offsets import LATEST, list_offsets
from kbroker.errors import PeerError, UserError
from kbroker.pipeline.client_options import can_connect, connection_security
from kbroker.pipeline.definition import TopicsToRead

__all__ = ["ask_brokers", "check_source", "check_topic", "latest_offsets", "lone_failure"]

T = TypeVar("T")


def ask_brokers(bootstrap: str, ask: Callable[[Cluster], Awaitable[T]], options: Mapping[str, str] | None = None) -> T:
    """Runs a call with a cluster. `options`: TLS and SASL. Raises UserError if no broker answers."""
    security = connection_security(options or {})

    async def run() -> T:
        addresses = parse_addresses(bootstrap)
        async with open_cluster(addresses, client_id="kbroker-pipeline", security=security) as cluster:
            return await ask(cluster)

    try:
        return trio.run(run)
    except (BaseExceptionGroup, UserError, PeerError) as problem:
        failure = lone_failure(problem)
    if isinstance(failure, NoSuchTopic):
        raise UserError(
            f"Topic '{failure.topic}' does not exist on {bootstrap}. Create it: kbroker topics create {failure.topic}"
        )
    if isinstance(failure, (ConnectionFailed, PeerError)):
        raise UserError(f"No Kafka broker answers at {bootstrap}: {failure}. Start it, or correct bootstrap")
    raise failure


def lone_failure(failure: BaseException) -> BaseException:
    """Returns the first failure of a group: trio wraps each failure of a nursery in one."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def check_source(source: TopicsToRead) -> str | None:
    """Returns the id of the cluster. Raises UserError if a topic does not exist. A pattern may match nothing yet."""
    if not can_connect(source.options):
        return None

    async def ask(cluster: Cluster) -> str | None:
        await cluster.refresh([])
        for topic in source.topics:
            await cluster.topic(topic)
        return cluster.cluster_id

    return ask_brokers(source.bootstrap, ask, source.options)


def check_topic(bootstrap: str, topic: str, options: Mapping[str, str] | None = None) -> TopicInfo | None:
    """Returns the topic; None if the client cannot ask. Raises UserError if the topic does not exist."""
    if not can_connect(options or {}):
        return None

    async def ask(cluster: Cluster) -> TopicInfo:
        return await cluster.topic(topic)

    return ask_brokers(bootstrap, ask, options)


def latest_offsets(
    bootstrap: str, topics: Iterable[str], options: Mapping[str, str] | None = None
) -> dict[str, dict[int, int]]:
    """Returns topic -> partition -> log end offset. Topics that do not exist any more are left out."""

    async def ask(cluster: Cluster) -> dict[str, dict[int, int]]:
        found = {}
        for name in topics:
            try:
                topic = await cluster.topic(name)
            except NoSuchTopic:
                continue
            wanted = {partition.number: LATEST for partition in topic.partitions}
            offsets = await list_offsets(cluster, name, wanted, read_committed=True)
            found[name] = {partition: found_offset.offset for partition, found_offset in offsets.items()}
        return found

    return ask_brokers(bootstrap, ask, options)
