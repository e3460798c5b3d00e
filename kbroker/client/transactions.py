"""Transactions as an administrator sees them: listed over all brokers, described and ended by their coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.connection import Connection
from kbroker.client.failures import BrokerRefusal, ConnectionFailed
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api

__all__ = [
    "ListedTransaction",
    "TransactionDescription",
    "abort_transaction",
    "describe_transaction",
    "list_transactions",
]

INIT_PRODUCER_ID: Final = api(22)
DESCRIBE_TRANSACTIONS: Final = api(65)
LIST_TRANSACTIONS: Final = api(66)

_ONGOING: Final = "Ongoing"
_NO_SUCH: Final = "there is no such transactional id"


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


class TransactionDescription(NamedTuple):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    """Of the transaction that is open, or was last; -1: there was none."""
    partitions: Mapping[str, tuple[int, ...]]


async def list_transactions(cluster: Cluster, *, states: Iterable[str] = ()) -> list[ListedTransaction]:
    """Of all brokers, sorted by id."""
    await cluster.refresh([])
    found: dict[str, ListedTransaction] = {}
    for node_id in cluster.brokers:
        for each in await _list_transactions_of(cluster, node_id, list(states)):
            found[each.transactional_id] = each
    return [each for _, each in sorted(found.items())]


async def _list_transactions_of(cluster: Cluster, node_id: int, states: list[str]) -> list[ListedTransaction]:
    patience = cluster.patience()
    while True:
        connection = await cluster.broker_connection(node_id)
        response = await connection.ask(LIST_TRANSACTIONS, state_filters=states)
        if response.error_code == ErrorCode.NONE:
            return [
                ListedTransaction(each.transactional_id, each.producer_id, each.transaction_state, node_id)
                for each in response.transaction_states
            ]
        refusal = BrokerRefusal(response.error_code, f"the transactions of broker {node_id}")
        if not refusal.code.retriable:
            raise refusal
        await patience.pause(refusal)


async def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    async def ask(connection: Connection) -> tuple[int, TransactionDescription]:
        response = await connection.ask(DESCRIBE_TRANSACTIONS, transactional_ids=[transactional_id])
        (found,) = response.transaction_states
        return found.error_code, TransactionDescription(
            found.transactional_id,
            found.transaction_state,
            found.producer_id,
            found.producer_epoch,
            found.transaction_timeout_ms,
            found.transaction_start_time_ms,
            {each.topic: tuple(sorted(each.partitions)) for each in found.topics},
        )

    description: TransactionDescription = await _ask_coordinator(cluster, transactional_id, ask)
    return description


async def abort_transaction(cluster: Cluster, transactional_id: str) -> bool:
    """Ends what is open and fences its producer, by taking its place. False: nothing was open, and nobody is fenced."""
    found = await describe_transaction(cluster, transactional_id)
    if found.state != _ONGOING:
        return False

    async def ask(connection: Connection) -> tuple[int, None]:
        response = await connection.ask(
            INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout_ms=found.timeout_ms
        )
        return response.error_code, None

    await _ask_coordinator(cluster, transactional_id, ask)
    return True


async def _ask_coordinator(
    cluster: Cluster, transactional_id: str, ask: Callable[[Connection], Awaitable[tuple[int, Any]]]
) -> Any:
    """`ask` returns an error code and a value; again while the coordinator comes up, or is busy with the id."""
    patience = cluster.patience()
    while True:
        failure: UserError
        try:
            code, value = await ask(await cluster.coordinator_connection(transactional_id, is_transaction=True))
        except ConnectionFailed as broken:
            failure = broken
        else:
            if code == ErrorCode.NONE:
                return value
            reason = _NO_SUCH if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND else None
            failure = BrokerRefusal(code, f"transaction {transactional_id}", reason)
            if not failure.code.retriable:
                raise failure
        await patience.pause(failure)
