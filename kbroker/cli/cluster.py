"""`kbroker cluster`: the brokers that answer, who of them controls, and whether all partitions are well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.calling import call_cluster
from kbroker.cli.command import Command, Group, bootstrap_option, json_option
from kbroker.cli.output import counted, print_json, print_table

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

__all__ = ["command"]


@click.group("cluster", cls=Group)
def command() -> None:
    """Show what the cluster is made of."""


@command.command(
    "describe",
    cls=Command,
    examples=[
        ("kbroker cluster describe", "brokers, topics, and partitions that lack a leader or a replica"),
        ("kbroker cluster describe --apis --json", "the APIs that the broker serves too, for a program"),
    ],
)
@click.option("--apis", "with_apis", is_flag=True, help="Which APIs the broker serves, and in which versions.")
@json_option
@bootstrap_option
def describe(with_apis: bool, as_json: bool, bootstrap: str) -> None:
    """Show the brokers of the cluster, and how its partitions are."""
    described = call_cluster(bootstrap, _describe)
    if not with_apis:
        del described["apis"]
    if as_json:
        print_json(described)
        return
    click.echo(f"cluster {described['cluster_id'] or 'without an id'}")
    partitions = described["partitions"]
    topics, total = counted(described["topics"], "topic"), counted(partitions["total"], "partition")
    click.echo(f"{topics} with {total}, {_health(partitions)}")
    click.echo()
    rows = [
        [each["id"], each["host"], each["port"], each["rack"], "yes" if each["controller"] else ""]
        for each in described["brokers"]
    ]
    print_table(["broker", "host", "port", "rack", "controller"], rows)
    if with_apis:
        click.echo()
        rows = [[each["key"], each["name"], each["first"], each["last"]] for each in described["apis"]]
        print_table(["key", "api", "first version", "last version"], rows)


def _health(partitions: dict[str, int]) -> str:
    if not partitions["without_leader"] and not partitions["under_replicated"]:
        return "all well"
    return f"{partitions['without_leader']} without a leader, {partitions['under_replicated']} under-replicated"


async def _describe(cluster: Cluster) -> dict[str, Any]:
    from kbroker.protocol.registry import APIS

    topics = await cluster.topics()
    partitions = [each for topic in topics for each in topic.partitions]
    connection = await cluster.any_connection()
    names = {each.key: each.name for each in APIS}
    return {
        "cluster_id": cluster.cluster_id,
        "topics": len(topics),
        "partitions": {
            "total": len(partitions),
            "without_leader": sum(each.leader < 0 for each in partitions),
            "under_replicated": sum(len(each.isr) < len(each.replicas) for each in partitions),
        },
        "brokers": [
            {
                "id": each.node_id,
                "host": each.address.host,
                "port": each.address.port,
                "rack": each.rack,
                "controller": each.node_id == cluster.controller_id,
            }
            for each in sorted(cluster.brokers.values())
        ],
        "apis": [
            {"key": key, "name": names.get(key), "first": first, "last": last}
            for key, (first, last) in sorted(connection.versions.items())
        ],
    }
