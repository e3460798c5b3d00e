"""`kbroker topics`: creates, lists, describes, alters and deletes topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kbroker.cli.command import (
    Command,
    Group,
    bootstrap_option,
    check_topic_name,
    json_option,
    parse_key_values,
    yes_option,
)
from kbroker.cli.commands.configs import check_config_names
from kbroker.cli.commands.reassignment import replicas
from kbroker.cli.commands.topic_copy import copy
from kbroker.cli.name_completion import complete_topic
from kbroker.cli.output import confirm, pluralize, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.errors import UserError
from kbroker.names import uuid_to_text

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster, PartitionInfo, TopicInfo

__all__ = ["command"]


@click.group("topics", cls=Group)
def command() -> None:
    """Create, list, describe, alter, copy and delete topics."""


@command.command(
    "create",
    cls=Command,
    examples=[
        ("kbroker topics create orders --partitions 3", "Create a topic with three partitions"),
        (
            "kbroker topics create customers --config cleanup.policy=compact --if-not-exists",
            "Create a compacted topic unless it exists",
        ),
    ],
)
@click.argument("name", callback=check_topic_name)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="Number of partitions. [default: num.partitions of the broker]",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    metavar="N",
    help="Number of replicas. [default: default.replication.factor of the broker]",
)
@click.option(
    "--config",
    "configs",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parse_key_values,
    help="Set a topic config. Repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@click.option("--validate-only", is_flag=True, help="Validate without creating the topic.")
@json_option
@bootstrap_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: Mapping[str, str],
    if_not_exists: bool,
    validate_only: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Create a topic."""

    async def call(cluster: Cluster) -> None:
        from kbroker.client.failures import BrokerRefusal
        from kbroker.client.topics import BROKER_DEFAULT, create_topic
        from kbroker.protocol.error_codes import ErrorCode

        is_created = not validate_only
        try:
            created = await create_topic(
                cluster,
                name,
                partitions=partitions or BROKER_DEFAULT,
                replication_factor=replication_factor or BROKER_DEFAULT,
                configs=configs,
                validate_only=validate_only,
            )
            count, factor = created.partitions, created.replication_factor
        except BrokerRefusal as refusal:
            if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            if not if_not_exists:
                raise UserError(f"Topic '{name}' already exists. Add --if-not-exists to ignore this.") from None
            is_created = False
            topic = await cluster.topic(name)
            count, factor = len(topic.partitions), _replication_factor(topic)
        if as_json:
            print_json({"topic": name, "created": is_created, "partitions": count, "replication_factor": factor})
        elif validate_only:
            click.echo(f"Topic {name} is valid with {pluralize(count, 'partition')}; nothing was created.")
        elif is_created:
            click.echo(f"Created topic {name} with {pluralize(count, 'partition')}.")
        else:
            click.echo(f"Topic {name} already exists with {pluralize(count, 'partition')}.")

    run_with_cluster(bootstrap, call)


def _replication_factor(topic: TopicInfo) -> int:
    return max((len(partition.replicas) for partition in topic.partitions), default=0)


