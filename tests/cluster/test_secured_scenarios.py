"""A secured cluster of three: TLS between brokers and to clients, SCRAM users, ACLs. It runs the scenarios."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from kbroker.client.address import Address
from kbroker.client.admin.acls import create_acls, describe_acls
from kbroker.client.client_properties import client_security
from kbroker.client.cluster import open_cluster
from kbroker.client.connection_security import ConnectionSecurity
from kbroker.config.properties import parse_properties
from kbroker.security.acls.filters import AclFilter
from kbroker.security.acls.text import parse_acl
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster
from tests.security.certificates import Authority

pytestmark = [pytest.mark.jvm, pytest.mark.long]

ROOT = Path(__file__).parents[2]
MECHANISM = "SCRAM-SHA-512"
PASSWORDS = {"broker": "b-secret", "alice": "a-secret"}
# Not a super user: each request is decided by an entry.
RIGHTS = [f"allow User:alice ALL {kind} *" for kind in ("topic", "group", "transactional_id")]
RIGHTS += ["allow User:alice ALL cluster"]
# The other scenarios assume a single broker, or one without ACLs and users.
SCENARIOS = (
    "produce_consume",
    "cli_groups",
    "groups_aiokafka groups_kafka_python",
    "groups_confluent",
    "groups_consumer",
    "transactions transactions_python",
)
# They have clients without TLS and login, start a broker of their own, or name the only broker.
OTHER = " and ".join(
    f"not {name}" for name in ("wire", "kcat", "crash", "second_process", "restart", "described_with_members")
)


def settings(authority: Authority, broker_id: int) -> list[str]:
    listener = f"listener.name.sasl_ssl.{MECHANISM.lower()}"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return [
        f"ssl.keystore.location={authority.pem(f'broker{broker_id}')}",
        f"ssl.truststore.location={authority.file}",
        "inter.broker.listener.name=SASL_SSL",
        f"sasl.enabled.mechanisms={MECHANISM}",
        f"sasl.mechanism.inter.broker.protocol={MECHANISM}",
        f'{listener}.sasl.jaas.config={module} username="broker" password="{PASSWORDS["broker"]}";',
        "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
        "super.users=User:broker",
        "auto.create.topics.enable=true",
    ]


def write_login(directory: Path, authority: Authority, user: str) -> Path:
    path = directory / f"{user}.properties"
    path.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={MECHANISM}\nsasl.username={user}\n"
        f"sasl.password={PASSWORDS[user]}\nssl.truststore.location={authority.file}\n"
    )
    path.chmod(0o600)
    return path


@pytest.fixture
async def secured(zookeeper: str, tmp_path: Path) -> AsyncIterator[tuple[RunningCluster, Path]]:
    """Returns the cluster, and the properties with which alice logs in."""
    authority = Authority(tmp_path / "certificates")
    cluster = RunningCluster(f"{zookeeper}/secured-{uuid.uuid4().hex[:8]}", tmp_path, "SASL_SSL")
    for user, password in PASSWORDS.items():
        command = [sys.executable, "-m", "kbroker", "users", "add", user, "--zookeeper", cluster.connect]
        await trio.run_process(command, env={**os.environ, "KBROKER_USER_PASSWORD": password}, capture_stdout=True)
    try:
        async with trio.open_nursery() as nursery:
            for broker_id in (1, 2, 3):
                nursery.start_soon(cluster.start, broker_id, *settings(authority, broker_id))
        properties = parse_properties(write_login(tmp_path, authority, "broker").read_text())
        await give_rights(cluster, client_security(properties, source="test"))
        yield cluster, write_login(tmp_path, authority, "alice")
    finally:
        with trio.CancelScope(shield=True):
            for broker in cluster.alive.values():
                await broker.kill()


async def give_rights(cluster: RunningCluster, security: ConnectionSecurity | None) -> None:
    """Adds the entries of alice, and waits until each broker knows them and all brokers."""
    entries = [binding for line in RIGHTS for binding in parse_acl(line)]
    for broker in cluster.brokers.values():
        async with open_cluster([Address("127.0.0.1", broker.port)], security=security) as client:
            await create_acls(client, entries)  # those that exist stay
            with trio.fail_after(TIMEOUT_SECONDS):
                while len(await describe_acls(client, AclFilter())) < len(entries):  # noqa: ASYNC110
                    await trio.sleep(0.05)
                while len(client.brokers) < len(cluster.brokers):
                    await client.refresh([])


@pytest.mark.parametrize("names", SCENARIOS)
async def test_scenarios_of_python_clients_pass(secured: tuple[RunningCluster, Path], names: str) -> None:
    cluster, login = secured
    command = [
        *(sys.executable, "-m", "pytest", *(f"compat_tests/scenarios/test_{name}.py" for name in names.split())),
        *("-n", "0", "-q", "-p", "no:cacheprovider", "-m", "not jvm and not slow", "-k", OTHER),
        *("--bootstrap", f"127.0.0.1:{cluster.brokers[1].port}", "--client-config", str(login)),
    ]
    env = {name: text for name, text in os.environ.items() if name != "CI"}
    result = await trio.run_process(
        command, cwd=ROOT, env=env, check=False, capture_stdout=True, stderr=subprocess.STDOUT
    )
    assert result.returncode == 0, result.stdout.decode()[-20_000:]
