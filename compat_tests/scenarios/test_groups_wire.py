"""Group requests on the wire: both brokers respond with the same error codes."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.scenarios.groups import create_topic
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.messages import join_group, leave_group, offset_commit, offset_delete, offset_fetch, sync_group
from kbroker.protocol.registry import api

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
DESCRIBE, LIST, DELETE, OFFSET_DELETE = 15, 16, 42, 47
RANGE = (("range", b"\0\0\0\0\0\0\0\0\0\0"),)


class Wire:
    """Blocking connection for requests of groups."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=30)

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, /, **members: Any) -> Any:
        self.send(key, version, **members)
        return self.receive(key, version)

    def send(self, key: int, version: int, /, **members: Any) -> None:
        asked = api(key)
        header = REQUEST_HEADER(request_api_key=key, request_api_version=version, correlation_id=1, client_id="wire")
        body = codec(REQUEST_HEADER, asked.request_header_version(version)).to_bytes(header)
        body += codec(asked.request, version).to_bytes(asked.request(**members))
        self._socket.sendall(struct.pack(">i", len(body)) + body)

    def receive(self, key: int, version: int, /) -> Any:
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        _, position = codec(RESPONSE_HEADER, api(key).response_header_version(version)).decode(frame)
        response, end = codec(api(key).response, version).decode(frame, position)
        assert end == size
        return response

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the broker has closed the connection"
            data += piece
        return data

    # Requests of a member

    def join(self, group: str, member_id: str = "", *, version: int = 9, **members: Any) -> Any:
        return self.ask(JOIN, version, **joining(group, member_id, **members))

    def join_new(self, group: str, **members: Any) -> Any:
        first = self.join(group, **members)
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return self.join(group, first.member_id, **members)

    def sync(self, group: str, member_id: str, generation: int, *, leads: bool = False, **members: Any) -> Any:
        assigned = [sync_group.SyncGroupRequestAssignment(member_id=member_id, assignment=b"part")] if leads else []
        asked = syncing(group, member_id, generation) | {"assignments": assigned}
        return self.ask(SYNC, 5, **(asked | members))

    def settle(self, group: str, **members: Any) -> str:
        joined = self.join_new(group, **members)
        assert self.sync(group, joined.member_id, 1, leads=True).assignment == b"part"
        return str(joined.member_id)

    def heartbeat(self, group: str, member_id: str, generation: int, instance_id: str | None = None) -> int:
        asked = {"member_id": member_id, "generation_id": generation, "group_instance_id": instance_id}
        return int(self.ask(HEARTBEAT, 4, group_id=group, **asked).error_code)

    def commit(self, group: str, topic: str, *, version: int = 9, metadata: str | None = "", **members: Any) -> int:
        one = offset_commit.OffsetCommitRequestPartition(
            partition_index=members.pop("partition", 0), committed_offset=5, committed_metadata=metadata
        )
        topics = [offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[one])]
        answer = self.ask(OFFSET_COMMIT, version, group_id=group, topics=topics, **members)
        return int(answer.topics[0].partitions[0].error_code)


def joining(group: str, member_id: str, *, protocols: Any = RANGE, **members: Any) -> dict[str, Any]:
    given = [join_group.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols]
    asked: dict[str, Any] = {
        "group_id": group,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": given,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
    }
    return asked | members


def syncing(group: str, member_id: str, generation: int) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member_id,
        "generation_id": generation,
        "protocol_type": "consumer",
        "protocol_name": "range",
    }


@pytest.fixture
def wire(bootstrap: str, topic: str) -> Iterator[Wire]:
    """Returns a connection to the coordinator of the test's group, which has the topic's name."""
    create_topic(bootstrap, topic, 1)
    made = Wire(bootstrap)
    deadline = time.monotonic() + 30
    while made.ask(FIND_COORDINATOR, 3, key=topic).error_code or made.heartbeat(topic, "", 0) != 25:
        assert time.monotonic() < deadline, "no coordinator"
        time.sleep(0.1)
    yield made
    made.close()


