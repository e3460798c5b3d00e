"""`kbroker topics copy`: copies the records of a topic, within a cluster or to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kbroker.cli.command import Command, bootstrap_option, check_topic_name, json_option
from kbroker.cli.name_completion import complete_topic
from kbroker.cli.output import pluralize, print_json, progress
from kbroker.cli.run_with_cluster import run_with_cluster, security_of
from kbroker.cli.timestamps import since_option, until_option
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.cli.record_range import RecordRange
    from kbroker.client.cluster import Cluster, TopicInfo
    from kbroker.client.connection_security import ConnectionSecurity
    from kbroker.client.producing import Producer
    from kbroker.protocol.records import Record

__all__ = ["copy"]

_PROGRESS_MIN_RECORDS = 10_000


@click.command(
    "copy",
    cls=Command,
    examples=[
        ("kbroker topics copy orders orders-backup", "Copy a topic with its partitions and configs"),
        (
            "kbroker topics copy orders orders --to staging.example.com:9092 --since 1h",
            "Copy the records of the last hour to another cluster",
        ),
        ("kbroker topics copy orders orders-copy --to-profile staging --append", "Add records to an existing topic"),
    ],
)
@click.argument("source", shell_complete=complete_topic)
@click.argument("target", callback=check_topic_name)
@click.option("--to", "to_bootstrap", metavar="HOST:PORT", help="Brokers of the target. [default: the same cluster]")
@click.option("--to-profile", metavar="NAME", help="Profile of the target cluster.")
@click.option(
    "--append", is_flag=True, help="Add the records if the target exists. Partitions stay if both have as many."
)
@since_option
@until_option
@click.option("--read-committed", is_flag=True, help="Skip records of open and aborted transactions.")
@json_option
@bootstrap_option
def copy(
    source: str,
    target: str,
    to_bootstrap: str | None,
    to_profile: str | None,
    append: bool,
    since_ms: int | None,
    until_ms: int | None,
    read_committed: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Copy the records of a topic up to its current end, with keys, headers and timestamps.

    Creates the target with the partitions and configs of the source. Offsets start at 0. If the copy fails, the target
    keeps the records copied so far: delete it before the next attempt. Use 'kbroker pipeline' for a mirror that
    continues.
    """
    if to_bootstrap is not None and to_profile is not None:
        raise click.UsageError("Use either --to or --to-profile, not both")
    to_address, security = _target(bootstrap, to_bootstrap, to_profile)
    if source == target and to_address == bootstrap:
        raise click.UsageError("SOURCE and TARGET are the same topic")

    async def call(cluster: Cluster) -> int:
        from kbroker.cli.record_range import find_range
        from kbroker.client.address import parse_addresses
        from kbroker.client.cluster import open_cluster

        topic = await cluster.topic(source)
        async with open_cluster(parse_addresses(to_address), client_id="kbroker-cli", security=security) as other:
            await _check_reachable(other, to_address)
            span = await find_range(
                cluster, source, since_ms=since_ms, until_ms=until_ms, read_committed=read_committed
            )
            target_topic = await _create(cluster, topic, other, target, append=append)
            keeps_partitions = len(target_topic.partitions) == len(topic.partitions)
            return await _copy(
                cluster, source, span, other, target, keeps_partitions=keeps_partitions, read_committed=read_committed
            )

    count = run_with_cluster(bootstrap, call)
    if as_json:
        print_json({"source": source, "target": target, "records": count})
    else:
        click.echo(f"Copied {pluralize(count, 'record')} from topic {source} to topic {target}.")


def _target(bootstrap: str, to_bootstrap: str | None, to_profile: str | None) -> tuple[str, ConnectionSecurity | None]:
    """Returns the addresses of the target cluster, and their security."""
    if to_profile is None:
        return (bootstrap, security_of(bootstrap)) if to_bootstrap is None else (to_bootstrap, None)
    from kbroker.cli.profiles import find_profile
    from kbroker.client.client_properties import client_security

    profile = find_profile(to_profile)
    assert profile is not None
    return profile.bootstrap, client_security(profile.properties, source=f"profile {to_profile}")


async def _check_reachable(other: Cluster, address: str) -> None:
    from kbroker.client.failures import CouldNotConnect

    try:
        await other.any_connection()
    except CouldNotConnect as failure:
        raise UserError(f"{failure}. It is the target: check --to or --to-profile ({address}).") from None


async def _create(cluster: Cluster, topic: TopicInfo, other: Cluster, target: str, *, append: bool) -> TopicInfo:
    """Creates the target like the source; the replication factor is the default of its cluster."""
    from kbroker.client.admin.configs import topic_overrides
    from kbroker.client.admin.topics import create_topic
    from kbroker.client.failures import BrokerRefusal
    from kbroker.protocol.error_codes import ErrorCode

    configs = {name: value for name, value in (await topic_overrides(cluster, topic.name)).items() if value is not None}
    try:
        await create_topic(other, target, partitions=len(topic.partitions), configs=configs)
    except BrokerRefusal as refusal:
        if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
        if not append:
            raise UserError(f"Topic '{target}' already exists. Add --append to add the records to it.") from None
    return await other.topic(target, may_create=append, is_fresh=True)


async def _copy(
    cluster: Cluster,
    source: str,
    span: RecordRange,
    other: Cluster,
    target: str,
    *,
    keeps_partitions: bool,
    read_committed: bool,
) -> int:
    from kbroker.client.consuming import Consumer, read_until
    from kbroker.client.producing import Producer

    producer = Producer(other, target, may_create=False)
    await producer.start()
    consumer = Consumer(cluster, source, span.starts, read_committed=read_committed)
    with progress(span.length, "Copying", worth_showing=_PROGRESS_MIN_RECORDS) as bar:
        async for fetched in read_until(consumer, span.ends):
            await _write(producer, fetched.records, fetched.partition if keeps_partitions else None)
            if bar is not None:
                bar.update(len(fetched.records))
    return sum(producer.counts.values())


async def _write(producer: Producer, records: list[Record], partition: int | None) -> None:
    for record in records:
        if producer.add(
            record.value,
            key=record.key,
            headers=record.headers,
            partition=partition,
            timestamp_ms=record.timestamp,
        ):
            await producer.flush()
    await producer.flush()
