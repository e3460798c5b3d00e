"""TLS listeners of a whole broker: principals, several listeners, failures on the client's side, new keys."""

from __future__ import annotations

import gc
import logging
import os
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from confluent_kafka import KafkaError, Producer

from kbroker.client.address import Address
from kbroker.client.client_properties import client_security
from kbroker.client.cluster import open_cluster
from kbroker.client.connection import open_connection
from kbroker.client.failures import HandshakeFailed
from kbroker.config.broker import BrokerConfig
from kbroker.errors import PeerError, UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages.describe_configs import DescribeConfigsResource
from kbroker.protocol.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource
from kbroker.protocol.registry import api
from kbroker.server.broker import run_broker
from kbroker.server.requests.client_session import ClientSession
from kbroker.server.wire.connection import Connection
from kbroker.testing.running_broker import RunningBroker
from tests.broker.conftest import StartBroker
from tests.security.certificates import Authority

pytestmark = pytest.mark.usefixtures("either_watcher")

METADATA = api(3)
DESCRIBE_CONFIGS = api(32)
INCREMENTAL_ALTER_CONFIGS = api(44)
BROKER_RESOURCE = 4


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def tls_properties(authority: Authority, **more: str) -> dict[str, str]:
    return {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.pem("broker"),
        "ssl.truststore.location": authority.file,
        "offsets.topic.num.partitions": "1",
        **{name.replace("_", "."): text for name, text in more.items()},
    }


def client(authority: Authority, name: str | None = None, **more: str) -> dict[str, str]:
    """Properties of a client, with the certificate of this name if there is one."""
    certificate = {} if name is None else {"ssl.keystore.location": authority.pem(name, hosts=())}
    return {
        "security.protocol": "SSL",
        "ssl.truststore.location": authority.file,
        **certificate,
        **{key.replace("_", "."): text for key, text in more.items()},
    }


async def ask_metadata(broker: RunningBroker, properties: dict[str, str], port: int | None = None) -> Any:
    security = client_security(properties, source="test")
    address = Address("127.0.0.1", port or broker.port)
    async with open_connection(address, security=security) as connection:
        return await connection.send(METADATA, topics=[])


async def principal_of(broker: RunningBroker, properties: dict[str, str]) -> str:
    """Returns the principal that the broker gives to a client."""
    security = client_security(properties, source="test")
    async with open_connection(Address("127.0.0.1", broker.port), security=security):
        (found,) = [each for each in gc.get_objects() if isinstance(each, Connection) and not each.is_closed]
        return cast(ClientSession, found.session).principal


async def test_a_certificate_gives_the_principal(authority: Authority, start_broker: StartBroker) -> None:
    rules = r"RULE:^CN=(\w+),O=acme$/$1/L,DEFAULT"
    broker = await start_broker(
        tls_properties(authority, ssl_client_auth="requested", ssl_principal_mapping_rules=rules)
    )
    assert await principal_of(broker, client(authority)) == "User:ANONYMOUS"
    assert await principal_of(broker, client(authority, "Alice")) == "User:alice"
    assert await principal_of(broker, client(authority, "Mrs Bob")) == "User:CN=Mrs Bob,O=acme"


