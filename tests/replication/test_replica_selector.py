"""Which follower a leader names to a consumer: the cases of Kafka's RackAwareReplicaSelector."""

from __future__ import annotations

import pytest

from kbroker.replication.replica_selector import ReplicaView, select_follower

OTHER = ReplicaView(2, "west", 10, 100)
FIRST = ReplicaView(3, "east", 10, 100)


@pytest.mark.parametrize("rack_id", ["", "north", "south"])
def test_a_client_without_a_follower_in_its_rack_reads_from_the_leader(rack_id: str) -> None:
    assert select_follower(rack_id, "north", [OTHER, FIRST]) is None
    assert select_follower(rack_id, None, [OTHER, FIRST._replace(rack=None)]) is None


def test_the_follower_in_the_rack_is_selected() -> None:
    assert select_follower("east", "north", [OTHER, FIRST]) == FIRST
    assert select_follower("west", None, [OTHER, FIRST]) == OTHER


def test_the_leader_is_preferred_in_its_own_rack() -> None:
    assert select_follower("east", "east", [FIRST]) is None


@pytest.mark.parametrize(
    ("better", "reason"),
    [
        (FIRST._replace(log_end_offset=11, caught_up_ms=0, broker_id=1), "it has more records"),
        (FIRST._replace(caught_up_ms=101, broker_id=1), "it was caught up later"),
        (FIRST._replace(broker_id=4), "its id is larger"),
    ],
)
def test_of_several_followers_the_most_caught_up_is_selected(better: ReplicaView, reason: str) -> None:
    ahead_elsewhere = OTHER._replace(log_end_offset=99)
    assert select_follower("east", "north", [FIRST, better, ahead_elsewhere]) == better, reason
    assert select_follower("east", "north", [better, FIRST, ahead_elsewhere]) == better, reason
