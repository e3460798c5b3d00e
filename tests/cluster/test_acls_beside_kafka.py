"""A kbroker and an Apache Kafka 3.9 with an authorizer: ACLs that one of them writes count on both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from kbroker.client.address import Address
from kbroker.client.admin.acls import create_acls, delete_acls, describe_acls
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.security.acls.entries import AclBinding
from kbroker.security.acls.filters import AclFilter
from kbroker.security.acls.text import parse_acl
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.test_beside_kafka import KAFKA_ID, kafka_beside
from tests.cluster.test_cluster import all_led, create

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

T = TypeVar("T")

# The brokers and the clients of this test are User:ANONYMOUS.
SETTINGS = ("authorizer.class.name=kafka.security.authorizer.AclAuthorizer", "super.users=User:ANONYMOUS")


def acls(*lines: str) -> list[AclBinding]:
    return sorted(binding for line in lines for binding in parse_acl(line))


async def at(cluster: RunningCluster, broker_id: int, call: Callable[[Cluster], Awaitable[T]]) -> T:
    """Sends requests to one broker."""
    address = Address("127.0.0.1", cluster.brokers[broker_id].port)
    async with open_cluster([address], client_id="test") as client:
        return await call(client)


async def wait_known(cluster: RunningCluster, broker_id: int, expected: list[AclBinding]) -> None:
    known: list[AclBinding] = []
    with trio.move_on_after(TIMEOUT_SECONDS):
        while known != expected:
            known = await at(cluster, broker_id, lambda client: describe_acls(client, AclFilter()))
    assert known == expected


async def test_acls_of_one_broker_are_known_to_the_other(
    zookeeper: str, java: str, judge39_classpath: str, tmp_path: Path
) -> None:
    async with (
        running_cluster(zookeeper, tmp_path, 1, lambda _: SETTINGS) as cluster,
        kafka_beside(cluster, judge39_classpath, java, tmp_path / "kafka", *SETTINGS),
    ):
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [1, KAFKA_ID])
        # Brokers are super users: requests between them work in both directions.
        await create(cluster, "orders", 2, 2)
        await cluster.until_agreed(lambda _c, brokers, topics: all_led(brokers, topics, "orders"))

        ours = acls("allow User:alice DESCRIBE_CONFIGS topic orders", "deny User:bob ALL transactional_id pre*")
        await at(cluster, 1, lambda client: create_acls(client, ours))
        await wait_known(cluster, 1, ours)  # at once
        await wait_known(cluster, KAFKA_ID, ours)

        theirs = acls("allow User:bob READ topic orders from 10.0.0.1", "allow User:* CREATE cluster")
        await at(cluster, KAFKA_ID, lambda client: create_acls(client, theirs))
        await wait_known(cluster, 1, sorted([*ours, *theirs]))

        # Both change the node of one topic.
        await at(cluster, KAFKA_ID, lambda client: delete_acls(client, AclFilter(principal="User:alice")))
        remaining = [acl for acl in sorted([*ours, *theirs]) if acl.entry.principal != "User:alice"]
        await wait_known(cluster, 1, remaining)
        removed = await at(cluster, 1, lambda client: delete_acls(client, AclFilter()))
        assert removed == remaining
        await wait_known(cluster, KAFKA_ID, [])

        # A restarted kbroker reads what Kafka wrote meanwhile.
        await cluster.brokers[1].kill()
        await cluster.until_agreed(lambda controller, brokers, _t: controller == KAFKA_ID and brokers == [KAFKA_ID])
        await at(cluster, KAFKA_ID, lambda client: create_acls(client, theirs))
        await cluster.start(1, *SETTINGS)
        await wait_known(cluster, 1, theirs)