async def test_a_name_without_a_rule_is_refused(
    authority: Authority, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rules = "RULE:^CN=alice,O=acme$/alice/"
    broker = await start_broker(
        tls_properties(authority, ssl_client_auth="required", ssl_principal_mapping_rules=rules)
    )
    await ask_metadata(broker, client(authority, "alice"))
    with pytest.raises(Exception, match="closed the connection"):
        await ask_metadata(broker, client(authority, "mallory"))
    assert f"No rules apply to 'CN=mallory,O=acme', rules {rules}" in caplog.text


async def test_a_rule_that_gives_an_empty_name_is_refused(authority: Authority, start_broker: StartBroker) -> None:
    """Attack: all clients would be the same user, `User:`."""
    rules = "RULE:^CN=alice(.*),O=acme$/$1/"
    broker = await start_broker(
        tls_properties(authority, ssl_client_auth="required", ssl_principal_mapping_rules=rules)
    )
    with pytest.raises(Exception, match="closed the connection"):
        await ask_metadata(broker, client(authority, "alice"))


async def test_clients_of_each_listener_see_its_own_address(authority: Authority, start_broker: StartBroker) -> None:
    properties = tls_properties(
        authority,
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        advertised_listeners="PLAINTEXT://127.0.0.1:0,SSL://localhost:0,OUTSIDE://outside.example.com:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SSL:SSL,OUTSIDE:SSL",
    )
    properties["listener.name.outside.ssl.client.auth"] = "required"
    broker = await start_broker(properties)
    names = ("PLAINTEXT", "SSL", "OUTSIDE")
    ports = [int(broker.advertised(name).rpartition(":")[2]) for name in names]
    (plain,) = (await ask_metadata(broker, {}, ports[0])).brokers
    (inside,) = (await ask_metadata(broker, client(authority), ports[1])).brokers
    (outside,) = (await ask_metadata(broker, client(authority, "carol"), ports[2])).brokers
    assert (plain.host, plain.port) == ("127.0.0.1", ports[0])
    assert (inside.host, inside.port) == ("localhost", ports[1])
    assert (outside.host, outside.port) == ("outside.example.com", ports[2])
    with pytest.raises(HandshakeFailed, match="certificate required"):
        await ask_metadata(broker, client(authority), ports[2])


async def test_the_client_verifies_the_broker(authority: Authority, start_broker: StartBroker, tmp_path: Path) -> None:
    broker = await start_broker(tls_properties(authority))
    stranger = client(authority) | {"ssl.truststore.location": Authority(tmp_path / "other").file}
    with pytest.raises(
        HandshakeFailed, match=r"^SSL handshake with 127\.0\.0\.1:\d+ failed: the certificate of the peer"
    ):
        await ask_metadata(broker, stranger)
    with pytest.raises(PeerError, match="uses TLS, and this connection does not"):
        await ask_metadata(broker, {})


async def test_the_client_verifies_the_name_of_the_broker(authority: Authority, start_broker: StartBroker) -> None:
    location = authority.pem("elsewhere", hosts=("elsewhere.example.com",))
    broker = await start_broker(tls_properties(authority, ssl_keystore_location=location))
    with pytest.raises(HandshakeFailed, match="IP address mismatch"):
        await ask_metadata(broker, client(authority))
    await ask_metadata(broker, client(authority, ssl_endpoint_identification_algorithm=""))


async def test_an_expired_broker_is_refused_and_warned_about(
    authority: Authority, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    location = authority.pem("old", age_days=20, days=10)
    broker = await start_broker(tls_properties(authority, ssl_keystore_location=location))
    with pytest.raises(HandshakeFailed, match="certificate has expired"):
        await ask_metadata(broker, client(authority))
    assert "The certificate of listener SSL has expired: clients cannot connect" in caplog.text


async def test_a_certificate_that_expires_soon_is_warned_about(
    authority: Authority, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await start_broker(tls_properties(authority, ssl_keystore_location=authority.pem("short", days=10)))
    assert "The certificate of listener SSL expires in 9 days" in caplog.text


async def test_a_tls_client_on_a_plaintext_port_fails(authority: Authority, start_broker: StartBroker) -> None:
    broker = await start_broker({})
    with pytest.raises(HandshakeFailed, match="failed: the broker closed the connection"):
        await ask_metadata(broker, client(authority))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ssl.keystore.location": ""}, "Listener SSL cannot use TLS: no key is configured: set ssl.keystore.location"),
        ({"ssl.keystore.location": "/nowhere"}, "Could not read ssl.keystore.location=/nowhere"),
        ({"ssl.principal.mapping.rules": "nonsense"}, "ssl.principal.mapping.rules has an invalid rule"),
        ({"ssl.engine.factory.class": "org.example.Engine"}, "ssl.engine.factory.class is set, but kbroker does not"),
    ],
)
async def test_a_listener_that_cannot_use_tls_refuses_the_start_in_one_line(
    authority: Authority, tmp_path: Path, changes: dict[str, str], problem: str
) -> None:
    config = BrokerConfig.from_properties(tls_properties(authority) | changes)
    with pytest.raises(UserError) as refused:
        await run_broker(config, data_dir=str(tmp_path / "data"), stop=trio.Event())
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "data").exists()


