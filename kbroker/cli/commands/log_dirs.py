"""`kbroker log-dirs`: data directories of brokers, and the size of the partitions in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.command import Command, Group, bootstrap_option, json_option
from kbroker.cli.name_completion import complete_topic
from kbroker.cli.output import Cell, format_bytes, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster

if TYPE_CHECKING:
    from kbroker.client.admin.log_dirs import LogDir, ReplicaSize
    from kbroker.client.cluster import Cluster

__all__ = ["command"]


@click.group("log-dirs", cls=Group)
def command() -> None:
    """Show the data directories of brokers and the size of their partitions."""


@command.command(
    "describe",
    cls=Command,
    examples=[
        ("kbroker log-dirs describe", "Show the directories of all brokers with their used and free space"),
        ("kbroker log-dirs describe orders", "Show the size of each replica of a topic"),
        ("kbroker log-dirs describe --partitions --broker 1 --json", "Print all replicas of broker 1 as JSON"),
    ],
)
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)
@click.option("--broker", "brokers", type=int, metavar="ID", multiple=True, help="Show only this broker. Repeatable.")
@click.option("--partitions", "with_partitions", is_flag=True, help="Show each replica. Default with TOPIC.")
@json_option
@bootstrap_option
def describe(
    names: Sequence[str], brokers: Sequence[int], with_partitions: bool, as_json: bool, bootstrap: str
) -> None:
    """Describe the data directories of brokers: used and free space, errors, and the replicas in them."""

    async def call(cluster: Cluster) -> list[tuple[int, LogDir]]:
        from kbroker.client.admin.log_dirs import describe_log_dirs

        await cluster.refresh([])
        for name in names:
            await cluster.topic(name)
        found = []
        for broker_id in brokers or sorted(cluster.brokers):
            found += [(broker_id, directory) for directory in await describe_log_dirs(cluster, broker_id)]
        return found

    found = [
        (broker_id, directory, [replica for replica in directory.replicas if not names or replica.topic in names])
        for broker_id, directory in run_with_cluster(bootstrap, call)
    ]
    if as_json:
        print_json([_to_json(broker_id, directory, replicas) for broker_id, directory, replicas in found])
    elif names or with_partitions:
        columns = ["broker", "topic", "partition", "size", "lag", "directory", "state"]
        print_table(
            columns,
            [
                _replica_row(broker_id, directory, replica)
                for broker_id, directory, replicas in found
                for replica in replicas
            ],
        )
    else:
        columns = ["broker", "directory", "partitions", "size", "free", "total", "error"]
        print_table(columns, [_directory_row(broker_id, directory) for broker_id, directory, _ in found])


def _directory_row(broker_id: int, directory: LogDir) -> list[Cell]:
    return [
        broker_id,
        directory.path,
        len(directory.replicas),
        format_bytes(sum(replica.size_bytes for replica in directory.replicas)),
        format_bytes(directory.usable_bytes) if directory.usable_bytes >= 0 else None,
        format_bytes(directory.total_bytes) if directory.total_bytes >= 0 else None,
        directory.error,
    ]


def _replica_row(broker_id: int, directory: LogDir, replica: ReplicaSize) -> list[Cell]:
    return [
        broker_id,
        replica.topic,
        replica.partition,
        format_bytes(replica.size_bytes),
        replica.offset_lag,
        directory.path,
        "moving here" if replica.is_future else None,
    ]


def _to_json(broker_id: int, directory: LogDir, replicas: Sequence[ReplicaSize]) -> dict[str, Any]:
    shown = [replica._asdict() for replica in replicas]
    return {"broker": broker_id, **directory._asdict(), "replicas": shown}
