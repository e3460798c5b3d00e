"""Changes that the controller makes: sends one, and retries while the controller is unknown or moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, CouldNotConnect
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["send_to_controller"]


async def send_to_controller(cluster: Cluster, subject: str, send: Callable[[BrokerConnection], Awaitable[Any]]) -> Any:
    """Sends a change to the controller and returns its only result.

    Retries while the controller is unknown or moves.
    """
    backoff = cluster.backoff()
    while True:
        try:
            result = await send(await cluster.controller_connection())
        except ConnectionFailed as failure:
            await backoff.pause(_with_advice(failure, subject))
            await cluster.refresh([])
            continue
        if result.error_code == ErrorCode.NONE:
            return result
        refusal = BrokerRefusal(result.error_code, subject, getattr(result, "error_message", None))
        if refusal.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED):
            raise refusal
        await backoff.pause(refusal)
        await cluster.refresh([])


def _with_advice(failure: ConnectionFailed, subject: str) -> ConnectionFailed:
    """Says that the change may still happen, unless the request was never sent.

    A controller that has lost ZooKeeper does not answer, but writes the change when ZooKeeper is back, as Apache Kafka.
    """
    if isinstance(failure, CouldNotConnect):
        return failure
    advice = f"the controller may still make the change to {subject}, so look at it before you try again"
    return ConnectionFailed(failure.address, f"{failure}; {advice}")
