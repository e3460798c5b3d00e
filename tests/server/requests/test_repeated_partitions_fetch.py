"""Fetches of several partitions and fetches within a session get the same responses, whether recognised or decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import hypothesis
import pytest
from hypothesis import strategies as st

from kbroker.errors import StorageFailure
from kbroker.log.open_log import OpenLog
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import fetch
from kbroker.server.requests.fetch_session import FetchSession
from tests.log.batches import make_batch, make_marker
from tests.server.handlers.harness import Peer, parse_response
from tests.server.requests.twins import (
    FETCH,
    TOPICS,
    WAITS,
    Twins,
    fetch_frame,
    frame_of,
    list_offsets_frame,
    mutated,
    mutations,
    produce_frame,
    topic_id,
)

KNOWN: Final = range(13, 19)
NO_SESSION: Final = (0, -1)


def partitions_frame(
    session: tuple[int, int],
    offsets: Mapping[int, int] | Sequence[tuple[int, int]],
    topic: str = "t",
    *,
    version: int = 17,
    forgotten: Sequence[int] = (),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation: int = 0,
    leader_epoch: int = 0,
    last_fetched_epoch: int = -1,
    replica: int = -1,
    client_id: str = "me",
) -> bytes:
    pairs = offsets.items() if isinstance(offsets, Mapping) else offsets
    asked = [
        fetch.FetchPartition(
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
        )
        for index, offset in pairs
    ]
    gone = fetch.ForgottenTopic(topic=topic, topic_id=topic_id(topic), partitions=list(forgotten))
    members = {"replica_state": fetch.ReplicaState(replica_id=replica)} if version >= 15 else {"replica_id": replica}
    body = fetch.REQUEST(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[fetch.FetchTopic(topic=topic, topic_id=topic_id(topic), partitions=asked)] if asked else [],
        forgotten_topics_data=[gone] if forgotten else [],
        **members,
    )
    return frame_of(FETCH, version, body, client_id=client_id)


def fill(twins: Twins, batches: int = 10, topic: str = "t") -> None:
    for index in (0, 1):
        twins.ask(*(produce_frame(7, make_batch(b"%02d" % number * 50), topic, index) for number in range(batches)))


def begin(twins: Twins, offsets: Mapping[int, int] | None = None, **options: Any) -> int:
    """Begins a session and returns its id."""
    (answer,) = twins.ask_unknown(partitions_frame((0, 0), {0: 0, 1: 0} if offsets is None else offsets, **options))
    session_id: int = parse_response(FETCH, options.get("version", 17), answer).session_id
    assert session_id > 0
    return session_id


def answered(frame: bytes, version: int = 17) -> dict[int, tuple[int, int]]:
    """Returns error code and size of the records by partition, in the order of the response."""
    (topic,) = parse_response(FETCH, version, frame).responses
    return {answer.partition_index: (answer.error_code, len(answer.records or b"")) for answer in topic.partitions}


def sessions_of(twins: Twins) -> list[dict[int, Any]]:
    """Returns all that the brokers remember of their sessions."""
    return [
        {session_id: _state(session) for session_id, session in broker.context.fetch_sessions._sessions.items()}
        for broker in twins.brokers
    ]


def _state(session: FetchSession) -> Any:
    targets = [tuple(getattr(target, name) for name in type(target).__slots__) for target in session.targets.values()]
    return session.epoch, session.counted, targets


def fetched_bytes(twins: Twins) -> list[list[int]]:
    return [[partition.fetched_bytes for partition in broker.partitions] for broker in twins.brokers]


# Recognised requests


@pytest.mark.parametrize("version", KNOWN)
@pytest.mark.parametrize("isolation", [0, 1])
async def test_the_next_fetch_of_a_session_is_recognised_whatever_partitions_it_names(
    twins: Twins, version: int, isolation: int
) -> None:
    fill(twins)
    options: dict[str, Any] = {"version": version, "isolation": isolation}
    session_id = begin(twins, **options)
    for epoch, offsets in enumerate([{0: 3}, {1: 5}, {0: 9, 1: 0}, {}], start=1):
        twins.ask_known(partitions_frame((session_id, epoch), offsets, **options))
    ours, theirs = sessions_of(twins)
    assert ours == theirs
    assert ours[session_id][0] == 5
    assert len({tuple(counts) for counts in fetched_bytes(twins)}) == 1


@pytest.mark.parametrize("version", KNOWN)
@pytest.mark.parametrize("isolation", [0, 1])
async def test_a_fetch_of_several_partitions_without_a_session_is_recognised(
    twins: Twins, version: int, isolation: int
) -> None:
    fill(twins)
    options: dict[str, Any] = {"version": version, "isolation": isolation}
    twins.ask_unknown(partitions_frame(NO_SESSION, {0: 0, 1: 0}, **options))
    for offsets in ({0: 3, 1: 9}, {1: 2, 0: 9}, [(0, 1), (0, 2), (1, 3)]):
        (answer,) = twins.ask_known(partitions_frame(NO_SESSION, offsets, **options))
        assert list(answered(answer, version)) == list(dict(offsets))
    assert len({tuple(counts) for counts in fetched_bytes(twins)}) == 1


async def test_a_session_of_one_partition_as_spark_has_it(twins: Twins) -> None:
    """Spark asks for both ends of the partition after each poll, and fetches when a poll has used up its records."""
    fill(twins)
    session_id = begin(twins, {0: 0}, max_wait_ms=500)
    both = [list_offsets_frame(9, timestamp) for timestamp in (-2, -1)]
    twins.ask_unknown(*both)
    for epoch in range(1, 9):
        twins.ask_known(*both, partitions_frame((session_id, epoch), {0: epoch}, max_wait_ms=500))
    (answer,) = twins.ask(partitions_frame((session_id, 9), {0: 10}, max_wait_ms=500))
    assert answer == WAITS


async def test_partitions_without_records_or_changes_are_left_out(twins: Twins) -> None:
    fill(twins)
    session_id = begin(twins, {0: 10, 1: 0})
    (answer,) = twins.ask_known(partitions_frame((session_id, 1), {1: 5}))
    assert list(answered(answer)) == [1]
    twins.ask(produce_frame(7, make_batch(b"v"), index=0))
    (answer,) = twins.ask_known(partitions_frame((session_id, 2), {0: 11, 1: 5}))
    assert answered(answer)[0] == (0, 0)  # only its high watermark is new


async def test_the_limit_of_the_request_is_used_up_by_the_partitions_in_turn(twins: Twins) -> None:
    fill(twins)
    size = len(make_batch(b"00" * 50))
    session_id = begin(twins, max_bytes=3 * size)
    orders = []
    for epoch in (1, 2, 3):
        (answer,) = twins.ask_known(partitions_frame((session_id, epoch), {}, max_bytes=3 * size))
        orders.append(answered(answer))
    assert orders == [{1: (0, 3 * size)}, {0: (0, 3 * size)}, {1: (0, 3 * size)}]


async def test_a_batch_that_exceeds_all_limits_is_returned_for_the_first_partition_only(twins: Twins) -> None:
    fill(twins)
    size = len(make_batch(b"00" * 50))
    twins.ask_unknown(partitions_frame(NO_SESSION, {0: 0, 1: 0}, partition_max_bytes=1))
    (answer,) = twins.ask_known(partitions_frame(NO_SESSION, {1: 4, 0: 7}, partition_max_bytes=1))
    assert answered(answer) == {1: (0, size), 0: (0, 0)}


async def test_two_sessions_on_one_connection_do_not_mix(twins: Twins) -> None:
    fill(twins)
    first, second = begin(twins), begin(twins, {1: 0})
    for epoch in (1, 2, 3):
        twins.ask_known(partitions_frame((first, epoch), {0: epoch}))
        twins.ask_known(partitions_frame((second, epoch), {1: 9 - epoch}))
    ours, theirs = sessions_of(twins)
    assert ours == theirs


def steps() -> st.SearchStrategy[list[tuple[str, Any]]]:
    return st.lists(
        st.one_of(
            st.tuples(st.just("produce"), st.integers(0, 1)),
            st.tuples(st.just("fetch"), st.dictionaries(st.integers(0, 1), st.integers(0, 14))),
            st.tuples(st.just("forget"), st.integers(0, 1)),
            st.tuples(st.just("wrong epoch"), st.just(0)),
            st.tuples(st.just("other topic"), st.integers(0, 3)),
        ),
        min_size=1,
        max_size=12,
    )


async def test_any_sequence_of_fetches_leaves_equal_sessions(twins: Twins) -> None:
    fill(twins)

    @hypothesis.settings(deadline=None, max_examples=60)
    @hypothesis.given(steps(), st.integers(0, 1))
    def check(sequence: list[tuple[str, Any]], isolation: int) -> None:
        twins.forget()
        session_id = begin(twins, {0: 0}, isolation=isolation)
        epoch = 1
        for kind, value in sequence:
            session = (session_id, epoch)
            epoch += kind not in ("produce", "wrong epoch")
            if kind == "produce":
                twins.ask(produce_frame(7, make_batch(b"v" * 40), index=value))
            elif kind == "fetch":
                twins.ask(partitions_frame(session, value, isolation=isolation))
            elif kind == "forget":
                twins.ask(partitions_frame(session, {}, forgotten=[value], isolation=isolation))
            elif kind == "other topic":
                twins.ask(partitions_frame(session, {0: value}, TOPICS[1], isolation=isolation))
            else:
                twins.ask(partitions_frame((session_id, epoch + 5), {}, isolation=isolation))
        ours, theirs = sessions_of(twins)
        assert ours == theirs
        assert len({tuple(counts) for counts in fetched_bytes(twins)}) == 1

    check()


# Requests that are decoded


async def test_errors_of_sessions_are_the_usual_ones(twins: Twins) -> None:
    fill(twins)
    session_id = begin(twins)
    twins.ask_known(partitions_frame((session_id, 1), {0: 3}))
    for session, code in (
        ((session_id, 1), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ((session_id, 3), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ((session_id + 7, 2), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ):
        (answer,) = twins.ask_unknown(partitions_frame(session, {0: 4}))
        assert parse_response(FETCH, 17, answer).error_code == code
    twins.ask_known(partitions_frame((session_id, 2), {0: 4}))
    for broker in twins.brokers:
        broker.context.fetch_sessions.end(session_id)
    (answer,) = twins.ask_unknown(partitions_frame((session_id, 3), {0: 4}))
    assert parse_response(FETCH, 17, answer).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_session_that_used_names_is_not_continued_with_ids(twins: Twins) -> None:
    fill(twins)
    begin(twins)
    named = begin(twins, version=12)
    (answer,) = twins.ask_unknown(partitions_frame((named, 1), {}))
    assert parse_response(FETCH, 17, answer).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@pytest.mark.parametrize(
    "options",
    [
        {"forgotten": [1]},
        {"last_fetched_epoch": 0},
        {"replica": -2},
        {"min_bytes": 1_000_000},
        {"leader_epoch": 9},
        {"topic": TOPICS[1]},
    ],
    ids=str,
)
async def test_a_request_that_asks_for_more_is_decoded(twins: Twins, options: dict[str, Any]) -> None:
    fill(twins)
    session_id = begin(twins)
    twins.ask_known(partitions_frame((session_id, 1), {0: 3}))
    twins.ask_unknown(partitions_frame((session_id, 2), {0: 4}, **options))
    twins.ask(partitions_frame((session_id, 3), {0: 4}))
    ours, theirs = sessions_of(twins)
    assert ours == theirs


@pytest.mark.parametrize("offset", [-1, 11])
async def test_an_offset_beside_the_log_is_refused_and_the_session_goes_on(twins: Twins, offset: int) -> None:
    fill(twins)
    session_id = begin(twins)
    (answer,) = twins.ask_unknown(partitions_frame((session_id, 1), {1: offset}))
    assert answered(answer)[1][0] == ErrorCode.OFFSET_OUT_OF_RANGE
    twins.ask_known(partitions_frame((session_id, 2), {1: 3}))
    ours, theirs = sessions_of(twins)
    assert ours == theirs


async def test_a_session_at_the_end_of_its_partitions_waits(twins: Twins) -> None:
    fill(twins)
    session_id = begin(twins, max_wait_ms=500)
    assert twins.ask_unknown(partitions_frame((session_id, 1), {0: 10, 1: 10}, max_wait_ms=500)) == [WAITS]


async def test_a_reader_of_committed_records_stops_before_an_open_transaction_and_gets_aborted_ones(
    twins: Twins,
) -> None:
    fill(twins)
    session_id = begin(twins, isolation=1)
    for broker in twins.brokers:
        broker.append("t", make_batch(b"open", producer_id=9, transactional=True))
    (answer,) = twins.ask_known(partitions_frame((session_id, 1), {0: 0, 1: 0}, isolation=1))
    assert b"open" not in answer
    for broker in twins.brokers:
        broker.append("t", make_marker(9, commit=False), internal=True)
    (answer,) = twins.ask_unknown(partitions_frame((session_id, 2), {0: 0, 1: 0}, isolation=1))
    assert b"open" in answer
    (topic,) = parse_response(FETCH, 17, answer).responses
    (partition,) = [partition for partition in topic.partitions if partition.partition_index == 0]
    assert [aborted.producer_id for aborted in partition.aborted_transactions] == [9]


async def test_a_deleted_topic_is_unknown_to_its_session(twins: Twins) -> None:
    fill(twins)
    session_id = begin(twins)
    twins.ask_known(partitions_frame((session_id, 1), {0: 3}))
    for broker in twins.brokers:
        await broker.controller.delete_topics(["t"])
    (answer,) = twins.ask_unknown(partitions_frame((session_id, 2), {0: 4}))
    assert {code for code, _ in answered(answer).values()} == {ErrorCode.UNKNOWN_TOPIC_ID}


async def test_a_session_whose_client_is_no_longer_authorized_is_refused(twins: Twins) -> None:
    fill(twins)
    session_id = begin(twins)
    twins.ask_known(partitions_frame((session_id, 1), {0: 3}))
    for broker in twins.brokers:
        broker.allow()
    (answer,) = twins.ask_unknown(partitions_frame((session_id, 2), {0: 4}))
    assert {code for code, _ in answered(answer).values()} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


async def test_quotas_count_what_sessions_fetch(twins: Twins) -> None:
    fill(twins)
    session_id = begin(twins)
    twins.ask_known(partitions_frame((session_id, 1), {0: 3}))
    for broker in twins.brokers:
        await broker.controller.update_entity_configs("clients/me", lambda _: {"consumer_byte_rate": "1"})
    twins.ask_unknown(partitions_frame((session_id, 2), {0: 4}))
    for broker in twins.brokers:
        await broker.controller.update_entity_configs("clients/me", lambda _: {})
    twins.ask_unknown(partitions_frame((session_id, 3), {0: 4}))
    twins.ask_known(partitions_frame((session_id, 4), {0: 4}))


async def test_a_disk_that_fails_is_reported_and_no_file_stays_pinned(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(twins)
    session_id = begin(twins)
    read = OpenLog.read

    def fail(log: OpenLog, offset: int, *arguments: Any, **options: Any) -> Any:
        if offset == 7:
            raise StorageFailure("the disk is broken")
        return read(log, offset, *arguments, **options)

    with monkeypatch.context() as broken:
        broken.setattr(OpenLog, "read", fail)
        (answer,) = twins.ask_unknown(partitions_frame((session_id, 1), {0: 3, 1: 7}))
    assert answered(answer)[1][0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert not any(broker.log("t", index).has_pins() for broker in twins.brokers for index in (0, 1))


async def test_slices_of_a_request_without_enough_records_are_released(twins: Twins) -> None:
    fill(twins)
    session_id = begin(twins, min_bytes=1_000_000)
    twins.ask_unknown(partitions_frame((session_id, 1), {0: 3}, min_bytes=1_000_000))
    assert not any(broker.log("t", index).has_pins() for broker in twins.brokers for index in (0, 1))
    assert fetched_bytes(twins)[0] == fetched_bytes(twins)[1]


async def test_a_connection_whose_fetches_take_turns_in_many_layouts_is_given_up(twins: Twins) -> None:
    fill(twins)
    twins.forget()
    for number in range(40):
        twins.ask(partitions_frame(NO_SESSION, {0: 1, 1: 1}, client_id="x" * (number + 1)))
    assert cast(Any, twins.peers[0]).session.shapes_left == 0
    twins.ask_known(partitions_frame(NO_SESSION, {0: 1, 1: 1}, client_id="x" * 32))
    for _ in range(2):
        twins.ask_unknown(partitions_frame(NO_SESSION, {0: 1, 1: 1}, client_id="x" * 40))


async def test_a_client_with_an_endless_name_is_not_remembered(twins: Twins) -> None:
    fill(twins)
    for _ in range(3):
        twins.ask_unknown(partitions_frame(NO_SESSION, {0: 1, 1: 1}, client_id="x" * 30_000))


async def test_fetches_with_and_without_a_session_take_turns_on_one_connection(twins: Twins) -> None:
    fill(twins)
    session_id = begin(twins)
    twins.ask(fetch_frame(17, 0), partitions_frame(NO_SESSION, {0: 0, 1: 0}))
    for epoch in (1, 2, 3):
        twins.ask_known(
            fetch_frame(17, epoch),
            partitions_frame((session_id, epoch), {0: epoch}),
            partitions_frame(NO_SESSION, {0: epoch, 1: 0}),
        )


@pytest.mark.parametrize("version", KNOWN)
@pytest.mark.parametrize("in_session", [True, False], ids=["session", "no session"])
async def test_a_frame_that_differs_a_little_is_answered_as_if_nothing_were_known(
    twins: Twins, version: int, in_session: bool
) -> None:
    fill(twins)

    @hypothesis.settings(deadline=None, max_examples=80)
    @hypothesis.given(st.integers(0, 9), st.integers(0, 9), mutations())
    def check(first: int, second: int, mutation: tuple[str, int, int]) -> None:
        twins.peers = [Peer("PLAINTEXT"), Peer("PLAINTEXT")]
        session = (begin(twins, version=version), 1) if in_session else NO_SESSION
        options: dict[str, Any] = {"version": version}
        twins.ask(partitions_frame(session, {0: first, 1: second}, **options))
        session = (session[0], 2) if in_session else session
        twins.ask_known(partitions_frame(session, {0: second, 1: first}, **options))
        session = (session[0], 3) if in_session else session
        twins.ask(mutated(partitions_frame(session, {0: first, 1: second}, **options), mutation, 0))
        ours, theirs = sessions_of(twins)
        assert ours == theirs

    check()
