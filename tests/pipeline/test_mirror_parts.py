"""The parts of a mirror that need no Spark: its file, topics to follow, copies, and offsets of groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.client.address import parse_addresses
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.client.configs import ConfigChange, alter_configs, describe_configs
from kbroker.client.offsets import GroupOffset, commit_group_offsets, group_offsets
from kbroker.client.producing import Producer
from kbroker.client.topics import create_partitions, create_topic
from kbroker.config.resources import ConfigOperation, ConfigResourceType
from kbroker.errors import UserError
from kbroker.pipeline.definition import read_pipeline
from kbroker.pipeline.mirror_copies import ORIGIN_HEADER, RecordCopy, copied_from, find_copy, last_copy
from kbroker.pipeline.mirror_file import MirrorPlan
from kbroker.pipeline.mirror_groups import GroupMover, Side
from kbroker.pipeline.mirror_topics import TopicChange, follow_topics, plan_changes
from kbroker.protocol.records import Record
from kbroker.testing import Broker

MIRROR = """
kind = "mirror"
checkpoint = "state"
interval_seconds = 5

[source]
bootstrap = "127.0.0.1:9092"
pattern = "orders|payments"

[target]
bootstrap = "127.0.0.1:9093"
replication_factor = 3
"""


def read_plan(directory: Path, text: str) -> MirrorPlan:
    path = directory / "mirror.toml"
    path.write_text(text)
    plan: MirrorPlan = read_pipeline(path).job
    return plan


def test_the_file_names_both_clusters(tmp_path: Path) -> None:
    plan = read_plan(tmp_path, MIRROR)
    assert (plan.source.bootstrap, plan.target.bootstrap) == ("127.0.0.1:9092", "127.0.0.1:9093")
    assert (plan.target.replication_factor, plan.interval_s) == (3, 5.0)
    assert [name for name in ("orders", "payments", "orders2", "__x") if plan.includes(name)] == ["orders", "payments"]
    assert plan.groups is not None
    assert not plan.groups.is_two_way
    assert read_plan(tmp_path, MIRROR + "[groups]\ntranslate = false\n").groups is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (MIRROR.replace("[target]", "[goal]"), "target is missing: the cluster to write"),
        (MIRROR + "[groups]\npattern = '('", "groups.pattern is not a regular expression"),
        (MIRROR + "[source.options]\nminPartitions = 8", "source.options: minPartitions would change the order"),
    ],
)
def test_a_wrong_file_names_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UserError, match=rf"mirror\.toml:\d+: {problem}"):
        read_plan(tmp_path, text)


def test_topics_are_created_grown_and_configured_like_the_source() -> None:
    source = {
        "new": (3, {"retention.ms": "1000", "message.timestamp.type": "LogAppendTime"}),
        "grown": (4, {}),
        "changed": (1, {"cleanup.policy": "compact", "retention.ms": "5"}),
        "same": (2, {"retention.ms": "7", "min.insync.replicas": "2"}),
        "not looked at": (1, None),
    }
    target = {
        "grown": (2, {}),
        "changed": (1, {"retention.ms": "6", "segment.ms": "9", "message.timestamp.type": "CreateTime"}),
        "same": (5, {"retention.ms": "7"}),
        "not looked at": (1, None),
    }
    assert plan_changes(source, target) == [
        TopicChange(
            "changed", set_configs={"cleanup.policy": "compact", "retention.ms": "5"}, delete_configs=("segment.ms",)
        ),
        TopicChange("grown", grow=4),
        TopicChange("new", create=3, set_configs={"retention.ms": "1000"}),
    ]


@pytest.fixture
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with Broker() as source, Broker() as target:
        yield source, target


async def test_a_topic_follows_its_source_while_it_changes(brokers: tuple[Broker, Broker]) -> None:
    async with (
        open_cluster(parse_addresses(brokers[0].bootstrap)) as source,
        open_cluster(parse_addresses(brokers[1].bootstrap)) as target,
    ):

        async def follow() -> list[TopicChange]:
            return await follow_topics(
                source, target, lambda name: name == "orders", with_configs=True, replication_factor=-1
            )

        await create_topic(source, "orders", partitions=3, configs={"cleanup.policy": "compact"})
        await create_topic(source, "other", partitions=1)
        assert await follow() == [TopicChange("orders", create=3, set_configs={"cleanup.policy": "compact"})]
        assert await follow() == []
        await create_partitions(source, "orders", 5)
        changes = [ConfigChange(ConfigOperation.SET, "retention.ms", "4000")]
        changes.append(ConfigChange(ConfigOperation.DELETE, "cleanup.policy"))
        await alter_configs(source, ConfigResourceType.TOPIC, "orders", changes)
        await follow()
        assert {topic.name: len(topic.partitions) for topic in await target.topics()} == {"orders": 5}
        configs = {
            config.name: config.value
            for config in await describe_configs(target, ConfigResourceType.TOPIC, "orders")
            if config.name in ("retention.ms", "cleanup.policy")
        }
        assert configs == {"retention.ms": "4000", "cleanup.policy": "delete"}


class FakeCopies:
    """Copies in memory: offset -> source offset. Other offsets are records of producers, or markers."""

    def __init__(self, first: int, end: int, copies: dict[int, int]) -> None:
        self._bounds = (first, end)
        self._copies = copies

    async def bounds(self) -> tuple[int, int]:
        return self._bounds

    async def first_copy(self, start: int, end: int) -> RecordCopy | None:
        assert start < end
        found = [offset for offset in sorted(self._copies) if start <= offset < end]
        return RecordCopy(found[0], self._copies[found[0]]) if found else None


@given(
    gaps=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=40),
    first=st.integers(0, 5),
    rest=st.integers(0, 5),
    wanted=st.integers(-1, 170),
)
async def test_a_copy_is_found_between_other_records(
    gaps: list[tuple[int, int]], first: int, rest: int, wanted: int
) -> None:
    copies: dict[int, int] = {}
    offset, source_offset = first - 1, -1
    for gap, source_gap in gaps:
        offset, source_offset = offset + gap, source_offset + source_gap
        copies[offset] = source_offset
    fake = FakeCopies(first, offset + 1 + rest, copies)
    expected = next((RecordCopy(*copy) for copy in copies.items() if copy[1] >= wanted), None)
    assert await find_copy(fake, wanted) == expected
    assert await last_copy(fake) == (RecordCopy(offset, source_offset) if copies else None)


def test_the_header_names_the_cluster_and_the_offset() -> None:
    headers = ((ORIGIN_HEADER, b"A:12"), ("x", b"B:3"), (ORIGIN_HEADER, b"B:7"), (ORIGIN_HEADER, b"C:x"))
    record = Record(0, 0, None, None, headers)
    assert [copied_from(record, name) for name in "ABCD"] == [12, 7, None, None]


class TwoClusters:
    """Partition 0 of topic `t` in two clusters, with copies that the test writes as a mirror would."""

    def __init__(self, source: Cluster, target: Cluster) -> None:
        assert source.cluster_id is not None
        assert target.cluster_id is not None
        self.source = Side(source, source.cluster_id)
        self.target = Side(target, target.cluster_id)

    async def write(self, side: Side, copied_offsets: list[int | None]) -> None:
        """Writes one record for each entry: a copy of the record at this offset of the other side, or an original."""
        other = self.target if side is self.source else self.source
        producer = Producer(side.cluster, "t")
        await producer.start()
        for copied in copied_offsets:
            headers = [] if copied is None else [(ORIGIN_HEADER, f"{other.cluster_id}:{copied}".encode())]
            producer.add(b"value", partition=0, headers=headers, timestamp_ms=1)
        await producer.flush()

    async def move(self, *, is_two_way: bool = False) -> dict[str, int]:
        """Moves groups once; returns the new commits as {"g": offset} with > or < for the direction."""
        mover = GroupMover(self.source, self.target, topics={"t": 1}, pattern="g.*", is_two_way=is_two_way)
        return {
            f"{moved.group}{'>' if moved.is_in_target else '<'}": moved.offset for moved in await mover.move_groups()
        }

    @staticmethod
    async def commit(side: Side, offset: int, group: str = "g") -> None:
        await commit_group_offsets(side.cluster, group, {"t": {0: GroupOffset(offset)}})

    @staticmethod
    async def committed(side: Side, group: str = "g") -> Any:
        found = (await group_offsets(side.cluster, group)).get("t", {}).get(0)
        return None if found is None else found.offset


@pytest.fixture
async def clusters(brokers: tuple[Broker, Broker]) -> AsyncIterator[TwoClusters]:
    async with (
        open_cluster(parse_addresses(brokers[0].bootstrap)) as source,
        open_cluster(parse_addresses(brokers[1].bootstrap)) as target,
    ):
        for cluster in (source, target):
            await cluster.refresh([])
            await create_topic(cluster, "t", partitions=1)
        yield TwoClusters(source, target)


async def test_a_group_moves_over_and_back(clusters: TwoClusters) -> None:
    source, target = clusters.source, clusters.target
    await clusters.write(source, [None] * 10)
    await clusters.commit(source, 4)
    assert await clusters.move() == {}, "there is no copy yet"
    # Offsets differ: source offsets 2 and 3 were markers, and the target has a record of its own.
    await clusters.write(target, [0, 1, None, 4, 5, 6, 7, 8, 9])
    assert await clusters.move() == {"g>": 3}
    assert await clusters.move() == {}, "nothing has changed"
    await clusters.commit(source, 8)
    assert await clusters.move() == {"g>": 7}
    await clusters.commit(source, 2)
    assert await clusters.move() == {"g>": 3}, "a reset in the source is followed backwards"

    await clusters.commit(target, 6)
    assert await clusters.move() == {"g<": 7}, "the group has moved to the target"
    await clusters.commit(target, 9)
    assert await clusters.move() == {"g<": 10}
    assert await clusters.move() == {}

    await clusters.write(source, [None] * 2)
    await clusters.write(target, [10, 11])
    await clusters.commit(source, 11)
    assert await clusters.move() == {"g>": 10}, "the group has moved back"
    assert (await clusters.committed(source), await clusters.committed(target)) == (11, 10)


async def test_a_group_ahead_of_the_mirror_is_translated_again(clusters: TwoClusters) -> None:
    await clusters.write(clusters.source, [None] * 10)
    await clusters.commit(clusters.source, 10)
    await clusters.write(clusters.target, [0, 1, 2])
    assert await clusters.move() == {"g>": 3}
    await clusters.write(clusters.target, [3, 4, 5, 6, 7, 8, 9])
    assert await clusters.move() == {"g>": 10}
    assert await clusters.move() == {}


async def test_with_mirrors_both_ways_no_unread_record_is_skipped(clusters: TwoClusters) -> None:
    source, target = clusters.source, clusters.target
    await clusters.write(source, [None, None])
    await clusters.write(target, [0, 1, None, None, None])
    await clusters.write(source, [2, 3, 4, None])
    await clusters.write(target, [5])
    await clusters.commit(source, 3)  # It has read source 0, 1, 2; unread: the copies of target 3 and 4, and source 5.
    assert await clusters.move(is_two_way=True) == {"g>": 3}
    await clusters.commit(target, 4)  # It has read target 3; unread: target 4, whose copy is source 4, and source 5.
    assert await clusters.move(is_two_way=True) == {"g<": 4}


async def test_a_group_with_members_keeps_its_offsets(clusters: TwoClusters, brokers: tuple[Broker, Broker]) -> None:
    import confluent_kafka
    import trio

    await clusters.write(clusters.source, [None] * 3)
    await clusters.write(clusters.target, [0, 1, 2])
    await clusters.commit(clusters.source, 2)
    config = {"bootstrap.servers": brokers[1].bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    member = confluent_kafka.Consumer({**config, "enable.auto.commit": False})
    member.subscribe(["t"])
    message = await trio.to_thread.run_sync(member.poll, 60)
    assert message is not None
    assert await clusters.move() == {}
    await trio.to_thread.run_sync(member.close)
    assert await clusters.move() == {"g>": 2}
