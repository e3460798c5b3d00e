"""High watermark and ISR of a leader, as they follow from its followers' fetches."""

from __future__ import annotations

from kbroker.replication.leader_view import LeaderView

LAG_MS = 30_000
LIVE = {1, 2, 3}


def view_of(
    *, isr: tuple[int, ...] = (1, 2, 3), replicas: tuple[int, ...] = (1, 2, 3), epoch_start: int = 0
) -> LeaderView:
    return LeaderView(
        1,
        replicas,
        isr,
        leader_epoch=5,
        partition_epoch=7,
        epoch_start_offset=epoch_start,
        max_lag_ms=LAG_MS,
        now_ms=0,
    )


def fetch(view: LeaderView, broker_id: int, offset: int, *, end: int, now_ms: int = 0, start: int = 0) -> None:
    assert view.on_fetch(broker_id, offset, start, 1, leader_end=end, now_ms=now_ms)


def test_the_high_watermark_is_what_every_member_of_the_in_sync_set_has() -> None:
    view = view_of()
    assert view.high_watermark(10, 0, LIVE) == -1
    fetch(view, 2, 8, end=10)
    assert view.high_watermark(10, 0, LIVE) == -1
    fetch(view, 3, 6, end=10)
    assert view.high_watermark(10, 0, LIVE) == 6
    fetch(view, 3, 10, end=10)
    assert view.high_watermark(10, 0, LIVE) == 8


def test_a_leader_that_is_the_in_sync_set_needs_nobody() -> None:
    view = view_of(isr=(1,))
    fetch(view, 2, 3, end=10)
    assert view.high_watermark(10, LAG_MS * 9, LIVE) == 10


def test_a_replica_that_is_caught_up_outside_holds_the_high_watermark_while_it_lives() -> None:
    view = view_of(isr=(1,))
    fetch(view, 2, 10, end=10)
    assert view.high_watermark(12, 1, LIVE) == 10
    assert view.high_watermark(12, 1, {1, 3}) == 12
    assert view.high_watermark(12, LAG_MS + 1, LIVE) == 12


def test_it_does_not_move_while_fewer_are_in_sync_than_it_takes() -> None:
    view = view_of(isr=(1,))
    assert view.high_watermark(10, 0, LIVE, min_insync_replicas=2) is None
    alone = view_of(isr=(1,), replicas=(1,))
    assert alone.high_watermark(10, 0, LIVE, min_insync_replicas=2) == 10


def test_a_member_that_lags_for_too_long_is_to_go_and_counts_until_it_is_gone() -> None:
    view = view_of()
    fetch(view, 2, 10, end=10, now_ms=LAG_MS)
    fetch(view, 3, 4, end=10, now_ms=LAG_MS)
    assert view.propose_removals(10, LAG_MS) is None
    proposal = view.propose_removals(10, LAG_MS + 1)
    assert proposal is not None
    assert (proposal.isr, proposal.leader_epoch, proposal.partition_epoch) == ((1, 2), 5, 7)
    assert view.high_watermark(10, LAG_MS + 1, LIVE) == 4
    assert view.propose_removals(10, LAG_MS * 5) is None  # one at a time
    assert view.on_committed((1, 2), 8)
    assert view.high_watermark(10, LAG_MS + 1, LIVE) == 10


def test_who_had_what_there_was_at_his_last_fetch_is_caught_up_though_never_at_the_end() -> None:
    view = view_of(isr=(1, 2), replicas=(1, 2))
    for number in range(10):
        fetch(view, 2, number * 10, end=number * 10 + 10, now_ms=number * LAG_MS)
    assert view.propose_removals(200, 9 * LAG_MS) is None
    proposal = view.propose_removals(200, 10 * LAG_MS)  # the last time known is that of the fetch before the last
    assert proposal is not None
    assert proposal.isr == (1,)


def test_a_replica_comes_in_when_it_has_what_is_committed_and_what_the_leader_began_with() -> None:
    view = view_of(isr=(1, 3), epoch_start=6)
    fetch(view, 2, 5, end=10)
    assert view.propose_addition(2, 4, LIVE) is None
    fetch(view, 2, 6, end=10)
    assert view.propose_addition(2, 7, LIVE) is None
    assert view.propose_addition(2, 6, {1, 3}) is None
    proposal = view.propose_addition(2, 6, LIVE)
    assert proposal is not None
    assert proposal.isr == (1, 3, 2)


def test_a_pending_addition_counts_for_the_high_watermark_until_it_is_refused() -> None:
    view = view_of(isr=(1,), replicas=(1, 2))
    fetch(view, 2, 10, end=10)
    proposal = view.propose_addition(2, 10, LIVE)
    assert proposal is not None
    assert view.maximal_isr_size == 2
    assert view.high_watermark(20, LAG_MS * 2, LIVE) == 10
    view.on_rejected(proposal)
    assert view.maximal_isr_size == 1
    assert view.high_watermark(20, LAG_MS * 2, LIVE) == 20


def test_an_older_state_of_the_controller_changes_nothing() -> None:
    view = view_of()
    assert not view.on_committed((1,), 7)
    assert view.isr == (1, 2, 3)


def test_strangers_are_no_replicas() -> None:
    view = view_of(replicas=(1, 2), isr=(1, 2))
    assert not view.on_fetch(9, 3, 0, 1, leader_end=10, now_ms=0)
    view.on_replicas((1, 2, 9))
    assert view.on_fetch(9, 3, 0, 1, leader_end=10, now_ms=0)


def test_the_low_watermark_is_the_first_offset_that_anybody_alive_still_has() -> None:
    view = view_of()
    fetch(view, 2, 10, end=10, start=4)
    fetch(view, 3, 10, end=10, start=2)
    assert view.low_watermark(5, LIVE) == 2
    assert view.low_watermark(5, {1, 2}) == 4
    assert view.low_watermark(3, {1}) == 3


def test_consumers_can_read_from_followers_in_sync_that_have_the_offset() -> None:
    view = view_of(isr=(1, 2, 3), replicas=(1, 2, 3, 4))
    assert view.followers_with(0) == []  # no follower has fetched yet
    fetch(view, 2, 8, end=10)
    fetch(view, 3, 10, end=10, start=5)
    fetch(view, 4, 10, end=10)  # not in sync
    readable = {
        offset: [broker_id for broker_id, _ in view.followers_with(offset)] for offset in (0, 4, 5, 8, 9, 10, 11)
    }
    assert readable == {0: [2], 4: [2], 5: [2, 3], 8: [2, 3], 9: [3], 10: [3], 11: []}
