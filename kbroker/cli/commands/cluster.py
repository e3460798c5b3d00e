"""`kbroker cluster`: brokers, controller, and the state of all partitions. The moves of replicas: reassignment.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.command import Command, Group, bootstrap_option, json_option
from kbroker.cli.commands.reassignment import balance, drain, moves, reassign, replace
from kbroker.cli.output import pluralize, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

__all__ = ["command"]


@click.group("cluster", cls=Group)
def command() -> None:
    """Describe the cluster, and move replicas between its brokers."""


@command.command(
    "describe",
    cls=Command,
    examples=[
        ("kbroker cluster describe", "Show brokers, topic and partition counts"),
        ("kbroker cluster describe --apis --json", "Include supported APIs, print JSON"),
        ("kbroker cluster describe --features", "Include feature levels, as kafka-features does"),
    ],
)
@click.option("--apis", "with_apis", is_flag=True, help="Include the APIs and versions that the broker supports.")
@click.option("--features", "with_features", is_flag=True, help="Include the feature levels of the cluster.")
@json_option
@bootstrap_option
def describe(with_apis: bool, with_features: bool, as_json: bool, bootstrap: str) -> None:
    """Describe brokers, controller and partition state."""
    described = run_with_cluster(bootstrap, _describe)
    if not with_apis:
        del described["apis"]
    if not with_features:
        del described["features"]
    if as_json:
        print_json(described)
        return
    click.echo(f"Cluster ID: {described['cluster_id'] or 'none'}")
    partitions = described["partitions"]
    topics, total = pluralize(described["topics"], "topic"), pluralize(partitions["total"], "partition")
    offline, under_replicated = partitions["without_leader"], partitions["under_replicated"]
    click.echo(f"{topics}, {total} ({offline} offline, {under_replicated} under-replicated)")
    click.echo()
    rows = [
        [broker["id"], broker["host"], broker["port"], broker["rack"], "yes" if broker["controller"] else ""]
        for broker in described["brokers"]
    ]
    print_table(["broker", "host", "port", "rack", "controller"], rows)
    for broker in described["brokers"]:
        for problem in _disk_problems(broker):
            click.echo(problem)
    if described["zookeeper"] is not None:
        _print_zookeeper(described["zookeeper"])
    if with_apis:
        click.echo()
        rows = [[api["key"], api["name"], api["first"], api["last"]] for api in described["apis"]]
        print_table(["key", "api", "min version", "max version"], rows)
    if with_features:
        click.echo()
        columns = ["feature", "finalized", "supported_min", "supported_max"]
        rows = [[feature[name] for name in columns] for feature in described["features"]]
        print_table([name.replace("_", " ") for name in columns], rows)


def _disk_problems(broker: dict[str, Any]) -> Iterator[str]:
    for directory in broker["log_dirs"]:
        if directory["error"] is not None:
            yield f"The data directory {directory['path']} of broker {broker['id']} is offline ({directory['error']})."
        elif directory["usable_bytes"] == 0:
            yield f"The disk of broker {broker['id']} is full: {directory['path']} accepts no records."


def _print_zookeeper(zookeeper: dict[str, Any]) -> None:
    click.echo()
    rows = [[server["address"], server["state"], server["version"]] for server in zookeeper["servers"]]
    print_table(["zookeeper", "state", "version"], rows)
    if zookeeper["problem"] is not None:
        click.echo(zookeeper["problem"])


async def _describe(cluster: Cluster) -> dict[str, Any]:
    from kbroker.client.admin.log_dirs import read_disk_space
    from kbroker.client.admin.zookeeper import read_zookeeper_health
    from kbroker.protocol.registry import APIS

    topics = await cluster.topics()
    partitions = [partition for topic in topics for partition in topic.partitions]
    connection = await cluster.any_connection()
    names = {api.key: api.name for api in APIS}
    zookeeper = await read_zookeeper_health(cluster)
    return {
        "cluster_id": cluster.cluster_id,
        "topics": len(topics),
        "partitions": {
            "total": len(partitions),
            "without_leader": sum(partition.leader < 0 for partition in partitions),
            "under_replicated": sum(len(partition.isr) < len(partition.replicas) for partition in partitions),
        },
        "brokers": [
            {
                "id": broker.node_id,
                "host": broker.address.host,
                "port": broker.address.port,
                "rack": broker.rack,
                "controller": broker.node_id == cluster.controller_id,
                "log_dirs": [
                    {name: value for name, value in directory._asdict().items() if name != "replicas"}
                    for directory in await read_disk_space(cluster, broker.node_id)
                ],
            }
            for broker in sorted(cluster.brokers.values())
        ],
        "zookeeper": None
        if zookeeper is None
        else {
            "path": zookeeper.path,
            "servers": [
                {"address": str(server.address), "state": server.state, "version": server.version}
                for server in zookeeper.servers
            ],
            "problem": zookeeper.problem,
        },
        "features": [
            {"feature": name, "finalized": connection.features.get(name), "supported_min": first, "supported_max": last}
            for name, (first, last) in sorted(connection.supported_features.items())
        ],
        "apis": [
            {"key": key, "name": names.get(key), "first": first, "last": last}
            for key, (first, last) in sorted(connection.versions.items())
        ],
    }


for moving_command in (balance, drain, replace, reassign, moves):
    command.add_command(moving_command)