@command.command(
    "list",
    cls=Command,
    examples=[
        ("kbroker topics list", "List topics with partition counts"),
        ("kbroker topics list --internal --json", "Include internal topics, print JSON"),
        ("kbroker topics list --under-replicated", "List topics with partitions that lack replicas in the ISR"),
        ("kbroker topics list --under-min-isr", "List topics that producers with acks=all cannot write to"),
    ],
)
@click.option(
    "--internal", "with_internal", is_flag=True, help="Include internal topics, for example __consumer_offsets."
)
@click.option(
    "--under-replicated",
    is_flag=True,
    help="List only topics with partitions whose ISR lacks replicas, and these partitions. Includes internal topics.",
)
@click.option(
    "--unavailable",
    is_flag=True,
    help="List only topics with partitions without a leader, and these partitions. Includes internal topics.",
)
@click.option(
    "--under-min-isr",
    is_flag=True,
    help="List only topics with partitions whose ISR is smaller than min.insync.replicas, and these partitions.",
)
@click.option(
    "--at-min-isr",
    is_flag=True,
    help="List only topics with partitions whose ISR is exactly min.insync.replicas, and these partitions.",
)
@json_option
@bootstrap_option
def list_topics(
    with_internal: bool,
    under_replicated: bool,
    unavailable: bool,
    under_min_isr: bool,
    at_min_isr: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """List topics."""
    problems = _Problems(under_replicated, unavailable, under_min_isr, at_min_isr)
    is_filtered = any(problems)

    async def call(cluster: Cluster) -> list[TopicInfo]:
        topics = await cluster.topics()
        if is_filtered:
            return await _with_problems(cluster, topics, problems)
        return [topic for topic in topics if with_internal or not (topic.is_internal or topic.name.startswith("__"))]

    topics = run_with_cluster(bootstrap, call)
    if as_json:
        print_json([{**_summary(topic), **(_details(topic) if is_filtered else {})} for topic in topics])
    elif is_filtered:
        _print_problems(topics)
    elif topics:
        rows = [(topic.name, len(topic.partitions), _replication_factor(topic)) for topic in topics]
        print_table(["topic", "partitions", "replication factor"], rows)
    else:
        _print_no_topics()


class _Problems(NamedTuple):
    """Problems of partitions to look for."""

    under_replicated: bool
    unavailable: bool
    under_min_isr: bool
    at_min_isr: bool

    def of(self, partition: PartitionInfo, min_isr: int) -> bool:
        return (
            (self.under_replicated and len(partition.isr) < len(partition.replicas))
            or (self.unavailable and partition.leader < 0)
            or (self.under_min_isr and len(partition.isr) < min_isr)
            or (self.at_min_isr and len(partition.isr) == min_isr)
        )


async def _with_problems(cluster: Cluster, topics: Sequence[TopicInfo], problems: _Problems) -> list[TopicInfo]:
    """Returns the topics that have partitions with one of these problems, with only these partitions."""
    from kbroker.client.configs import min_insync_replicas

    found = []
    for topic in topics:
        reads_config = problems.under_min_isr or problems.at_min_isr
        min_isr = await min_insync_replicas(cluster, topic.name) if reads_config else 1
        partitions = tuple(partition for partition in topic.partitions if problems.of(partition, min_isr))
        if partitions:
            found.append(topic._replace(partitions=partitions))
    return found


def _print_problems(topics: Sequence[TopicInfo]) -> None:
    rows = [(topic.name, *_partition_row(partition)) for topic in topics for partition in topic.partitions]
    if rows:
        print_table(["topic", "partition", "leader", "replicas", "isr"], rows)
    else:
        click.echo("No matching partitions.", err=True)


def _print_no_topics() -> None:
    click.echo("No topics. Run 'kbroker topics create NAME' to create one.", err=True)


def _summary(topic: TopicInfo) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "id": uuid_to_text(topic.topic_id) if topic.has_id else None,
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
    }


@command.command(
    "describe",
    cls=Command,
    examples=[
        ("kbroker topics describe orders", "Show partitions, leaders, replicas and configs of a topic"),
        ("kbroker topics describe --json", "Describe all topics as JSON"),
    ],
)
@click.argument("names", metavar="[NAME]...", nargs=-1, callback=check_topic_name, shell_complete=complete_topic)
@json_option
@bootstrap_option
def describe(names: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """Describe topics: partitions, leaders, replicas and configs.

    Without NAME, describes all topics.
    """

    async def call(cluster: Cluster) -> list[tuple[TopicInfo, dict[str, str | None]]]:
        from kbroker.client.configs import topic_overrides

        topics = [await cluster.topic(name) for name in names] if names else await cluster.topics()
        return [(topic, await topic_overrides(cluster, topic.name)) for topic in topics]

    described = run_with_cluster(bootstrap, call)
    if as_json:
        print_json([{**_summary(topic), "configs": configs, **_details(topic)} for topic, configs in described])
        return
    if not described:
        _print_no_topics()
    for number, (topic, configs) in enumerate(described):
        if number:
            click.echo()
        identity = f" ({uuid_to_text(topic.topic_id)})" if topic.has_id else ""
        click.echo(click.style(f"{topic.name}{identity}", bold=True))
        for name, value in configs.items():
            click.echo(f"  {name}={value}")
        print_table(["partition", "leader", "replicas", "isr"], list(map(_partition_row, topic.partitions)))


def _partition_row(partition: PartitionInfo) -> tuple[int, str, str, str]:
    return (
        partition.number,
        _leader_text(partition.leader),
        _ids_text(partition.replicas),
        _ids_text(partition.isr),
    )


def _details(topic: TopicInfo) -> dict[str, Any]:
    return {
        "partitions": [
            {
                "partition": partition.number,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replicas,
                "isr": partition.isr,
                "offline_replicas": partition.offline_replicas,
            }
            for partition in topic.partitions
        ]
    }


def _leader_text(node_id: int) -> str:
    return "none" if node_id < 0 else str(node_id)


def _ids_text(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, node_ids))


