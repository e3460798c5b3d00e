"""Runs the loads of groups against a kbroker, and checks that errors and wrong offsets are found."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from benchmarks import group_load
from benchmarks.broker_process import Broker
from benchmarks.connection import Connection
from benchmarks.group_frames import join_frame
from benchmarks.group_load import ClassicMembers, ConsumerMembers, await_coordinator, check_committed, commit_many
from benchmarks.groups import QUICK, Lane, ping_while_loading, run_groups
from benchmarks.results import Results
from benchmarks.topics import Topic, WrongAnswer, create_topic
from kbroker.testing.broker import Broker as ThreadedBroker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the load waits by epoll, and reads /proc")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with ThreadedBroker() as running:
        yield Broker((running.host, running.port), None)


@pytest.fixture(scope="module")
def topic(broker: Broker) -> Topic:
    return create_topic(broker.address, b"topic", 40)


def test_every_row_runs_and_compares(broker: Broker) -> None:
    results = Results()
    with ThreadedBroker() as other:
        run_groups(broker, Broker((other.host, other.port), None), results, only="", rounds=1, quick=True)
    assert results.failures == []
    for row in results.comparisons:
        assert row.note == "not served" or (row.ratio is not None and row.ratio > 0), row.name
    assert [row.unit for row in results.comparisons] == ["s", "s", "req/s", "req/s"]


def test_a_row_that_is_not_selected_creates_nothing(broker: Broker) -> None:
    results = Results()
    run_groups(broker, None, results, only="unknown row", rounds=1, quick=True)
    assert results.comparisons == []


def test_members_settle_with_equal_shares(broker: Broker, topic: Topic) -> None:
    await_coordinator(broker.address, b"settling")
    members = ClassicMembers(b"settling", topic, 7)
    with group_load.connected(broker.address, 7) as connections:
        group_load.settle(broker, connections, members)
    assert len(set(members.member_ids)) == 7
    assert len(set(members.generations)) == 1


def test_shares_cover_every_partition_once(topic: Topic) -> None:
    shares = ClassicMembers(b"g", topic, 3)._shares([b"a", b"b", b"c"])
    assert sorted(partition for share in shares.values() for partition in share) == list(range(40))
    assert {len(share) for share in shares.values()} == {13, 14}


def test_members_of_the_consumer_protocol_are_settled_when_each_partition_has_one_owner(topic: Topic) -> None:
    def is_settled(epochs: list[int], *owned: range) -> bool:
        members = ConsumerMembers(b"g", topic, 2)
        members._epochs = epochs
        members._owned = [{b"id": partitions} for partitions in owned]
        return members.is_settled

    assert is_settled([2, 2], range(20), range(20, 40))
    assert not is_settled([0, 0], range(20), range(20, 40))
    assert not is_settled([2, 3], range(20), range(20, 40))
    assert not is_settled([2, 2], range(20), range(19, 39))
    assert not is_settled([2, 2], range(20), range(20, 39))


def test_a_wrong_committed_offset_is_found(broker: Broker, topic: Topic) -> None:
    await_coordinator(broker.address, b"many")
    commit_many(broker.address, [b"many", b"many-2"], topic, offset=5)
    check_committed(broker.address, b"many-2", topic, dict.fromkeys(range(40), 5))
    with pytest.raises(WrongAnswer, match="partition 3 has 5, expected 6"):
        check_committed(broker.address, b"many", topic, {2: 5, 3: 6})


def test_a_commit_that_is_refused_is_found(broker: Broker, topic: Topic) -> None:
    await_coordinator(broker.address, b"refused")
    with pytest.raises(WrongAnswer, match="OffsetCommit 0"):
        group_load.commit(broker, b"refused", topic, requests=3, in_flight=2, generation=9, member_id=b"unknown")


def test_a_heartbeat_that_is_refused_is_found(broker: Broker, topic: Topic) -> None:
    await_coordinator(broker.address, b"g")
    frames = [ClassicMembers(b"g", topic, 1).heartbeat(0)]
    with group_load.connected(broker.address, 1) as connections, pytest.raises(WrongAnswer, match="error 25"):
        group_load.heartbeat(broker, connections, frames, requests=5)


def test_a_member_that_is_refused_is_found(broker: Broker, topic: Topic) -> None:
    await_coordinator(broker.address, b"other")
    members = ClassicMembers(b"other", topic, 1)
    with Connection(broker.address) as connection:
        connection.send(join_frame(b"", b"", b"t"))
        with pytest.raises(WrongAnswer, match="error 24"):
            members.receive(0, connection.answer())


def test_pings_end_when_all_groups_are_loaded(broker: Broker) -> None:
    seconds, waits = ping_while_loading(broker.address)
    assert seconds > 0
    assert len(waits) == 20


def test_a_lane_commits_as_a_member(broker: Broker) -> None:
    figures = Lane(broker, b"lane", QUICK).commit()
    assert figures.requests_s > 0