# New keys


async def alter(broker: RunningBroker, properties: dict[str, str], configs: dict[str, str]) -> tuple[int, str]:
    resource = AlterConfigsResource(
        resource_type=BROKER_RESOURCE,
        resource_name="1",
        configs=[AlterableConfig(name=name, config_operation=0, value=text) for name, text in configs.items()],
    )
    security = client_security(properties, source="test")
    async with open_connection(Address("127.0.0.1", broker.port), security=security) as connection:
        response = await connection.send(INCREMENTAL_ALTER_CONFIGS, resources=[resource])
    return response.responses[0].error_code, response.responses[0].error_message or ""


async def test_keys_are_replaced_while_the_broker_runs(authority: Authority, start_broker: StartBroker) -> None:
    """A renewed file is taken when the same path is set again, also by connections that are not open yet only."""
    properties = tls_properties(authority)
    authority.pem("broker", age_days=20, days=10)  # the same file, expired
    broker = await start_broker(properties)
    unchecked = client(authority)
    with pytest.raises(HandshakeFailed, match="certificate has expired"):
        await ask_metadata(broker, unchecked)
    authority.pem("broker")  # the same file, renewed
    location = {"listener.name.ssl.ssl.keystore.location": properties["ssl.keystore.location"]}
    # The request needs a connection, and the broker's certificate has expired: it comes over another listener.
    tls = broker._running().listener_keys["SSL"]
    tls.reload()
    await ask_metadata(broker, unchecked)
    assert await alter(broker, unchecked, location) == (0, "")
    other = authority.copy("broker", "next")
    assert await alter(broker, unchecked, {"listener.name.ssl.ssl.keystore.location": other}) == (0, "")
    os.unlink(properties["ssl.keystore.location"])
    assert await alter(broker, unchecked, {"listener.name.ssl.ssl.keystore.location": other}) == (0, "")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda authority: authority.pem("other"), "Keystore DistinguishedName does not match: existing={CN=broker"),
        (lambda authority: rename(authority, ("127.0.0.1",)), "Keystore SubjectAltNames do not match"),
        (lambda authority: "/nowhere", "Could not read ssl.keystore.location=/nowhere"),
    ],
)
async def test_keys_that_clients_would_not_accept_are_refused(
    authority: Authority, start_broker: StartBroker, make: Any, problem: str
) -> None:
    broker = await start_broker(tls_properties(authority))
    code, message = await alter(broker, client(authority), {"listener.name.ssl.ssl.keystore.location": make(authority)})
    assert (code, problem in message) == (ErrorCode.INVALID_REQUEST, True), message
    await ask_metadata(broker, client(authority))


def rename(authority: Authority, hosts: tuple[str, ...]) -> str:
    """Returns a file with the subject of the broker and other names of hosts."""
    kept = Path(authority.directory / "broker.pem")
    saved = kept.read_text()
    moved = shutil.move(authority.pem("broker", hosts=hosts), authority.directory / "renamed.pem")
    kept.write_text(saved)
    kept.chmod(0o600)
    return str(moved)


async def test_other_changes_of_a_listener_are_refused(authority: Authority, start_broker: StartBroker) -> None:
    broker = await start_broker(tls_properties(authority))
    mine = client(authority)
    for configs, problem in (
        ({"ssl.keystore.location": "/x"}, "can be dynamically updated only per-listener using the listener prefix"),
        (
            {"listener.name.ssl.ssl.client.auth": "none"},
            "Configs cannot be updated dynamically for existing listener SSL",
        ),
    ):
        code, message = await alter(broker, mine, configs)
        assert (code, problem in message) == (ErrorCode.INVALID_REQUEST, True), message


