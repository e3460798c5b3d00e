"""`kbroker topics`: make, list, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.calling import call_cluster
from kbroker.cli.command import Command, Group, bootstrap_option, json_option, key_values
from kbroker.cli.output import confirm_deletion, counted, print_json, print_table
from kbroker.errors import UserError
from kbroker.names import topic_name_problem, uuid_to_text

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster, Topic

__all__ = ["command"]


@click.group("topics", cls=Group)
def command() -> None:
    """Make, list, describe, alter and delete topics."""


def _topic_name(_ctx: click.Context, _argument: click.Parameter, given: str | Sequence[str]) -> str | Sequence[str]:
    for name in [given] if isinstance(given, str) else given:
        problem = topic_name_problem(name)
        if problem is not None:
            raise click.BadParameter(problem)
    return given


@command.command(
    "create",
    cls=Command,
    examples=[
        ("kbroker topics create orders --partitions 3", "three partitions, everything else as the broker has it"),
        (
            "kbroker topics create customers --config cleanup.policy=compact --if-not-exists",
            "a compacted topic; fine if there is one already",
        ),
    ],
)
@click.argument("name", callback=_topic_name)
@click.option("--partitions", type=click.IntRange(1), metavar="N", help="How many partitions. [default: the broker's]")
@click.option(
    "--replication-factor", type=click.IntRange(1), metavar="N", help="Copies of each. [default: the broker's]"
)
@click.option("--config", "configs", metavar="KEY=VALUE", multiple=True, callback=key_values, help="A topic config.")
@click.option("--if-not-exists", is_flag=True, help="Leave a topic of this name as it is.")
@click.option("--validate-only", is_flag=True, help="Say whether it could be made, and make nothing.")
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
    """Make a topic."""

    async def call(cluster: Cluster) -> None:
        from kbroker.client.admin import BROKER_DEFAULT, create_topic
        from kbroker.client.failures import BrokerRefusal
        from kbroker.protocol.error_codes import ErrorCode

        is_created = not validate_only
        try:
            made = await create_topic(
                cluster,
                name,
                partitions=partitions or BROKER_DEFAULT,
                replication_factor=replication_factor or BROKER_DEFAULT,
                configs=configs,
                validate_only=validate_only,
            )
            count, factor = made.partitions, made.replication_factor
        except BrokerRefusal as refusal:
            if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            if not if_not_exists:
                raise UserError(f"there is a topic {name} already: add --if-not-exists if that is fine") from None
            is_created = False
            topic = await cluster.topic(name)
            count, factor = len(topic.partitions), _replication_factor(topic)
        if as_json:
            print_json({"topic": name, "created": is_created, "partitions": count, "replication_factor": factor})
        elif validate_only:
            click.echo(f"topic {name} can be made, with {counted(count, 'partition')}")
        else:
            click.echo(
                f"topic {name} {'made' if is_created else 'is there already'}, with {counted(count, 'partition')}"
            )

    call_cluster(bootstrap, call)


def _replication_factor(topic: Topic) -> int:
    return max((len(each.replicas) for each in topic.partitions), default=0)


@command.command(
    "list",
    cls=Command,
    examples=[
        ("kbroker topics list", "the topics of the broker on this machine"),
        ("kbroker topics list --internal --json", "Kafka's own too, for a program"),
    ],
)
@click.option("--internal", "with_internal", is_flag=True, help="Kafka's own topics too, such as __consumer_offsets.")
@json_option
@bootstrap_option
def list_topics(with_internal: bool, as_json: bool, bootstrap: str) -> None:
    """List the topics."""
    topics = [
        each
        for each in call_cluster(bootstrap, lambda cluster: cluster.topics())
        if with_internal or not (each.is_internal or each.name.startswith("__"))
    ]
    if as_json:
        print_json([_summary(each) for each in topics])
    elif topics:
        rows = [(each.name, len(each.partitions), _replication_factor(each)) for each in topics]
        print_table(["topic", "partitions", "replication factor"], rows)
    else:
        _say_that_there_are_none()


def _say_that_there_are_none() -> None:
    click.echo("there are no topics: 'kbroker topics create NAME' makes one", err=True)


def _summary(topic: Topic) -> dict[str, Any]:
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
        ("kbroker topics describe orders", "its partitions, their leaders and replicas, and the configs set on it"),
        ("kbroker topics describe --json", "all topics, for a program"),
    ],
)
@click.argument("names", metavar="[NAME]...", nargs=-1, callback=_topic_name)
@json_option
@bootstrap_option
def describe(names: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """Show partitions, leaders, replicas and configs of topics; of all if none is named."""

    async def call(cluster: Cluster) -> list[tuple[Topic, dict[str, str | None]]]:
        topics = [await cluster.topic(name) for name in names] if names else await cluster.topics()
        return [(topic, await _own_configs(cluster, topic.name)) for topic in topics]

    described = call_cluster(bootstrap, call)
    if as_json:
        print_json([{**_summary(topic), "configs": configs, **_details(topic)} for topic, configs in described])
        return
    if not described:
        _say_that_there_are_none()
    for number, (topic, configs) in enumerate(described):
        if number:
            click.echo()
        identity = f" ({uuid_to_text(topic.topic_id)})" if topic.has_id else ""
        click.echo(click.style(f"{topic.name}{identity}", bold=True))
        for name, value in configs.items():
            click.echo(f"  {name}={value}")
        rows = [(each.number, _leader(each.leader), _ids(each.replicas), _ids(each.isr)) for each in topic.partitions]
        print_table(["partition", "leader", "replicas", "in sync"], rows)


def _details(topic: Topic) -> dict[str, Any]:
    return {
        "partitions": [
            {
                "partition": each.number,
                "leader": each.leader,
                "leader_epoch": each.leader_epoch,
                "replicas": each.replicas,
                "isr": each.isr,
                "offline_replicas": each.offline_replicas,
            }
            for each in topic.partitions
        ]
    }


def _leader(node_id: int) -> str:
    return "none" if node_id < 0 else str(node_id)


def _ids(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, node_ids))


async def _own_configs(cluster: Cluster, name: str) -> dict[str, str | None]:
    """What is set on the topic itself; nothing where the broker cannot say."""
    from kbroker.client.admin import ConfigSource, ResourceType, describe_configs
    from kbroker.client.failures import NotServed

    try:
        entries = await describe_configs(cluster, ResourceType.TOPIC, name)
    except NotServed:
        return {}
    return {each.name: each.value for each in entries if each.source == ConfigSource.TOPIC}


@command.command(
    "alter",
    cls=Command,
    examples=[
        ("kbroker topics alter orders --partitions 6", "more partitions; there is no way back to fewer"),
        ("kbroker topics alter orders --config retention.ms=3600000", "keep records for an hour"),
        ("kbroker topics alter orders --delete-config retention.ms", "back to the broker's default"),
    ],
)
@click.argument("name", callback=_topic_name)
@click.option("--partitions", type=click.IntRange(1), metavar="N", help="How many it has afterwards: more than now.")
@click.option("--config", "configs", metavar="KEY=VALUE", multiple=True, callback=key_values, help="A config to set.")
@click.option("--delete-config", "deleted", metavar="KEY", multiple=True, help="A config to take back.")
@bootstrap_option
def alter(
    name: str, partitions: int | None, configs: Mapping[str, str], deleted: Sequence[str], bootstrap: str
) -> None:
    """Give a topic more partitions, or change its configs."""
    if partitions is None and not configs and not deleted:
        raise click.UsageError("nothing to alter: give --partitions, --config or --delete-config")

    async def call(cluster: Cluster) -> None:
        from kbroker.client.admin import ConfigChange, ConfigOperation, ResourceType, alter_configs, create_partitions

        await cluster.topic(name)
        changes = [ConfigChange(ConfigOperation.SET, key, value) for key, value in configs.items()]
        changes += [ConfigChange(ConfigOperation.DELETE, key) for key in deleted]
        if changes:
            await alter_configs(cluster, ResourceType.TOPIC, name, changes)
        if partitions is not None:
            await create_partitions(cluster, name, partitions)

    call_cluster(bootstrap, call)
    click.echo(f"topic {name} altered")


@command.command(
    "delete",
    cls=Command,
    examples=[
        ("kbroker topics delete orders", "asks first, on a terminal"),
        ("kbroker topics delete orders customers --yes", "two, without a question"),
    ],
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--if-exists", is_flag=True, help="Pass over topics that are not there.")
@bootstrap_option
def delete(names: Sequence[str], yes: bool, if_exists: bool, bootstrap: str) -> None:
    """Delete topics and all their records."""
    confirm_deletion(names, "every record", yes=yes)

    async def call(cluster: Cluster) -> None:
        from kbroker.client.admin import delete_topic
        from kbroker.client.failures import NoSuchTopic

        for name in names:
            try:
                await cluster.topic(name)
            except NoSuchTopic:
                if if_exists:
                    continue
                raise
            await delete_topic(cluster, name)
            click.echo(f"topic {name} deleted")

    call_cluster(bootstrap, call)