@command.command(
    "alter",
    cls=Command,
    examples=[
        ("kbroker topics alter orders --partitions 6", "Increase the number of partitions; it cannot be decreased"),
        ("kbroker topics alter orders --config retention.ms=3600000", "Keep records for one hour"),
        ("kbroker topics alter orders --delete-config retention.ms", "Reset a config to its default"),
    ],
)
@click.argument("name", callback=check_topic_name, shell_complete=complete_topic)
@click.option(
    "--partitions", type=click.IntRange(1), metavar="N", help="New number of partitions; must be larger than now."
)
@click.option(
    "--config",
    "configs",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parse_key_values,
    help="Set a topic config. Repeatable.",
)
@click.option(
    "--delete-config", "deleted", metavar="KEY", multiple=True, help="Reset a config to its default. Repeatable."
)
@bootstrap_option
def alter(
    name: str, partitions: int | None, configs: Mapping[str, str], deleted: Sequence[str], bootstrap: str
) -> None:
    """Add partitions to a topic, or change its configs."""
    if partitions is None and not configs and not deleted:
        raise click.UsageError("Nothing to change. Use --partitions, --config or --delete-config.")

    async def call(cluster: Cluster) -> None:
        from kbroker.client.configs import ConfigChange, alter_configs
        from kbroker.client.topics import create_partitions
        from kbroker.config.resources import ConfigOperation, ConfigResourceType

        await cluster.topic(name)
        await check_config_names(cluster, ConfigResourceType.TOPIC, name, deleted)
        changes = [ConfigChange(ConfigOperation.SET, key, value) for key, value in configs.items()]
        changes += [ConfigChange(ConfigOperation.DELETE, key) for key in deleted]
        if changes:
            await alter_configs(cluster, ConfigResourceType.TOPIC, name, changes)
        if partitions is not None:
            await create_partitions(cluster, name, partitions)

    run_with_cluster(bootstrap, call)
    click.echo(f"Altered topic {name}.")


@command.command(
    "delete",
    cls=Command,
    examples=[
        ("kbroker topics delete orders", "Delete a topic; asks for confirmation on a terminal"),
        ("kbroker topics delete orders customers --yes", "Delete two topics without confirmation"),
    ],
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topic)
@yes_option
@click.option("--if-exists", is_flag=True, help="Skip topics that do not exist.")
@bootstrap_option
def delete(names: Sequence[str], yes: bool, if_exists: bool, bootstrap: str) -> None:
    """Delete topics and all their records."""
    confirm(f"Delete {', '.join(names)} and all records?", yes=yes)

    async def call(cluster: Cluster) -> None:
        from kbroker.client.failures import NoSuchTopic
        from kbroker.client.topics import delete_topic

        for name in names:
            try:
                await cluster.topic(name)
            except NoSuchTopic:
                if if_exists:
                    continue
                raise
            await delete_topic(cluster, name)
            click.echo(f"Deleted topic {name}.")

    run_with_cluster(bootstrap, call)


command.add_command(copy)
command.add_command(replicas)
