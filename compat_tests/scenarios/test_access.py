"""Each API asks for the right that Apache Kafka asks for, and is refused with the same codes in the same fields.

Both brokers get the requests of `tests/broker/access_table.py`, on a listener whose clients are User:ANONYMOUS.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from compat_tests.apache_kafka import CLUSTER_ID, PROPERTIES, JavaTools, answers
from compat_tests.process import free_ports, running, wait_until
from kbroker.client.address import Address
from kbroker.client.admin.acls import create_acls, delete_acls
from kbroker.client.admin.topics import create_topic
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.security.acls.filters import AclFilter
from kbroker.security.acls.text import parse_acl
from tests.broker.access_table import ROWS, Row, build, codes_of, each_lines
from tests.broker.wire import BY_NAME, Client, connect

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

SOURCE = Path(__file__).parents[1] / "java" / "ListenerPrincipal.java"
EVERYTHING = [f"allow User:ANONYMOUS ALL {kind} *" for kind in ("topic", "group", "transactional_id")]
REFUSALS = {29, 30, 31, 53, 65}

Codes = dict[str, list[int]]

SECURED = """
listeners=PLAINTEXT://127.0.0.1:{port},CLIENTS://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CLIENTS://127.0.0.1:{clients}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
principal.builder.class=ListenerPrincipal
super.users=User:admin
"""


@contextmanager
def secured_kafka(tools: JavaTools, directory: Path) -> Iterator[tuple[int, int]]:
    """Runs Apache Kafka. Yields the ports for an operator and for clients."""
    classes = directory / "classes"
    tools.compile([SOURCE], classes)
    tools = tools.with_classes(classes)
    port, clients, controller_port = free_ports(3)
    properties = directory / "server.properties"
    text = (PROPERTIES + SECURED).format(
        port=port, clients=clients, controller_port=controller_port, directory=directory
    )
    properties.write_text(text)
    tools.run("kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(properties))
    log = directory / "apache-kafka.log"
    with running(tools.command("kafka.Kafka", [str(properties)], ("-Xmx512m", "-XX:+UseSerialGC")), log) as process:
        wait_until(lambda: answers(clients), process, log, name="Apache Kafka")
        yield port, clients


class Scene:
    """A topic, a group and an open transaction of one name, on a broker where clients have no rights."""

    def __init__(self, operator: Cluster, client: Client, name: str) -> None:
        self.operator = operator
        self.client = client
        self.name = name

    async def prepare(self) -> None:
        name = self.name
        await create_topic(self.operator, name, partitions=1, replication_factor=1)
        await self.allow(EVERYTHING)
        for kind in (0, 1):
            await self.insist("FindCoordinator", 3, key=name, key_type=kind)
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        await self.insist("OffsetCommit", 8, group_id=name, topics=[{"name": name, "partitions": [partition]}])
        ids = await self.insist("InitProducerId", 4, transactional_id=name, transaction_timeout_ms=60_000)
        await self.insist(
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=ids.producer_id,
            v3_and_below_producer_epoch=ids.producer_epoch,
            v3_and_below_topics=[{"name": name, "partitions": [0]}],
        )
        await self.forbid_all()

    async def allow(self, lines: list[str]) -> None:
        if lines:
            await create_acls(self.operator, [binding for line in lines for binding in parse_acl(line)])

    async def forbid_all(self) -> None:
        await delete_acls(self.operator, AclFilter(principal="User:ANONYMOUS"))

    async def ask(self, name: str, version: int, members: Any) -> tuple[Any, Codes]:
        asked = BY_NAME[name]
        value = build(asked.request, members)
        response = await self.client.ask(name, version, **{member: getattr(value, member) for member in members})
        return response, codes_of(asked.response, response)

    async def settled(self, row: Row, is_expected: Callable[[Codes], bool]) -> Codes:
        """Returns the error codes of the row's response. Kafka's authorizer may know a change a moment later."""
        with trio.move_on_after(30) as waiting:
            while True:
                codes = (await self.ask(row.api, row.version, row.members(self.name)))[1]
                if is_expected(codes) or waiting.cancel_called:
                    return codes
                await trio.sleep(0.1)
        return codes

    async def insist(self, name: str, version: int, **members: Any) -> Any:
        with trio.fail_after(60):
            while True:
                response, codes = await self.ask(name, version, members)
                if not codes:
                    return response
                await trio.sleep(0.05)


@asynccontextmanager
async def open_scene(operator_port: int, client_port: int, name: str) -> AsyncIterator[Scene]:
    async with (
        open_cluster([Address("127.0.0.1", operator_port)], client_id="operator") as operator,
        connect(client_port) as client,
    ):
        scene = Scene(operator, client, name)
        await scene.prepare()
        yield scene


@pytest.fixture(scope="module")
def kafka(java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    with secured_kafka(java_tools, tmp_path_factory.mktemp("secured-kafka")) as ports:
        yield ports


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
async def test_apache_kafka_answers_as_the_table_says(kafka: tuple[int, int], row: Row) -> None:
    """`tests/broker/test_access.py` compares kbroker with the same table."""
    name = f"row-{ROWS.index(row)}"
    async with open_scene(*kafka, name) as scene:
        for missing, expected in row.rights.items():
            await scene.allow([each_lines(right, name)[0] for right in row.rights if right != missing])
            wanted = {path: list(code) if isinstance(code, tuple) else [code] for path, code in expected.items()}
            assert await scene.settled(row, lambda codes, wanted=wanted: codes == wanted) == wanted  # type: ignore[misc]
            await scene.forbid_all()
        await scene.allow([each_lines(right, name)[-1] for right in row.rights])
        codes = await scene.settled(row, is_not_refused)
        await scene.forbid_all()
        assert is_not_refused(codes), codes


def is_not_refused(codes: Codes) -> bool:
    return not REFUSALS.intersection(code for found in codes.values() for code in found)
