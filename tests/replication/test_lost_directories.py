"""Directories of partitions that disappear while the broker is stopped: a warning, and no empty leader in a cluster."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from kbroker.clock import SystemClock
from kbroker.config.broker import BrokerConfig
from kbroker.controller.changes import PartitionsChanged, TopicAdded, apply
from kbroker.controller.image import Image, PartitionState, TopicImage
from kbroker.errors import RecoveryNeeded
from kbroker.log.directory import DataDirectory
from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.filesystem import OsFileSystem
from kbroker.protocol.records import Record, build_batch
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.background_recovery import recover_unsound
from kbroker.replication.flusher import Flusher
from kbroker.replication.log_dirs import LogDirs

OWN_ID = 1
ALONE = PartitionState(OWN_ID, 0, (OWN_ID,), (OWN_ID,), 0)
TOPIC_ID = bytes(15) + b"\1"


def orders(state: PartitionState) -> TopicImage:
    return TopicImage("orders", TOPIC_ID, (state,), {})


class Run:
    """The replicas of a broker between two starts."""

    def __init__(self, path: Path, *, is_cluster: bool) -> None:
        properties = {"zookeeper.connect": "127.0.0.1:2181"} if is_cluster else {}
        clock = SystemClock()
        directory = DataDirectory.open(FileCache(OsFileSystem()), str(path), broker_id=OWN_ID)
        self.replicas = AssignedReplicas(
            LogDirs([directory], clock=clock, random_name=lambda: "0" * 32),
            broker_id=OWN_ID,
            config=BrokerConfig.from_properties(properties),
            flusher=Flusher(clock),
            clock=clock,
            random_name=lambda: "0" * 32,
        )
        self.image = Image(cluster_id="test")

    def load(self, *topics: TopicImage) -> None:
        changes = [TopicAdded(topic) for topic in topics]
        self.image = apply(self.image, changes)
        self.replicas.on_image(self.image, changes)

    def change(self, state: PartitionState) -> None:
        changes = [PartitionsChanged("orders", {0: state})]
        self.image = apply(self.image, changes)
        self.replicas.on_image(self.image, changes)

    @property
    def end_offset(self) -> int | None:
        partition = self.replicas.table.replica("orders", 0)
        return None if partition is None else partition.log.log_end_offset

    @property
    def is_offline(self) -> bool:
        return self.replicas.log_dirs.is_offline("orders", 0)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A data directory in which orders-0 had three records, and is gone."""
    run = Run(tmp_path, is_cluster=False)
    run.load(orders(ALONE))
    await run.replicas.recover()
    partition = run.replicas.table.replica("orders", 0)
    assert partition is not None
    batch = build_batch([Record(number, 1000, None, b"v", ()) for number in range(3)])
    assert partition.stage(memoryview(bytearray(batch)), version=9, acks=1, now_ms=1000).error == 0
    partition.commit()
    run.replicas.close()
    shutil.rmtree(tmp_path / "orders-0")
    return tmp_path


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


LOST = "The directory of partition orders-0 has disappeared; its last known end offset is 3: "


async def test_a_single_node_warns_creates_an_empty_log_and_asks_for_a_new_epoch(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(path, is_cluster=False)
    run.load(orders(ALONE))
    assert await run.replicas.recover() == [("orders", 0)]
    assert (run.end_offset, run.is_offline) == (0, False)
    assert warnings(caplog) == [LOST + "created an empty log, the records are lost"]


@pytest.mark.parametrize("leader", [OWN_ID, 2, -1])
async def test_a_replica_of_the_isr_stays_offline_instead_of_leading_an_empty_log(
    path: Path, caplog: pytest.LogCaptureFixture, leader: int
) -> None:
    run = Run(path, is_cluster=True)
    run.load(orders(PartitionState(leader, 4, (1, 2), (1, 2), 0)))
    await run.replicas.recover()
    (warning,) = warnings(caplog)
    assert warning.startswith(LOST + "the replica stays offline")
    run.change(PartitionState(OWN_ID, 5, (1, 2), (1, 2), 1))
    assert (run.end_offset, run.is_offline) == (None, True)
    assert not (path / "orders-0").exists()
    run.replicas.close()
    again = Run(path, is_cluster=True)
    again.load(orders(PartitionState(OWN_ID, 5, (1,), (1, 2), 1)))
    await again.replicas.recover()
    assert again.is_offline


async def test_a_replica_outside_the_isr_is_created_again_to_copy_the_leader(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(path, is_cluster=True)
    run.load(orders(PartitionState(2, 4, (2,), (1, 2), 0)))
    await run.replicas.recover()
    assert warnings(caplog) == [LOST + "copying the log from the leader"]
    assert (run.end_offset, run.is_offline) == (0, False)


async def test_an_offline_replica_follows_once_it_is_outside_the_isr(path: Path) -> None:
    run = Run(path, is_cluster=True)
    run.load(orders(PartitionState(2, 4, (1, 2), (1, 2), 0)))
    await run.replicas.recover()
    assert run.is_offline
    run.change(PartitionState(2, 5, (2,), (1, 2), 1))
    assert (run.end_offset, run.is_offline) == (0, False)


async def test_an_empty_directory_accepts_the_loss(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path / "orders-0").mkdir()
    run = Run(path, is_cluster=True)
    run.load(orders(PartitionState(OWN_ID, 4, (1,), (1,), 0)))
    await run.replicas.recover()
    assert not run.is_offline
    assert LOST not in "".join(warnings(caplog))
    bumped: list[tuple[str, int]] = []

    async def bump(partitions: Sequence[tuple[str, int]]) -> None:
        bumped.extend(partitions)

    with pytest.raises(RecoveryNeeded):  # its checkpoint says that it had records
        _ = run.end_offset
    await recover_unsound(run.replicas, bump)
    assert (run.end_offset, bumped) == (0, [("orders", 0)])


async def test_many_lost_partitions_are_not_created_in_advance_either(path: Path) -> None:
    run = Run(path, is_cluster=True)
    new = TopicImage("new", bytes(15) + b"\2", (ALONE,) * 20, {})
    await run.replicas.prepare([orders(ALONE), new])
    assert (path / "new-19").exists()
    assert not (path / "orders-0").exists()


async def test_a_partition_without_records_is_not_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, is_cluster=True)
    run.load(orders(PartitionState(OWN_ID, 4, (1, 2), (1, 2), 0)))
    await run.replicas.recover()
    assert (run.end_offset, warnings(caplog)) == (0, [])
