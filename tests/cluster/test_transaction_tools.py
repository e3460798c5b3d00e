"""Lists, describes and aborts transactions through each of three kbrokers: the command line, and an admin client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin._transactions import AbortTransactionSpec

from kbroker.coordinator.placement import partition_for
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, all_brokers_live
from tests.cluster.stock_clients import read_committed, transactional_producer
from tests.cluster.test_replication import TOPIC, create

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

BROKERS = (1, 2, 3)


def address(cluster: RunningCluster, broker_id: int) -> str:
    return f"127.0.0.1:{cluster.brokers[broker_id].port}"


def names_for_each_coordinator(purpose: str) -> list[str]:
    """Returns three transactional ids, one for each partition of __transaction_state."""
    found = {partition_for(name := f"{purpose}{number}", len(BROKERS)): name for number in range(100)}
    return [found[index] for index in range(len(BROKERS))]


def open_transaction(cluster: RunningCluster, name: str, partition: int) -> Producer:
    producer = transactional_producer(cluster.bootstrap, name)
    producer.begin_transaction()
    producer.produce(TOPIC, name.encode(), partition=partition)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    return producer


def kbroker(cluster: RunningCluster, broker_id: int, *arguments: str) -> str:
    command = [sys.executable, "-m", "kbroker", "transactions", *arguments]
    command += ["--bootstrap", address(cluster, broker_id)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=2 * TIMEOUT_SECONDS).stdout


@contextmanager
def admin_client(cluster: RunningCluster, broker_id: int) -> Iterator[Any]:
    admin: Any = KafkaAdminClient(bootstrap_servers=address(cluster, broker_id))
    try:
        yield admin
    finally:
        admin.close()


def check_command_line(cluster: RunningCluster) -> None:
    names = names_for_each_coordinator("cli")
    opened = [open_transaction(cluster, name, index) for index, name in enumerate(names)]
    states = dict.fromkeys(names, "Ongoing")
    for broker_id, name in zip(BROKERS, names, strict=True):
        listed = json.loads(kbroker(cluster, broker_id, "list", "--json"))
        assert {row["transactional_id"]: row["state"] for row in listed} == states
        assert {row["coordinator_id"] for row in listed} == set(BROKERS)
        described = json.loads(kbroker(cluster, broker_id, "describe", *names, "--json"))
        assert [(row["transactional_id"], row["state"]) for row in described] == list(states.items())
        assert [row["partitions"] for row in described if row["state"] == "Ongoing"] == [
            {TOPIC: [index]} for index, name in enumerate(names) if states[name] == "Ongoing"
        ]
        assert kbroker(cluster, broker_id, "abort", name, "--yes") == f"Aborted transaction {name}.\n"
        states[name] = "Empty"
    del opened


def check_admin_client(cluster: RunningCluster) -> None:
    names = names_for_each_coordinator("admin")
    opened = [open_transaction(cluster, name, index) for index, name in enumerate(names)]
    for index, (broker_id, name) in enumerate(zip(BROKERS, names, strict=True)):
        with admin_client(cluster, broker_id) as admin:
            by_broker = admin.list_transactions(state_filters=["Ongoing"])
            listed = sorted(row.transactional_id for rows in by_broker.values() for row in rows)
            assert (listed, all(by_broker.values())) == (sorted(names), True)
            described = admin.describe_transactions(names)
            assert {found.coordinator_id for found in described.values()} == set(BROKERS)
            found, partition = described[name], TopicPartition(TOPIC, index)
            assert (found.state, found.topic_partitions) == ("Ongoing", {partition})
            admin.abort_transaction(
                AbortTransactionSpec(partition, found.producer_id, found.producer_epoch, coordinator_epoch=0)
            )
            [state] = [
                producer
                for producer in admin.describe_producers([partition])[partition].active_producers
                if producer.producer_id == found.producer_id
            ]
            assert state.current_transaction_start_offset == -1
    for producer in opened:
        producer.abort_transaction(TIMEOUT_SECONDS)


@all_brokers_live
async def test_transactions_are_listed_described_and_aborted_through_each_broker(three: RunningCluster) -> None:
    await create(three)
    for check in (check_command_line, check_admin_client):
        await trio.to_thread.run_sync(check, three)
    for index in range(len(BROKERS)):
        assert await trio.to_thread.run_sync(read_committed, three.bootstrap, TOPIC, index) == []
    assert "Traceback" not in three.log()