async def test_stored_keys_are_used_after_a_restart(
    authority: Authority, start_broker: StartBroker, tmp_path: Path
) -> None:
    properties = tls_properties(authority)
    broker = await start_broker(properties)
    other = authority.copy("broker", "next")
    assert await alter(broker, client(authority), {"listener.name.ssl.ssl.keystore.location": other}) == (0, "")
    await broker.stop()
    # The file of the properties now has another name: only the stored one is right.
    authority.copy("elsewhere", "broker", hosts=("elsewhere",))
    again = await start_broker(properties)
    await ask_metadata(again, client(authority))


async def test_secrets_are_not_described(authority: Authority, start_broker: StartBroker) -> None:
    properties = tls_properties(authority, ssl_key_password="geheim")
    properties["listener.name.ssl.ssl.key.password"] = "geheim"
    broker = await start_broker(properties)
    security = client_security(client(authority), source="test")
    resource = DescribeConfigsResource(resource_type=BROKER_RESOURCE, resource_name="1", configuration_keys=None)
    async with open_connection(Address("127.0.0.1", broker.port), security=security) as connection:
        response = await connection.send(DESCRIBE_CONFIGS, resources=[resource], include_synonyms=True)
    assert "geheim" not in repr(response)
    found = {config.name: config for config in response.results[0].configs}
    for name in ("ssl.key.password", "listener.name.ssl.ssl.key.password"):
        assert (found[name].value, found[name].is_sensitive) == (None, True)
    assert found["ssl.keystore.location"].value == properties["ssl.keystore.location"]


# Stock clients


def librdkafka(authority: Authority, broker: RunningBroker, certificate: str | None = None) -> dict[str, str]:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": authority.file,
        "message.timeout.ms": "5000",
        "log_level": "0",
    }
    if certificate is not None:
        settings |= {"ssl.certificate.location": certificate, "ssl.key.location": certificate}
    return settings


def produce(settings: dict[str, str], values: list[bytes]) -> tuple[int, list[KafkaError]]:
    """Returns the number of records that were not delivered, and the errors of the client."""
    errors: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": errors.append})
    for value in values:
        producer.produce("orders", value)
    left = 1
    while left and not errors:
        left = producer.flush(0.05)
    producer.purge()
    return left, errors


async def test_librdkafka_writes_with_and_without_a_certificate(
    authority: Authority, start_broker: StartBroker
) -> None:
    broker = await start_broker(tls_properties(authority, ssl_client_auth="requested"))
    values = [bytes([number]) * 50_000 for number in range(50)]
    for certificate in (None, authority.pem("client", hosts=())):
        settings = librdkafka(authority, broker, certificate)
        assert await trio.to_thread.run_sync(produce, settings, values) == (0, [])
    assert [record.value for record in await broker.records("orders")] == values * 2


async def test_librdkafka_fails_without_its_certificate_and_with_another_authority(
    authority: Authority, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = await start_broker(tls_properties(authority, ssl_client_auth="required"))
    other = Authority(tmp_path / "other")
    missing = librdkafka(authority, broker)
    stranger = missing | {"ssl.ca.location": other.file}
    left, errors = await trio.to_thread.run_sync(produce, missing, [b"x"])
    assert left == 1
    assert "alert certificate required" in errors[0].str()
    left, errors = await trio.to_thread.run_sync(produce, stranger, [b"x"])
    assert left == 1
    # The code is _SSL, or _TRANSPORT if librdkafka sees the end of the connection first; the text is the same.
    assert "certificate verify failed" in errors[0].str()


async def test_the_client_of_kbroker_writes_and_reads_large_records(
    authority: Authority, start_broker: StartBroker
) -> None:
    broker = await start_broker(tls_properties(authority))
    values = [os.urandom(900_000) for _ in range(5)]
    await broker.produce("large", values)
    assert [record.value for record in await broker.records("large")] == values
    security = client_security(client(authority), source="test")
    async with open_cluster([Address("localhost", broker.port)], security=security) as cluster:
        assert [topic.name for topic in await cluster.topics()] == ["large"]