def test_joins_that_are_refused(wire: Wire, topic: str) -> None:
    assert wire.join("").error_code == ErrorCode.INVALID_GROUP_ID
    assert wire.join(topic, session_timeout_ms=1).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert wire.join(topic, "made-up").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert wire.join(topic, protocols=()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wire.settle(topic)
    assert wire.join(topic, "made-up").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert wire.join(topic, protocols=(("other", b""),)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert wire.join(topic, protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    refused = wire.join(topic, "made-up", group_instance_id="unknown")
    assert (refused.error_code, refused.generation_id, refused.leader) == (ErrorCode.UNKNOWN_MEMBER_ID, -1, "")


def test_the_response_of_a_join(wire: Wire, topic: str) -> None:
    joined = wire.join_new(topic)
    assert joined.member_id.startswith("wire-")
    assert (joined.generation_id, joined.leader, joined.skip_assignment) == (1, joined.member_id, False)
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert [(member.member_id, member.group_instance_id, member.metadata) for member in joined.members] == [
        (joined.member_id, None, RANGE[0][1])
    ]


def test_syncs_and_heartbeats_that_are_refused(wire: Wire, topic: str) -> None:
    assert wire.sync(topic, "unknown", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    member_id = wire.join_new(topic).member_id
    assert wire.sync(topic, "unknown", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert wire.sync(topic, member_id, 2).error_code == ErrorCode.ILLEGAL_GENERATION
    assert wire.sync(topic, member_id, 1, protocol_name="x").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert wire.sync(topic, member_id, 1, protocol_name=None).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert wire.sync("", member_id, 1).error_code == ErrorCode.INVALID_GROUP_ID
    assert wire.heartbeat(topic, member_id, 1) == ErrorCode.NONE
    assert wire.heartbeat(topic, member_id, 0) == ErrorCode.ILLEGAL_GENERATION
    assert wire.heartbeat(topic, "unknown", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert wire.heartbeat(topic, member_id, 1, "unknown") == ErrorCode.UNKNOWN_MEMBER_ID
    assert wire.heartbeat("", member_id, 1) == ErrorCode.INVALID_GROUP_ID


def test_a_rebalance_step_by_step(bootstrap: str, wire: Wire, topic: str) -> None:
    leader = wire.settle(topic)
    other = Wire(bootstrap)
    second = other.join(topic).member_id
    other.send(JOIN, 9, **joining(topic, second))
    while wire.heartbeat(topic, leader, 1) == ErrorCode.NONE:
        time.sleep(0.02)
    assert wire.heartbeat(topic, leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert wire.sync(topic, leader, 1).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert wire.commit(topic, topic, member_id=leader, generation_id_or_member_epoch=1) == ErrorCode.NONE
    rejoined, joined = wire.join(topic, leader), other.receive(JOIN, 9)
    assert (rejoined.generation_id, rejoined.leader, len(rejoined.members)) == (2, leader, 2)
    assert (joined.generation_id, joined.leader, joined.members) == (2, leader, [])
    code = wire.commit(topic, topic, member_id=leader, generation_id_or_member_epoch=2)
    assert code == ErrorCode.REBALANCE_IN_PROGRESS
    assert wire.heartbeat(topic, leader, 2) == ErrorCode.NONE
    other.send(SYNC, 5, **syncing(topic, second, 2))
    assert wire.sync(topic, leader, 2, leads=True).assignment == b"part"
    assert other.receive(SYNC, 5).assignment == b""
    assert wire.join(topic, second).generation_id == 2  # rejoin of a follower with unchanged metadata
    other.close()


def test_static_members_step_by_step(wire: Wire, topic: str) -> None:
    first = wire.join(topic, group_instance_id="static")
    assert first.error_code == ErrorCode.NONE
    assert first.member_id.startswith("static-")
    wire.sync(topic, first.member_id, 1, leads=True, group_instance_id="static")
    again = wire.join(topic, group_instance_id="static")
    assert (again.generation_id, again.skip_assignment, len(again.members)) == (1, True, 1)
    assert again.leader == again.member_id != first.member_id
    old = wire.join(topic, group_instance_id="static", version=7)
    assert (old.generation_id, old.leader, old.members) == (1, again.member_id, [])
    assert wire.sync(topic, old.member_id, 1, group_instance_id="static").assignment == b"part"
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert wire.heartbeat(topic, first.member_id, 1, "static") == fenced
    assert wire.join(topic, first.member_id, group_instance_id="static").error_code == fenced
    assert wire.sync(topic, first.member_id, 1, group_instance_id="static").error_code == fenced
    identity = {"member_id": first.member_id, "group_instance_id": "static"}
    left = wire.ask(LEAVE, 5, group_id=topic, members=[leave_group.MemberIdentity(**identity)])
    assert (left.error_code, [member.error_code for member in left.members]) == (0, [fenced])
    by_name = leave_group.MemberIdentity(member_id="", group_instance_id="static")
    left = wire.ask(LEAVE, 5, group_id=topic, members=[by_name])
    assert [(member.member_id, member.group_instance_id, member.error_code) for member in left.members] == [
        ("", "static", 0)
    ]
    assert wire.heartbeat(topic, old.member_id, 1, "static") == ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_by_version(wire: Wire, topic: str) -> None:
    member_id = wire.settle(topic)
    assert wire.ask(LEAVE, 2, group_id=topic, member_id="unknown").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert wire.ask(LEAVE, 2, group_id=topic, member_id=member_id).error_code == ErrorCode.NONE
    unknown = leave_group.MemberIdentity(member_id="unknown")
    left = wire.ask(LEAVE, 5, group_id=topic, members=[unknown])
    assert (left.error_code, left.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    assert wire.join_new(topic).generation_id == 3


def test_commits_that_are_refused(wire: Wire, topic: str) -> None:
    member: dict[str, Any] = {"member_id": "unknown", "generation_id_or_member_epoch": 1}
    assert wire.commit(topic, topic, version=9, **member) == ErrorCode.GROUP_ID_NOT_FOUND
    assert wire.commit(topic, topic, version=8, **member) == ErrorCode.ILLEGAL_GENERATION
    assert wire.commit(topic, "absent") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.commit(topic, topic, partition=1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.commit(topic, topic, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert wire.commit(topic, topic, metadata="x" * 4096) == ErrorCode.NONE
    assert wire.commit(topic, topic, **member) == ErrorCode.UNKNOWN_MEMBER_ID
    member_id = wire.settle(topic)
    assert wire.commit(topic, topic) == ErrorCode.UNKNOWN_MEMBER_ID
    assert wire.commit(topic, topic, member_id=member_id, generation_id_or_member_epoch=1) == ErrorCode.NONE
    code = wire.commit(topic, topic, member_id=member_id, generation_id_or_member_epoch=3)
    assert code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", [1, 2, 7, 8, 9])
def test_offsets_of_partitions_without_one(wire: Wire, topic: str, version: int) -> None:
    wire.commit(topic, topic, metadata=None)
    if version < 8:
        asked = [offset_fetch.OffsetFetchRequestTopic(name=name, partition_indexes=[0, 7]) for name in (topic, "no")]
        answer = wire.ask(OFFSET_FETCH, version, group_id=topic, topics=asked)
    else:
        topics = [offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0, 7]) for name in (topic, "no")]
        group = offset_fetch.OffsetFetchRequestGroup(group_id=topic, topics=topics)
        answer = wire.ask(OFFSET_FETCH, version, groups=[group]).groups[0]
    found = [
        (partition.partition_index, partition.committed_offset, partition.metadata, partition.error_code)
        for name in (topic, "no")
        for partition in next(asked.partitions for asked in answer.topics if asked.name == name)
    ]
    assert found == [(0, 5, "", 0), (7, -1, "", 0), (0, -1, "", 0), (7, -1, "", 0)]


def test_admin_requests_describe_a_group(wire: Wire, topic: str) -> None:
    (absent,) = wire.ask(DESCRIBE, 5, groups=[topic]).groups
    assert (absent.error_code, absent.group_state, absent.protocol_type) == (0, "Dead", "")
    (absent,) = wire.ask(DESCRIBE, 6, groups=[topic]).groups
    assert (absent.error_code, absent.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    (gone,) = wire.ask(DELETE, 2, groups_names=[topic]).results
    assert gone.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    member_id = wire.settle(topic, protocols=(("range", subscription(topic)),))
    wire.commit(topic, topic, member_id=member_id, generation_id_or_member_epoch=1)
    (found,) = wire.ask(DESCRIBE, 6, groups=[topic], include_authorized_operations=True).groups
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    assert found.authorized_operations == 0b110101001000
    (member,) = found.members
    assert (member.client_id, member.client_host, member.member_assignment) == ("wire", "/127.0.0.1", b"part")
    (listed,) = [group for group in wire.ask(LIST, 5).groups if group.group_id == topic]
    assert (listed.protocol_type, listed.group_state, listed.group_type) == ("consumer", "Stable", "classic")
    (kept,) = wire.ask(DELETE, 2, groups_names=[topic]).results
    assert kept.error_code == ErrorCode.NON_EMPTY_GROUP
    partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    topics = [offset_delete.OffsetDeleteRequestTopic(name=topic, partitions=[partition])]
    answer = wire.ask(OFFSET_DELETE, 0, group_id=topic, topics=topics)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    wire.ask(LEAVE, 2, group_id=topic, member_id=member_id)
    (empty,) = wire.ask(DESCRIBE, 6, groups=[topic]).groups
    assert (empty.group_state, empty.protocol_type, empty.protocol_data) == ("Empty", "consumer", "")
    assert wire.ask(OFFSET_DELETE, 0, group_id=topic, topics=topics).topics[0].partitions[0].error_code == 0
    (gone,) = wire.ask(DELETE, 2, groups_names=[topic]).results
    assert gone.error_code == ErrorCode.NONE


def subscription(topic: str) -> bytes:
    name = topic.encode()
    return struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", -1)
