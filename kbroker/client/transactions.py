"""Admin operations on transactions: lists the transactions of all brokers, describes and aborts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.coordinator import send_to_transaction_coordinator
from kbroker.client.failures import BrokerRefusal
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
    """Start time of the ongoing or last transaction, in ms since the epoch; -1 if there was none."""
    partitions: Mapping[str, tuple[int, ...]]


async def list_transactions(cluster: Cluster, *, states: Iterable[str] = ()) -> list[ListedTransaction]:
    """Lists the transactions of all brokers, sorted by transactional id."""
    wanted = list(states)
    found: dict[str, ListedTransaction] = {}
    for listed in await cluster.ask_each_broker(lambda node_id: _list_transactions_of(cluster, node_id, wanted)):
        for transaction in listed:
            found[transaction.transactional_id] = transaction
    return [transaction for _, transaction in sorted(found.items())]


async def _list_transactions_of(cluster: Cluster, node_id: int, states: list[str]) -> list[ListedTransaction]:
    backoff = cluster.backoff()
    while True:
        connection = await cluster.broker_connection(node_id)
        response = await connection.send(LIST_TRANSACTIONS, state_filters=states)
        if response.error_code == ErrorCode.NONE:
            return [
                ListedTransaction(state.transactional_id, state.producer_id, state.transaction_state, node_id)
                for state in response.transaction_states
            ]
        refusal = BrokerRefusal(response.error_code, f"transactions of broker {node_id}")
        if not refusal.code.retriable:
            raise refusal
        await backoff.pause(refusal)


async def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    async def send(connection: BrokerConnection) -> tuple[int, TransactionDescription]:
        response = await connection.send(DESCRIBE_TRANSACTIONS, transactional_ids=[transactional_id])
        (found,) = response.transaction_states
        return found.error_code, TransactionDescription(
            found.transactional_id,
            found.transaction_state,
            found.producer_id,
            found.producer_epoch,
            found.transaction_timeout_ms,
            found.transaction_start_time_ms,
            {topic.topic: tuple(sorted(topic.partitions)) for topic in found.topics},
        )

    description: TransactionDescription = await send_to_transaction_coordinator(cluster, transactional_id, send)
    return description


async def abort_transaction(cluster: Cluster, transactional_id: str) -> bool:
    """Aborts the ongoing transaction by fencing its producer with InitProducerId.

    Returns False, and fences no producer, if no transaction is ongoing.
    """
    found = await describe_transaction(cluster, transactional_id)
    if found.state != _ONGOING:
        return False

    async def send(connection: BrokerConnection) -> tuple[int, None]:
        response = await connection.send(
            INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout_ms=found.timeout_ms
        )
        return response.error_code, None

    await send_to_transaction_coordinator(cluster, transactional_id, send)
    return True
