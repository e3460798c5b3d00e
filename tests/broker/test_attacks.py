"""Attacks on a secured broker that belong to no single part: sessions that wait, quotas, secrets, names in the log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.address import Address
from kbroker.client.admin.quotas import alter_quotas
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.client.connection import connect as connect_client
from kbroker.client.failures import LoginFailed
from kbroker.config.broker import BrokerConfig
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.testing.running_broker import RunningBroker, running_with
from tests.broker.access_table import build
from tests.broker.batches import make_batch
from tests.broker.conftest import Connect, StartBroker
from tests.broker.test_sasl import LISTENER, USERS, AdvancingClock, connected, log_in, sasl_properties, security_of
from tests.broker.wire import BY_NAME, Client, produce_members

SECRET = "geheim-1234"
BROKER_RESOURCE = 4


@pytest.fixture
async def broker(start_broker: StartBroker) -> RunningBroker:
    return await start_broker(sasl_properties())


@pytest.fixture
async def admin(broker: RunningBroker) -> AsyncIterator[Cluster]:
    security = security_of("alice", USERS["alice"])
    async with open_cluster([Address(broker.host, broker.port)], security=security) as cluster:
        yield cluster


def request_of(client_id: str, api_name: str, version: int, **members: Any) -> bytes:
    asked = BY_NAME[api_name]
    header = REQUEST_HEADER(
        request_api_key=asked.key, request_api_version=version, correlation_id=1, client_id=client_id
    )
    content = codec(REQUEST_HEADER, asked.request_header_version(version)).to_bytes(header)
    content += codec(asked.request, version).to_bytes(asked.request(**members))
    return len(content).to_bytes(4, "big") + content


def vars_of(api_name: str, members: dict[str, Any]) -> dict[str, Any]:
    """Returns the members with their nested messages built."""
    value = build(BY_NAME[api_name].request, members)
    return {name: getattr(value, name) for name in members}


async def join(client: Client, member_id: str = "") -> None:
    await client.send(
        "JoinGroup",
        3,
        **vars_of(
            "JoinGroup",
            {
                "group_id": "billing",
                "session_timeout_ms": 300_000,
                "rebalance_timeout_ms": 300_000,
                "member_id": member_id,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            },
        ),
    )


async def test_a_session_that_ends_while_a_join_waits_serves_no_further_request(data_dir: Path) -> None:
    clock = AdvancingClock()
    properties = {
        "kbroker.log.dir.reserve.bytes": "0",
        "group.initial.rebalance.delay.ms": "0",
        **sasl_properties(connections_max_reauth_ms="60000"),
    }
    config = BrokerConfig.from_properties(properties)
    async with (
        running_with(config, data_dir, [], clock=clock) as broker,
        connected(broker) as first,
        connected(broker) as second,
    ):
        await log_in(first)
        await log_in(second)
        while (await first.ask("FindCoordinator", 2, key="billing", key_type=0)).error_code:
            pass
        while True:
            await join(first)
            joined = await first.receive()
            if joined.error_code == 0:
                break
        await join(second)  # waits until the first member joins again
        beat = {"group_id": "billing", "generation_id": joined.generation_id, "member_id": joined.member_id}
        while (await first.ask("Heartbeat", 1, **beat)).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
            pass
        clock.added += 70
        assert (await log_in(first)).error_code == 0
        await join(first, joined.member_id)
        assert (await first.receive()).error_code == 0
        assert (await second.receive()).error_code == 0  # it was asked for before the end
        await second.send("ListGroups", 2)
        assert await second.wait_closed() == b""
        await first.expect_service()


async def test_another_client_id_does_not_evade_the_quota_of_a_user(
    broker: RunningBroker, admin: Cluster, connect_to: Connect
) -> None:
    await alter_quotas(admin, {"user": "bob"}, limits={"producer_byte_rate": 1.0})
    client = await connect_to(broker)
    await log_in(client, b"\0bob\0b0b")
    await client.create_topic("orders")
    waits = []
    for client_id in ("one", "two", ""):
        async with connected(broker) as other:
            await log_in(other, b"\0bob\0b0b")
            members = produce_members("orders", make_batch(bytes(5000)))
            await other.send_bytes(request_of(client_id, "Produce", 8, **members))
            frame = await other.receive_frame()
            response, _ = codec(BY_NAME["Produce"].response, 8).decode(frame, 4)
            waits.append(response.throttle_time_ms)
    assert all(wait > 0 for wait in waits), waits


async def test_no_secret_is_described_not_even_under_unknown_names(
    start_broker: StartBroker, connect_to: Connect
) -> None:
    properties = sasl_properties()
    jaas = f"{LISTENER}.plain.sasl.jaas.config"
    properties[jaas] = properties[jaas].replace(USERS["alice"], SECRET)
    properties |= {"my.own.secret": SECRET, f"{LISTENER}.unknown.secret": SECRET, "ssl.key.password": SECRET}
    client = await connect_to(await start_broker(properties))
    await log_in(client, f"\0alice\0{SECRET}".encode())
    resource = {"resource_type": BROKER_RESOURCE, "resource_name": "1", "configuration_keys": None}
    response = await client.ask(
        "DescribeConfigs", 4, **vars_of("DescribeConfigs", {"resources": [resource], "include_synonyms": True})
    )
    assert response.results[0].error_code == 0
    assert SECRET not in repr(response)
    found = {config.name: config for config in response.results[0].configs}
    for name in (jaas, "ssl.key.password"):
        assert (found[name].value, found[name].is_sensitive) == (None, True)


async def test_a_name_of_a_client_cannot_forge_a_line_of_the_log(
    start_broker: StartBroker, connect_to: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    acls = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    broker = await start_broker({**sasl_properties(), **acls})
    client = await connect_to(broker)
    await log_in(client)
    forged = "x\r\nINFO forged \x1b[31m"
    topics = [{"name": forged, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}]
    members = vars_of("ListOffsets", {"replica_id": -1, "isolation_level": 0, "topics": topics})
    await client.send_bytes(request_of(forged, "ListOffsets", 5, **members))
    await client.receive_frame()
    await client.send_bytes(request_of(forged, "Produce", 8, acks=7, timeout_ms=1, topic_data=[]))
    await client.send_bytes((8).to_bytes(4, "big") + b"\x7f\xff\x00\x00\x00\x00\x00\x01")  # an API that does not exist
    await client.wait_closed()
    lines = [record.getMessage() for record in caplog.records]
    assert any("forged" in line for line in lines)
    assert [line for line in lines if not line.isprintable()] == []


async def test_a_client_of_scram_never_falls_back_to_plain(start_broker: StartBroker) -> None:
    broker = await start_broker(sasl_properties(sasl_enabled_mechanisms="PLAIN"))
    address = Address(broker.host, broker.port)
    with pytest.raises(LoginFailed, match="SCRAM-SHA-512"):
        await connect_client(address, security=security_of("alice", USERS["alice"], "SCRAM-SHA-512"))


async def test_a_mechanism_that_is_not_enabled_serves_no_token(start_broker: StartBroker, connect_to: Connect) -> None:
    properties = sasl_properties(sasl_enabled_mechanisms="SCRAM-SHA-512")
    broker = await start_broker({name: text for name, text in properties.items() if "jaas" not in name})
    client = await connect_to(broker)
    response = await client.ask("SaslHandshake", 1, mechanism="PLAIN")
    assert (response.error_code, response.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-512"])
    assert await client.wait_closed() == b""


@pytest.mark.parametrize("name", ["LeaderAndIsr", "StopReplica", "UpdateMetadata", "AlterPartition", "Envelope"])
async def test_requests_of_brokers_are_not_served_to_clients_of_a_single_node(
    broker: RunningBroker, connect_to: Connect, name: str
) -> None:
    client = await connect_to(broker)
    await log_in(client)
    await client.send_bytes(request_of("x", name, max(BY_NAME[name].serves or [0])))
    assert await client.wait_closed() == b""
