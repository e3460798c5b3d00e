"""Limits that are changed while a broker runs act at once, and are kept over a restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from kbroker.protocol.messages import alter_client_quotas, incremental_alter_configs
from kbroker.testing.running_broker import running_broker
from tests.broker.batches import make_batch
from tests.broker.wire import Client, connect


async def set_config(client: Client, name: str, value: str) -> None:
    config = incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=value)
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    (answer,) = (await client.ask("IncrementalAlterConfigs", 1, resources=[resource])).responses
    assert answer.error_code == 0, answer.error_message


async def set_quota(client: Client, entity: dict[str, str | None], **quotas: float) -> None:
    entry = alter_client_quotas.EntryData(
        entity=[alter_client_quotas.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[alter_client_quotas.OpData(key=key, value=value, remove=False) for key, value in quotas.items()],
    )
    (answer,) = (await client.ask("AlterClientQuotas", 1, entries=[entry])).entries
    assert answer.error_code == 0, answer.error_message


async def be_served(port: int) -> None:
    async with connect(port) as client:
        assert (await client.ask("ApiVersions", 2)).error_code == 0


async def is_refused(port: int) -> bool:
    """Whether the connection is closed, or gets no response for a while."""
    with trio.move_on_after(0.3):
        try:
            await be_served(port)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, AssertionError, EOFError):
            return True
        return False
    return True


Change = Callable[[Client], Awaitable[None]]


def config(name: str, value: str) -> Change:
    return lambda client: set_config(client, name, value)


@pytest.mark.parametrize(
    "change",
    [
        config("max.connections", "1"),
        config("max.connections.per.ip", "1"),
        config("max.connections.per.ip.overrides", "127.0.0.1:1"),
    ],
    ids=["in all", "from an address", "from this address"],
)
async def test_a_limit_of_connections_acts_at_once(data_dir: Path, change: Change) -> None:
    async with running_broker(data_dir) as broker, connect(broker.port) as client:
        await be_served(broker.port)
        await change(client)
        assert await is_refused(broker.port)
        assert (await client.ask("ApiVersions", 2)).error_code == 0
    async with running_broker(data_dir) as broker, connect(broker.port):
        assert await is_refused(broker.port)


async def test_connections_that_come_too_fast_wait(data_dir: Path) -> None:
    async with running_broker(data_dir) as broker, connect(broker.port) as client:
        await set_config(client, "max.connection.creation.rate", "1")
        for _ in range(9):
            await be_served(broker.port)
        assert any([await is_refused(broker.port) for _ in range(9)])
        await set_config(client, "max.connection.creation.rate", "1000000")
        await be_served(broker.port)


async def test_an_address_that_connects_too_fast_is_refused(data_dir: Path) -> None:
    async with running_broker(data_dir) as broker, connect(broker.port) as client:
        await set_quota(client, {"ip": "127.0.0.1"}, connection_creation_rate=1)
        for _ in range(9):
            await be_served(broker.port)
        assert any([await is_refused(broker.port) for _ in range(9)])


async def is_throttled(client: Client) -> bool:
    """The mute lasts about twenty seconds; the test only checks that the connection is not read for a while."""
    assert (await client.produce("t", make_batch(b"x" * 300_000))).error_code == 0
    with trio.move_on_after(0.1) as scope:
        await client.ask("ApiVersions", 2)
    return scope.cancelled_caught


async def test_a_quota_acts_at_once_and_after_a_restart(data_dir: Path) -> None:
    async with running_broker(data_dir) as broker, connect(broker.port) as client:
        await client.create_topic("t")
        await set_quota(client, {"user": "ANONYMOUS", "client-id": None}, producer_byte_rate=10_000)
        assert await is_throttled(client)
    async with running_broker(data_dir) as broker, connect(broker.port) as client:
        assert await is_throttled(client)
