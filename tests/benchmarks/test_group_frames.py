"""Compares the hand-written frames of groups with kbroker's codecs, as test_frames.py does for Produce and Fetch."""

from __future__ import annotations

from typing import Any

from benchmarks import group_frames
from kbroker.protocol.messages import (
    api_versions,
    consumer_group_heartbeat,
    find_coordinator,
    heartbeat,
    join_group,
    list_groups,
    offset_commit,
    offset_fetch,
    sync_group,
)
from tests.benchmarks.test_frames import decoded, encoded

TOPIC_ID = bytes(range(16))


def test_a_coordinator_is_requested() -> None:
    assert decoded(group_frames.find_coordinator_frame(b"g"), find_coordinator.REQUEST).key == "g"
    answer = encoded(find_coordinator.RESPONSE, 0, find_coordinator.RESPONSE(error_code=15, host="h", port=1))
    assert group_frames.read_find_coordinator_answer(answer) == 15


def test_a_member_joins() -> None:
    request = decoded(group_frames.join_frame(b"g", b"m", b"topic"), join_group.REQUEST)
    assert (request.group_id, request.member_id, request.group_instance_id) == ("g", "m", None)
    assert [(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols] == [
        ("range", b"\0\0\0\0\0\1\0\5topic\xff\xff\xff\xff")
    ]


def test_the_answer_to_a_join_names_all_members_to_the_leader() -> None:
    members = [join_group.JoinGroupResponseMember(member_id=member_id, metadata=b"meta") for member_id in ("a", "bb")]
    response = join_group.RESPONSE(
        error_code=79, generation_id=4, protocol_name="range", leader="a", member_id="bb", members=members
    )
    assert group_frames.read_join_answer(encoded(join_group.RESPONSE, 5, response)) == (79, 4, b"bb", [b"a", b"bb"])


def test_the_leader_syncs_with_the_assignments_of_all_members() -> None:
    frame = group_frames.sync_frame(b"g", 4, b"m", {b"a": [1, 2], b"b": []}, b"t")
    request = decoded(frame, sync_group.REQUEST)
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 4, "m")
    shares = {assigned.member_id: bytes(assigned.assignment) for assigned in request.assignments}
    assert shares["a"] == bytes.fromhex("0000 00000001 0001 74 00000002 00000001 00000002 ffffffff")
    assert set(shares) == {"a", "b"}
    answer = encoded(sync_group.RESPONSE, 3, sync_group.RESPONSE(error_code=27, assignment=b"12345"))
    assert group_frames.read_sync_answer(answer) == (27, 5)


def test_a_heartbeat_names_generation_and_member() -> None:
    request = decoded(group_frames.heartbeat_frame(b"g", 4, b"m"), heartbeat.REQUEST)
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 4, "m")
    answer = encoded(heartbeat.RESPONSE, 3, heartbeat.RESPONSE(error_code=22))
    assert group_frames.read_error_after_throttle(answer) == 22


def test_groups_are_listed() -> None:
    decoded(group_frames.list_groups_frame(), list_groups.REQUEST)
    answer = encoded(list_groups.RESPONSE, 2, list_groups.RESPONSE(error_code=14))
    assert group_frames.read_error_after_throttle(answer) == 14


def test_a_commit_carries_offsets_where_the_load_patches_them() -> None:
    frame = group_frames.commit_frame(b"g", b"t", [3], offset=5, generation=2, member_id=b"m")
    frame[-18:-14] = (7).to_bytes(4, "big")
    frame[-14:-6] = (99).to_bytes(8, "big")
    request = decoded(frame, offset_commit.REQUEST)
    assert (request.group_id, request.generation_id_or_member_epoch, request.member_id) == ("g", 2, "m")
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index, partition.committed_offset) == ("t", 7, 99)
    assert (partition.committed_leader_epoch, partition.committed_metadata) == (-1, "")


def test_the_errors_of_a_commit_are_seen() -> None:
    rows = [
        offset_commit.OffsetCommitResponsePartition(partition_index=index, error_code=code)
        for index, code in enumerate((0, 25, 0))
    ]
    response = offset_commit.RESPONSE(topics=[offset_commit.OffsetCommitResponseTopic(name="topic", partitions=rows)])
    assert group_frames.read_commit_answer(encoded(offset_commit.RESPONSE, 7, response), b"topic") == {0, 25}


def test_committed_offsets_are_read_back() -> None:
    (topic,) = decoded(group_frames.fetch_offsets_frame(b"g", b"t", [1, 2]), offset_fetch.REQUEST).topics
    assert (topic.name, list(topic.partition_indexes)) == ("t", [1, 2])
    assert decoded(group_frames.fetch_offsets_frame(b"g"), offset_fetch.REQUEST).topics is None
    rows = [
        offset_fetch.OffsetFetchResponsePartition(partition_index=index, committed_offset=7 * index, metadata="note")
        for index in (1, 2)
    ]
    response = offset_fetch.RESPONSE(
        error_code=3, topics=[offset_fetch.OffsetFetchResponseTopic(name="t", partitions=rows)]
    )
    answer = encoded(offset_fetch.RESPONSE, 5, response)
    assert group_frames.read_fetch_offsets_answer(answer, b"t") == (3, {1: 7, 2: 14})
    nothing = encoded(offset_fetch.RESPONSE, 5, offset_fetch.RESPONSE(error_code=14, topics=[]))
    assert group_frames.read_fetch_offsets_answer(nothing, b"") == (14, {})


def test_versions_are_requested() -> None:
    decoded(group_frames.api_versions_frame(), api_versions.REQUEST)
    keys = [api_versions.ApiVersion(api_key=68, min_version=0, max_version=1)]
    answer = encoded(api_versions.RESPONSE, 0, api_versions.RESPONSE(api_keys=keys))
    assert group_frames.read_api_versions_answer(answer) == {68: (0, 1)}


def test_a_member_of_the_consumer_protocol_sends_its_partitions() -> None:
    frame = group_frames.consumer_heartbeat_frame(b"g", b"m", 3, topic=b"t", owned={TOPIC_ID: [4, 5]})
    request = decoded(frame, consumer_group_heartbeat.REQUEST, flexible=True)
    assert (request.group_id, request.member_id, request.member_epoch) == ("g", "m", 3)
    assert (request.instance_id, request.rack_id, request.server_assignor) == (None, None, None)
    assert request.subscribed_topic_names == ["t"]
    (owned,) = request.topic_partitions
    assert (bytes(owned.topic_id), list(owned.partitions)) == (TOPIC_ID, [4, 5])


def heartbeat_answer(**members: Any) -> bytes:
    response = consumer_group_heartbeat.RESPONSE(error_code=0, member_id="m", member_epoch=8, **members)
    return encoded(consumer_group_heartbeat.RESPONSE, 1, response, flexible=True)


def test_an_assignment_is_read() -> None:
    given = consumer_group_heartbeat.TopicPartitions(topic_id=TOPIC_ID, partitions=[1, 2, 3])
    assignment = consumer_group_heartbeat.Assignment(topic_partitions=[given])
    changed = group_frames.read_consumer_heartbeat_answer(heartbeat_answer(assignment=assignment))
    assert changed == (0, 8, {TOPIC_ID: (1, 2, 3)})
    unchanged = group_frames.read_consumer_heartbeat_answer(heartbeat_answer(assignment=None))
    assert unchanged == (0, 8, None)
