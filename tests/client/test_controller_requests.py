"""Changes sent to the controller: what the user learns if no answer arrives."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.client.address import Address
from kbroker.client.cluster import Cluster
from kbroker.client.failures import ConnectionFailed, CouldNotConnect
from kbroker.client.retry_backoff import RetryBackoff
from kbroker.client.topics import create_topic

ADDRESS = Address("broker", 9092)


class SilentController:
    """A cluster whose controller does not answer: `failure` is the result of each request."""

    def __init__(self, failure: ConnectionFailed) -> None:
        self._failure = failure

    def backoff(self) -> RetryBackoff:
        return RetryBackoff(0)

    async def controller_connection(self) -> Any:
        return self

    async def send(self, *_request: Any, **_members: Any) -> Any:
        await trio.lowlevel.checkpoint()
        raise self._failure


async def message_of(failure: ConnectionFailed) -> str:
    cluster: Cluster = SilentController(failure)  # type: ignore[assignment]
    with pytest.raises(ConnectionFailed) as raised:
        await create_topic(cluster, "orders")
    return str(raised.value)


async def test_an_unanswered_change_may_still_be_made() -> None:
    timed_out = "Timed out after 30 s waiting for a response from broker:9092"
    assert await message_of(ConnectionFailed(ADDRESS, timed_out)) == (
        f"{timed_out}; the controller may still make the change to topic orders, so look at it before you try again"
    )


async def test_a_change_that_was_not_sent_is_not_made() -> None:
    assert await message_of(CouldNotConnect(ADDRESS)) == "Could not connect to broker:9092"
