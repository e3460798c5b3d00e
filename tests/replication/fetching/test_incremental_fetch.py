"""Partitions that a follower names in an incremental fetch session."""

from __future__ import annotations

from kbroker.replication.fetching.incremental_fetch import FetchPosition, IncrementalFetch

A, B = (b"a" * 16, 0), (b"b" * 16, 0)


def asked(offset: int) -> FetchPosition:
    return FetchPosition(leader_epoch=1, offset=offset, last_epoch=1, log_start_offset=0)


def test_everything_is_said_until_the_leader_has_opened_a_session() -> None:
    session = IncrementalFetch()
    assert session.next({A: asked(0), B: asked(0)}) == ({A: asked(0), B: asked(0)}, [])
    session.on_answer(0)
    assert (session.session_id, session.epoch) == (0, 0)
    assert session.next({A: asked(0), B: asked(0)}) == ({A: asked(0), B: asked(0)}, [])


def test_then_only_what_is_new_or_other_and_what_is_to_be_forgotten() -> None:
    session = IncrementalFetch()
    session.next({A: asked(0), B: asked(0)})
    session.on_answer(77)
    assert (session.session_id, session.epoch) == (77, 1)
    assert session.next({A: asked(5), B: asked(0)}) == ({A: asked(5)}, [])
    session.on_answer(77)
    assert session.next({A: asked(5)}) == ({}, [B])
    session.on_answer(77)
    assert session.epoch == 3
    assert session.next({A: asked(5), B: asked(0)}) == ({B: asked(0)}, [])


def test_after_a_failure_everything_is_said_again() -> None:
    session = IncrementalFetch()
    session.next({A: asked(0)})
    session.on_answer(77)
    session.reset()
    assert session.next({A: asked(0)}) == ({A: asked(0)}, [])
    assert (session.session_id, session.epoch) == (0, 0)


def test_epochs_go_round() -> None:
    session = IncrementalFetch()
    session.next({A: asked(0)})
    session.on_answer(77)
    session.epoch = 0x7FFFFFFF
    session.on_answer(77)
    assert session.epoch == 1


def test_positions_of_a_few_partitions_leave_the_others_in_the_session() -> None:
    session = IncrementalFetch()
    session.next({A: asked(0), B: asked(0)})
    session.on_answer(77)
    assert session.next_of({A: asked(5)}) == {A: asked(5)}
    session.on_answer(77)
    assert session.next_of({A: asked(5)}) == {}
    assert session.next({A: asked(5), B: asked(1)}) == ({B: asked(1)}, [])
