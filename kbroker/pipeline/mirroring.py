"""Mirrors topics from one cluster to another, exactly once, with partitions, keys, headers and timestamps as they were.

A stream copies the records. Beside it, a thread follows topics and configs and translates the offsets of groups.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql import functions

from kbroker.client.address import parse_addresses
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.errors import UserError
from kbroker.pipeline.accompanied_job import AccompaniedJob
from kbroker.pipeline.brokers import ask_brokers, check_source
from kbroker.pipeline.client_options import connection_security
from kbroker.pipeline.definition import Pipeline, TopicSink, TopicsToRead
from kbroker.pipeline.frames import count_rows, stream_topics
from kbroker.pipeline.jobs import Job, StreamJob
from kbroker.pipeline.mirror_copies import ORIGIN_HEADER
from kbroker.pipeline.mirror_file import DEFAULT_GROUPS, GroupsToMove, MirrorPlan, TargetCluster, check_order_is_kept
from kbroker.pipeline.mirror_groups import GroupMover, MovedOffset, Side
from kbroker.pipeline.mirror_topics import TopicChange, follow_topics
from kbroker.pipeline.ownership import claim_checkpoint
from kbroker.pipeline.streams import HEADERS, MAIN, begin_stream, each_batch, exactly_once_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["frames", "mirror", "records_to_copy", "start"]

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)


def mirror(
    spark: SparkSession,
    *,
    bootstrap: str,
    to: str,
    checkpoint: str,
    topics: Sequence[str] = (),
    pattern: str | None = None,
    groups: GroupsToMove | None = DEFAULT_GROUPS,
    replication_factor: int = -1,
    interval_s: float = 10.0,
    trigger: str = "0 seconds",
    name: str = "mirror",
    options: Mapping[str, str] | None = None,
) -> AccompaniedJob:
    """Starts a mirror of topics to the cluster at `to`, and returns it. `options`: of Spark's Kafka source.

    Raises UserError if a cluster cannot be reached, or if both addresses belong to one cluster.
    """
    chosen = dict(options or {})
    check_order_is_kept(chosen)
    source = TopicsToRead(bootstrap, tuple(topics), pattern, options=chosen)
    plan = MirrorPlan(source, TargetCluster(to, replication_factor), groups, interval_s)
    return _start(spark, plan, name=name, location=checkpoint, trigger=trigger)


def start(spark: SparkSession, pipeline: Pipeline) -> list[Job]:
    return [_start(spark, pipeline.job, name=pipeline.name, location=pipeline.checkpoint, trigger=pipeline.trigger)]


def frames(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Returns the frames of the queries, by their names."""
    source_id, target_id = _Clusters(pipeline.job).connect()
    return {MAIN: records_to_copy(stream_topics(spark, pipeline.job.source), source_id, target_id)}


def _start(spark: SparkSession, plan: MirrorPlan, *, name: str, location: str, trigger: str) -> AccompaniedJob:
    check_source(plan.source)
    clusters = _Clusters(plan)
    source_id, target_id = clusters.connect()
    checkpoint = claim_checkpoint(location, name=name, kind="mirror", destination=target_id)
    checkpoint.check_cluster(source_id)
    clusters.follow(with_configs=True)
    records = count_rows(records_to_copy(stream_topics(spark, plan.source), source_id, target_id))
    target = TopicSink(plan.target.bootstrap, options=plan.target.options)
    sink = exactly_once_sink(spark, target, checkpoint, query=MAIN)

    def write(frame: DataFrame, batch_id: int) -> None:
        # The records of this batch may be the first of a new topic or partition.
        clusters.follow(with_configs=False)
        sink.write_batch(frame, batch_id)

    query = begin_stream(records, checkpoint, query=MAIN, trigger=trigger).foreachBatch(each_batch(write)).start()
    return AccompaniedJob(StreamJob(query, name), clusters.follow_all, interval_s=plan.interval_s)


def records_to_copy(records: DataFrame, source_id: str, target_id: str) -> DataFrame:
    """Returns the records for the target: with one more header, and without the records that came from there.

    The headers name each cluster on the way. So a record never returns, also when several mirrors form a ring.
    """
    headers = functions.coalesce(functions.col("headers"), functions.array().cast(HEADERS))
    place = functions.concat(functions.lit(f"{source_id}:"), functions.col("offset").cast("string"))
    hop = functions.struct(functions.lit(ORIGIN_HEADER).alias("key"), place.cast("binary").alias("value"))
    came_from_target = functions.exists(
        headers,
        lambda header: (header["key"] == ORIGIN_HEADER) & header["value"].cast("string").startswith(f"{target_id}:"),
    )
    added = functions.concat(headers, functions.array(hop)).alias("headers")
    return records.where(~came_from_target).select("topic", "partition", "key", "value", added, "timestamp")


async def _cluster_id(cluster: Cluster) -> str | None:
    await cluster.refresh([])
    return cluster.cluster_id


class _Clusters:
    """Topics and groups of the two clusters. Each call opens connections of its own, so any thread may call it."""

    def __init__(self, plan: MirrorPlan) -> None:
        self._plan = plan
        self._source_id = ""
        self._target_id = ""
        self._following = threading.Lock()

    def connect(self) -> tuple[str, str]:
        """Returns the ids of both clusters."""
        source, target = self._plan.source, self._plan.target
        source_id = ask_brokers(source.bootstrap, _cluster_id, source.options)
        target_id = ask_brokers(target.bootstrap, _cluster_id, target.options)
        if not source_id or not target_id:
            raise UserError("A broker returned no cluster id. The mirror needs it to distinguish copies from originals")
        if source_id == target_id:
            raise UserError(
                f"Source and target are the same cluster ({source_id}): the mirror would copy its own copies. "
                "Correct bootstrap of [source] or [target]"
            )
        self._source_id, self._target_id = source_id, target_id
        return source_id, target_id

    def follow(self, *, with_configs: bool) -> None:
        async def run(source: Cluster, target: Cluster) -> list[TopicChange]:
            return await follow_topics(
                source,
                target,
                self._plan.includes,
                with_configs=with_configs,
                replication_factor=self._plan.target.replication_factor,
            )

        with self._following:  # Two threads would create the same topic.
            for change in self._ask_both(run):
                _LOG.info("Changed the target as the source: %s", change)

    def follow_all(self) -> None:
        """Follows topics and configs, and translates the offsets of groups."""
        self.follow(with_configs=True)
        for moved in self._move_groups():
            _LOG.info("Translated an offset: %s", moved)

    def _move_groups(self) -> list[MovedOffset]:
        groups = self._plan.groups
        if groups is None:
            return []

        async def run(source: Cluster, target: Cluster) -> list[MovedOffset]:
            counts = {topic.name: len(topic.partitions) for topic in await target.topics()}
            topics = {
                topic.name: min(len(topic.partitions), counts[topic.name])
                for topic in await source.topics()
                if self._plan.includes(topic.name) and topic.name in counts
            }
            mover = GroupMover(
                Side(source, self._source_id),
                Side(target, self._target_id),
                topics=topics,
                pattern=groups.pattern,
                is_two_way=groups.is_two_way,
            )
            return await mover.move_groups()

        return self._ask_both(run)

    def _ask_both(self, ask: Callable[[Cluster, Cluster], Awaitable[T]]) -> T:
        addresses = parse_addresses(self._plan.target.bootstrap)
        security = connection_security(self._plan.target.options)

        async def ask_source(source: Cluster) -> T:
            async with open_cluster(addresses, security=security) as target:
                return await ask(source, target)

        return ask_brokers(self._plan.source.bootstrap, ask_source, self._plan.source.options)
