"""Requests to the coordinator of a group: finds the coordinator, and retries while it is loading or moving."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, NoSuchGroup
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["send_to_coordinator"]

_HAS_MEMBERS: Final = "the group has active members, and only they can commit offsets"

_REASONS: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_MEMBER_ID: _HAS_MEMBERS,
    ErrorCode.REBALANCE_IN_PROGRESS: _HAS_MEMBERS,
    ErrorCode.STALE_MEMBER_EPOCH: _HAS_MEMBERS,
    ErrorCode.ILLEGAL_GENERATION: _HAS_MEMBERS,
    ErrorCode.NON_EMPTY_GROUP: "the group has active members; stop them first",
}


async def send_to_coordinator(
    cluster: Cluster, group: str, send: Callable[[BrokerConnection], Awaitable[tuple[int, Any]]]
) -> Any:
    """Calls `send`, which returns an error code and a value, and returns the value.

    Raises NoSuchGroup if there is no group.
    """
    backoff = cluster.backoff()
    while True:
        failure: UserError
        try:
            code, value = await send(await cluster.coordinator_connection(group))
        except ConnectionFailed as broken:
            failure = broken
        else:
            if code == ErrorCode.NONE:
                return value
            if code == ErrorCode.GROUP_ID_NOT_FOUND:
                raise NoSuchGroup(group)
            failure = BrokerRefusal(code, f"group {group}", _REASONS.get(code))
            if not failure.code.retriable:
                raise failure
        await backoff.pause(failure)
