"""A request to the coordinator of a group: found first, and asked again while it is only coming up, or moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kbroker.client.cluster import Cluster
from kbroker.client.connection import Connection
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, NoSuchGroup
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ask_coordinator"]

_HAS_MEMBERS: Final = "it has members now, and only they may commit"

_REASONS: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_MEMBER_ID: _HAS_MEMBERS,
    ErrorCode.REBALANCE_IN_PROGRESS: _HAS_MEMBERS,
    ErrorCode.STALE_MEMBER_EPOCH: _HAS_MEMBERS,
    ErrorCode.ILLEGAL_GENERATION: _HAS_MEMBERS,
    ErrorCode.NON_EMPTY_GROUP: "it has members: stop them first",
}


async def ask_coordinator(cluster: Cluster, group: str, ask: Callable[[Connection], Awaitable[tuple[int, Any]]]) -> Any:
    """`ask` returns an error code and a value. A group that is not there is NoSuchGroup."""
    patience = cluster.patience()
    while True:
        failure: UserError
        try:
            code, value = await ask(await cluster.coordinator_connection(group))
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
        await patience.pause(failure)
