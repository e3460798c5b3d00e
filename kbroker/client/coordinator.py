"""Requests to the coordinator of a group or of a transaction: finds it, and retries while it is loading or moving."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, NoSuchGroup
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["SendToCoordinator", "send_to_coordinator", "send_to_transaction_coordinator"]

_HAS_MEMBERS: Final = "the group has active members, and only they can commit offsets"

_REASONS: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_MEMBER_ID: _HAS_MEMBERS,
    ErrorCode.REBALANCE_IN_PROGRESS: _HAS_MEMBERS,
    ErrorCode.STALE_MEMBER_EPOCH: _HAS_MEMBERS,
    ErrorCode.ILLEGAL_GENERATION: _HAS_MEMBERS,
    ErrorCode.NON_EMPTY_GROUP: "the group has active members; stop them first",
}

SendToCoordinator = Callable[[BrokerConnection], Awaitable[tuple[int, Any]]]
"""Sends one request, and returns the error code of the response and a value."""


async def send_to_coordinator(cluster: Cluster, group: str, send: SendToCoordinator) -> Any:
    """Returns the value of `send` once it has succeeded. Raises NoSuchGroup if there is no group."""

    def failure_of(code: int) -> UserError:
        if code == ErrorCode.GROUP_ID_NOT_FOUND:
            return NoSuchGroup(group)
        return BrokerRefusal(code, f"group {group}", _REASONS.get(code))

    return await _send(cluster, group, send, failure_of, is_transaction=False)


async def send_to_transaction_coordinator(cluster: Cluster, transactional_id: str, send: SendToCoordinator) -> Any:
    """Returns the value of `send` once it has succeeded. Raises UserError if the transactional id does not exist.

    Also retries while the coordinator completes another transaction of the id.
    """

    def failure_of(code: int) -> UserError:
        if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return UserError(f"Transactional id '{transactional_id}' does not exist.")
        return BrokerRefusal(code, f"transaction {transactional_id}")

    return await _send(cluster, transactional_id, send, failure_of, is_transaction=True)


async def _send(
    cluster: Cluster,
    key: str,
    send: SendToCoordinator,
    failure_of: Callable[[int], UserError],
    *,
    is_transaction: bool,
) -> Any:
    backoff = cluster.backoff()
    while True:
        failure: UserError
        try:
            code, value = await send(await cluster.coordinator_connection(key, is_transaction=is_transaction))
        except ConnectionFailed as broken:
            failure = broken
        else:
            if code == ErrorCode.NONE:
                return value
            failure = failure_of(code)
            if not isinstance(failure, BrokerRefusal) or not failure.code.retriable:
                raise failure
        await backoff.pause(failure)
