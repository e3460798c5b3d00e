"""A broker in the test's own trio loop."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import trio
from confluent_kafka.admin import AdminClient

import kbroker.testing
from kbroker.errors import UserError
from tests.broker.batches import make_batch
from tests.broker.wire import connect


def directories(path: Path) -> list[str]:
    return sorted(os.listdir(path))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made, for one test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def test_it_yields_the_address_that_clients_connect_to(temporary: Path) -> None:
    async with kbroker.testing.run_broker(topics=["orders:3"]) as bootstrap:
        host, _, port = bootstrap.partition(":")
        assert (host, int(port)) == ("127.0.0.1", bootstrap.broker.port)
        async with connect(int(port)) as client:
            assert len((await client.topic_metadata("orders")).partitions) == 3
            assert (await client.produce("orders", make_batch())).error_code == 0


async def test_nothing_is_left_behind(temporary: Path) -> None:
    async with kbroker.testing.run_broker(topics=["orders"]):
        assert len(directories(temporary)) == 1
    assert directories(temporary) == []


async def test_nothing_is_left_behind_by_a_test_that_fails_and_its_exception_comes_as_itself(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        async with kbroker.testing.run_broker():
            raise ZeroDivisionError
    assert raised.value.__context__ is None
    assert directories(temporary) == []


async def test_what_caused_an_exception_stays_with_it(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        async with kbroker.testing.run_broker():
            raise ZeroDivisionError from KeyError("the cause")
    assert isinstance(raised.value.__cause__, KeyError)


async def test_cancelling_the_test_stops_the_broker(temporary: Path) -> None:
    with trio.CancelScope() as scope:
        async with kbroker.testing.run_broker():
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert directories(temporary) == []


async def test_a_directory_that_is_given_is_kept_and_opened_again(tmp_path: Path) -> None:
    async with kbroker.testing.run_broker(data_dir=tmp_path / "data", topics=["orders"]):
        pass
    async with kbroker.testing.run_broker(data_dir=tmp_path / "data") as bootstrap:
        assert bootstrap.broker.topics == ["orders"]


async def test_settings_act(temporary: Path) -> None:
    running = kbroker.testing.run_broker(num_partitions=4, topics=["orders"])
    async with running as bootstrap, connect(bootstrap.broker.port) as client:
        assert len((await client.topic_metadata("orders")).partitions) == 4


async def test_topics_come_and_go(temporary: Path) -> None:
    async with kbroker.testing.run_broker() as bootstrap:
        broker = bootstrap.broker
        await broker.create_topic("orders", 2, cleanup_policy="compact")
        assert broker.topics == ["orders"]
        with pytest.raises(UserError, match="orders"):
            await broker.create_topic("orders")
        await broker.delete_topic("orders")
        assert broker.topics == []
        with pytest.raises(UserError, match="orders"):
            await broker.delete_topic("orders")


async def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with kbroker.testing.run_broker(data_dir=tmp_path):
        with pytest.raises(UserError, match="Failed to acquire lock on file"):
            async with kbroker.testing.run_broker(data_dir=tmp_path):
                pass


async def test_a_topic_that_cannot_be_is_refused_with_its_name(temporary: Path) -> None:
    with pytest.raises(UserError, match="or/ders"):
        async with kbroker.testing.run_broker(topics=["or/ders"]):
            pass
    assert directories(temporary) == []


async def test_a_broker_that_was_stopped_says_so(temporary: Path) -> None:
    async with kbroker.testing.run_broker() as bootstrap:
        await bootstrap.broker.stop()
        with pytest.raises(UserError, match="not running"):
            await bootstrap.broker.create_topic("orders")


async def test_several_brokers_live_side_by_side(temporary: Path) -> None:
    async with (
        kbroker.testing.run_broker(topics=["a"]) as one,
        kbroker.testing.run_broker(topics=["b"]) as other,
    ):
        assert one != other
        assert (one.broker.topics, other.broker.topics) == (["a"], ["b"])


def test_the_package_names_what_it_offers_and_nothing_else() -> None:
    assert set(kbroker.testing.__all__) <= set(dir(kbroker.testing))
    for name in kbroker.testing.__all__:
        assert getattr(kbroker.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="Brocker"):
        kbroker.testing.Brocker  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_users_log_in_and_others_do_not(mechanism: str) -> None:
    async with kbroker.testing.run_broker(topics=["orders"], users={"alice": 'a "secret";'}) as bootstrap:
        broker = bootstrap.broker
        await broker.produce("orders", ["tea"])
        assert [record.value for record in await broker.records("orders", 1)] == [b"tea"]
        settings = broker.client_settings("alice", mechanism)
        assert settings["bootstrap.servers"] == bootstrap
        metadata = await trio.to_thread.run_sync(lambda: AdminClient({**settings}).list_topics("orders", timeout=10))
        assert metadata.topics["orders"].error is None
        with pytest.raises(UserError, match="has no user bob"):
            broker.client_settings("bob")
