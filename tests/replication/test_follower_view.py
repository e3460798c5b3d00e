"""Truncation of a follower's log."""

from __future__ import annotations

from kbroker.log.leader_epochs import EpochEntry
from kbroker.replication.follower_view import Restart, restart_after, truncation_offset
from tests.replication.model_log import ModelLog


def log_of(*epochs: int, high_watermark: int = 0) -> ModelLog:
    log = ModelLog()
    log.entries = [(epoch, f"{number}") for number, epoch in enumerate(epochs)]
    log.high_watermark = high_watermark
    return log


def test_records_of_an_epoch_that_the_leader_ended_earlier_go() -> None:
    assert truncation_offset(log_of(1, 1, 1, 1), EpochEntry(1, 2)) == 2


def test_an_epoch_that_the_leader_ended_later_costs_nothing_of_it() -> None:
    assert truncation_offset(log_of(1, 1, 2, 2), EpochEntry(1, 9)) == 2


def test_an_epoch_that_is_not_here_is_cut_to_the_next_lower_one() -> None:
    assert truncation_offset(log_of(1, 1, 3, 3), EpochEntry(2, 9)) == 2


def test_a_log_that_is_younger_than_the_leaders_epoch_is_emptied() -> None:
    assert truncation_offset(log_of(4, 4), EpochEntry(2, 9)) == 0


def test_only_a_leader_without_epochs_makes_the_high_watermark_count() -> None:
    assert truncation_offset(log_of(1, 1, 1, high_watermark=2), EpochEntry(-1, -1)) == 2
    assert truncation_offset(log_of(1, 1, 1, high_watermark=2), EpochEntry(-1, 1)) == 1


def test_out_of_range_is_answered_by_a_cut_or_a_new_start() -> None:
    assert restart_after(10, leader_start=2, leader_end=6) == Restart(truncate_to=6)
    assert restart_after(10, leader_start=20, leader_end=30) == Restart(start_at=20)
    assert restart_after(10, leader_start=2, leader_end=30) == Restart()
