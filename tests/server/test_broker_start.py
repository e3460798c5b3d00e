"""A broker that cannot start says why, in one line that tells the operator what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from kbroker.config.authorizer import authorizer_config
from kbroker.config.broker import BrokerConfig
from kbroker.config.supported import check_supported
from kbroker.errors import UserError
from kbroker.server.broker import run_broker

LOOPBACK = {"listeners": "PLAINTEXT://127.0.0.1:0"}
START_SECONDS = 60


async def refusal(tmp_path: Path, properties: dict[str, str], topics: list[tuple[str, int]]) -> str:
    config = BrokerConfig.from_properties(LOOPBACK | properties)
    with pytest.RaisesGroup(UserError, allow_unwrapped=True, flatten_subgroups=True) as refused:
        with trio.fail_after(START_SECONDS):  # a broker that is not refused runs
            await run_broker(config, data_dir=str(tmp_path / "data"), topics=topics, stop=trio.Event())
    error: BaseException = refused.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
async def test_a_listener_with_encryption_is_refused_without_a_key(tmp_path: Path, protocol: str) -> None:
    message = await refusal(tmp_path, {"listeners": f"{protocol}://127.0.0.1:0"}, [])
    assert message.startswith(f"Listener {protocol} cannot use TLS: no key is configured: set ssl.keystore.location")


async def test_a_listener_for_the_controller_alone_is_refused(tmp_path: Path) -> None:
    message = await refusal(tmp_path, {"control.plane.listener.name": "CONTROLLER"}, [])
    assert message.startswith("control.plane.listener.name is set, but kbroker has no listener of its own")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ssl.engine.factory.class", "org.example.Engine"),
        ("listener.name.plaintext.ssl.engine.factory.class", "org.example.Engine"),
        ("sasl.login.class", "org.example.Login"),
        ("ssl.no.such.config", "abc"),
        ("zookeeper.ssl.crl.enable", "true"),
        ("zookeeper.ssl.ocsp.enable", "true"),
        ("zookeeper.ssl.context.supplier.class", "org.example.Supplier"),
        ("principal.builder.class", "org.example.Builder"),
    ],
)
async def test_a_security_setting_without_effect_is_refused_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    message = await refusal(tmp_path, {name: text}, [])
    assert message.startswith(f"{name} is set, but kbroker does not support it yet")
    assert "\n" not in message
    assert text not in message  # it may be a secret


@pytest.mark.parametrize("name", ["zookeeper.ssl.client.enable", "zookeeper.set.acl"])
async def test_security_of_a_zookeeper_that_is_not_used_is_refused(tmp_path: Path, name: str) -> None:
    message = await refusal(tmp_path, {name: "true"}, [])
    assert message.startswith(f"{name}=true has no effect without zookeeper.connect")
    assert "\n" not in message


async def test_protected_nodes_without_an_identity_at_zookeeper_refuse_the_start(tmp_path: Path) -> None:
    message = await refusal(tmp_path, {"zookeeper.connect": "127.0.0.1:1", "zookeeper.set.acl": "true"}, [])
    assert message.startswith("zookeeper.set.acl is set to true, but ZooKeeper client TLS configuration")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"authorizer.class.name": "org.example.Mine"}, "must be kafka.security.authorizer.AclAuthorizer or"),
        ({"super.users": "admin"}, "expected principals like User:admin"),
        ({"allow.everyone.if.no.acl.found": "maybe"}, "must be true or false"),
    ],
)
async def test_an_authorizer_that_cannot_work_refuses_the_start(
    tmp_path: Path, properties: dict[str, str], problem: str
) -> None:
    known = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    message = await refusal(tmp_path, known | properties, [])
    assert problem in message
    assert "\n" not in message


def test_the_configs_of_the_authorizer_are_those_of_kafka() -> None:
    def config(**texts: str) -> BrokerConfig:
        return BrokerConfig.from_properties({name.replace("_", "."): text for name, text in texts.items()})

    assert authorizer_config(config()) is None
    assert authorizer_config(config(super_users="User:a")) is None
    standard = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    properties = {"authorizer_class_name": standard, "super_users": " User:a ;User:CN=b, O=c;"}
    assert authorizer_config(config(**properties)) == (frozenset({"User:a", "User:CN=b, O=c"}), False)
    everyone = config(authorizer_class_name=standard, allow_everyone_if_no_acl_found="TRUE")
    assert authorizer_config(everyone) == (frozenset(), True)
    assert everyone.warnings == ()


def test_settings_that_ask_for_no_security_are_accepted() -> None:
    harmless = {
        "security.inter.broker.protocol": "PLAINTEXT",
        "ssl.client.auth": "none",
        "authorizer.class.name": "",
        "super.users": "",
        "zookeeper.set.acl": "false",
        "zookeeper.ssl.client.enable": "false",
        "zookeeper.ssl.keystore.type": "PEM",
        "zookeeper.ssl.truststore.type": "PKCS12",
        "allow.everyone.if.no.acl.found": "true",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL",
    }
    check_supported(BrokerConfig.from_properties(LOOPBACK | harmless))


ONE_NODE = {"process.roles": "broker,controller", "node.id": "1", "controller.quorum.voters": "1@a:9093"}


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093"}, "controller.quorum.voters has 3 members"),
        ({"controller.quorum.bootstrap.servers": "a:1,b:1"}, "controller.quorum.bootstrap.servers has 2 members"),
        ({"process.roles": "broker"}, "process.roles=broker needs other nodes"),
        ({"process.roles": "controller"}, "process.roles=controller needs other nodes"),
        ({"node.id": "2"}, "controller.quorum.voters has another node than node.id=2"),
    ],
)
async def test_a_broker_of_a_kraft_cluster_does_not_become_a_cluster_of_its_own(
    tmp_path: Path, properties: dict[str, str], problem: str
) -> None:
    message = await refusal(tmp_path, ONE_NODE | properties, [])
    assert message.startswith(f"{problem}, but kbroker has no KRaft quorum")
    assert "\n" not in message


def test_a_kraft_file_of_a_single_node_and_one_that_moves_from_zookeeper_are_accepted() -> None:
    check_supported(BrokerConfig.from_properties(LOOPBACK | ONE_NODE))
    moving = {"zookeeper.connect": "127.0.0.1:2181", "controller.quorum.voters": "1@a:1,2@b:1"}
    check_supported(BrokerConfig.from_properties(LOOPBACK | moving))


async def test_a_data_directory_that_cannot_be_created_is_one_line(tmp_path: Path) -> None:
    config = BrokerConfig.from_properties(LOOPBACK)
    with pytest.raises(UserError, match=r"^Cannot use the data directory: /proc/nope: No such file or directory$"):
        await run_broker(config, data_dir="/proc/nope", stop=trio.Event())


async def test_a_broker_of_a_cluster_does_not_start_without_its_zookeeper(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        properties = {"zookeeper.connect": address, "zookeeper.connection.timeout.ms": "100"}
        message = await refusal(tmp_path, properties, [])
    assert message.startswith(f"Could not connect to ZooKeeper at {address} within 100 ms")


async def test_a_topic_that_cannot_be_created_stops_the_start(tmp_path: Path) -> None:
    message = await refusal(tmp_path, {}, [("a.b", 1), ("a_b", 1)])
    assert message.startswith("Could not create topic a_b: ")
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_single_node_imports_no_module_for_clusters() -> None:
    code = (
        "import sys, kbroker.server.broker\n"
        "names = ('kazoo', 'kbroker.client', 'kbroker.controller.cluster.cluster_member')\n"
        "sys.exit(', '.join(name for name in names if name in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert found.stderr.strip() == ""
