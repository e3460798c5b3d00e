"""Logs of topics that were deleted, and of replicas that were moved away, while the broker was down."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kbroker.controller.changes import TopicAdded, apply
from kbroker.controller.image import Image, PartitionState, TopicImage
from kbroker.replication.stray_logs import find_strays
from tests.replication.test_lost_directories import ALONE, OWN_ID, TOPIC_ID, Run, orders

ELSEWHERE = PartitionState(2, 0, (2,), (2,), 0)


def image_of(*partitions: PartitionState) -> Image:
    return apply(Image(cluster_id="test"), [TopicAdded(TopicImage("orders", TOPIC_ID, partitions, {}))])


def test_replicas_that_were_moved_away_are_strays() -> None:
    logs = [("orders", 0), ("orders", 1)]
    assert find_strays(logs, image_of(ALONE, ELSEWHERE), {"orders"}, OWN_ID) == [("orders", 1)]


def test_logs_of_deleted_topics_are_strays() -> None:
    assert find_strays([("deleted", 0)], image_of(ALONE), {"orders"}, OWN_ID) == [("deleted", 0)]


def test_logs_of_a_topic_that_only_the_tree_has_are_no_strays() -> None:
    assert find_strays([("damaged", 0)], image_of(ALONE), {"orders", "damaged"}, OWN_ID) == []


def test_logs_of_a_partition_that_the_image_does_not_know_are_no_strays() -> None:
    assert find_strays([("orders", 7)], image_of(ALONE), {"orders"}, OWN_ID) == []


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The data directory of a broker that has stopped, with a log of `orders`."""
    run = Run(tmp_path, is_cluster=True)
    run.load(orders(ALONE))
    run.replicas.close()
    return tmp_path


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


def test_a_stray_is_renamed_and_a_later_start_does_not_find_it(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(stopped, is_cluster=True)
    with caplog.at_level(logging.WARNING):
        run.replicas.rename_strays(run.image, ())
    run.replicas.close()
    stray = f"orders-0.{'0' * 32}-stray"
    assert names(stopped) == [stray]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("Found a stray log of orders-0, renamed to ")
    assert stray in line
    again = Run(stopped, is_cluster=True)
    assert not again.replicas.log_dirs.found
    again.load(orders(ALONE))  # a new topic of the same name begins empty, and is no stray
    again.replicas.rename_strays(again.image, {"orders"})
    again.replicas.close()
    assert names(stopped) == ["orders-0", stray]


def test_a_log_in_use_is_no_stray(stopped: Path) -> None:
    run = Run(stopped, is_cluster=True)
    run.load(orders(ALONE))
    run.replicas.rename_strays(Image(cluster_id="test"), ())
    run.replicas.delete_unassigned([("orders", 0)])
    run.replicas.close()
    assert names(stopped) == ["orders-0"]


def test_a_topic_that_was_being_deleted_at_the_start_is_deleted_by_the_controllers_request(stopped: Path) -> None:
    run = Run(stopped, is_cluster=True)
    run.replicas.delete_unassigned([("orders", 0), ("orders", 1)])
    run.replicas.close()
    assert names(stopped) == [f"orders-0.{'0' * 32}-delete"]
