"""Heartbeats of the consumer protocol on the wire: both brokers respond the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.scenarios.consumer_groups import WireMember, shared
from compat_tests.scenarios.groups import create_topic
from compat_tests.scenarios.test_groups_wire import (
    DELETE,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC,
    Wire,
)
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.consumer_protocol import SUBSCRIPTION, TopicPartition
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import (
    join_group,
    leave_group,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
)

METADATA, API_VERSIONS, CONSUMER_DESCRIBE = 3, 18, 69


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    connection = Wire(bootstrap)
    yield connection
    connection.close()


@pytest.fixture
def topic_id(bootstrap: str, topic: str, wire: Wire) -> bytes:
    """Returns the id of a topic with four partitions; the group has the topic's name."""
    create_topic(bootstrap, topic, 4)
    wire.ask(10, 4, coordinator_keys=[topic], key_type=0)
    # Apache Kafka's coordinator sees a new topic later than its brokers; another group shows when it does.
    probe = WireMember(wire, f"{topic}-probe", "probe")
    answer = probe.join([topic])
    for _ in range(100):
        if shared(answer):
            break
        time.sleep(0.05)
        answer = probe.beat(answer.member_epoch)
    probe.beat(-1)
    asked = [metadata.MetadataRequestTopic(name=topic)]
    return bytes(wire.ask(METADATA, 12, topics=asked, allow_auto_topic_creation=False).topics[0].topic_id)


def name(code: int) -> str:
    return ErrorCode(code).name


def outcome(answer: Any) -> tuple[str, int, list[int] | None]:
    return name(answer.error_code), answer.member_epoch, shared(answer)


def test_the_new_protocol_is_finalized(wire: Wire) -> None:
    answer = wire.ask(API_VERSIONS, 4, client_software_name="wire", client_software_version="1")
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert levels["group.version"] == 1
    assert {api.api_key: api.max_version for api in answer.api_keys if api.api_key in (68, 69)} == {68: 1, 69: 1}


def test_an_invalid_join_is_refused(wire: Wire, topic: str, topic_id: bytes) -> None:
    member = WireMember(wire, topic, "m")
    invalid = {
        "no member id": WireMember(wire, topic, "").join([topic]),
        "no group": WireMember(wire, "", "m").join([topic]),
        "empty instance": member.join([topic], instance_id=""),
        "empty rack": member.join([topic], rack_id=""),
        "no timeout": member.join([topic], rebalance_timeout_ms=-1),
        "no partitions": member.join([topic], topic_partitions=None),
        "partitions": member.join([topic], topic_partitions=WireMember.owned(topic_id, 1)),
        "no subscription": member.join(None),
        "epoch": member.beat(-3),
        "temporary leave of a dynamic member": member.beat(-2),
    }
    assert {case: name(answer.error_code) for case, answer in invalid.items()} == dict.fromkeys(
        invalid, "INVALID_REQUEST"
    )
    assert name(member.join([topic], server_assignor="mine").error_code) == "UNSUPPORTED_ASSIGNOR"
    assert name(member.join(None, subscribed_topic_regex="(a").error_code) == "INVALID_REGULAR_EXPRESSION"
    assert name(member.beat(1).error_code) == "GROUP_ID_NOT_FOUND"
    assert name(member.beat(-1).error_code) == "GROUP_ID_NOT_FOUND"


def test_before_v1_the_broker_generates_the_member_id(wire: Wire, topic: str, topic_id: bytes) -> None:
    first = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic], "topic_partitions": []}
    answer = WireMember(wire, topic, "").beat(0, version=0, **first)
    assert outcome(answer) == ("NONE", 1, [0, 1, 2, 3])
    assert answer.member_id


def test_partitions_are_revoked_before_they_are_reassigned(wire: Wire, topic: str, topic_id: bytes) -> None:
    a, b = WireMember(wire, topic, "a"), WireMember(wire, topic, "b")
    owned = WireMember.owned
    assert outcome(a.join([topic])) == ("NONE", 1, [0, 1, 2, 3])
    assert outcome(a.join([topic])) == ("NONE", 1, [0, 1, 2, 3])
    assert outcome(a.beat(1)) == ("NONE", 1, None)
    assert outcome(b.join([topic])) == ("NONE", 2, [])
    assert outcome(a.beat(1)) == ("NONE", 1, [0, 1])
    assert outcome(b.beat(2)) == ("NONE", 2, None)
    assert outcome(a.beat(1, topic_partitions=owned(topic_id, 0, 1, 2))) == ("NONE", 1, None)
    assert outcome(a.beat(1, topic_partitions=owned(topic_id, 0, 1))) == ("NONE", 2, None)
    assert outcome(b.beat(2)) == ("NONE", 2, [2, 3])
    assert outcome(a.beat(1, topic_partitions=owned(topic_id, 0, 1))) == ("NONE", 2, None)
    for epoch, partitions in [(1, None), (1, owned(topic_id, 2)), (7, None), (0, [])]:
        asked: dict[str, Any] = {"topic_partitions": partitions}
        if epoch == 0:
            asked |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic]}
        assert name(a.beat(epoch, **asked).error_code) == "FENCED_MEMBER_EPOCH"
    assert name(WireMember(wire, topic, "x").beat(2).error_code) == "UNKNOWN_MEMBER_ID"
    assert name(WireMember(wire, topic, "x").beat(-1).error_code) == "UNKNOWN_MEMBER_ID"
    assert outcome(b.beat(-1)) == ("NONE", -1, None)
    assert outcome(a.beat(2)) == ("NONE", 3, [0, 1, 2, 3])


def test_static_members_rejoin(wire: Wire, topic: str, topic_id: bytes) -> None:
    first, second = WireMember(wire, topic, "1"), WireMember(wire, topic, "2")
    assert outcome(first.join([topic], instance_id="i")) == ("NONE", 1, [0, 1, 2, 3])
    assert name(second.join([topic], instance_id="i").error_code) == "UNRELEASED_INSTANCE_ID"
    assert name(second.beat(1, instance_id="i").error_code) == "FENCED_INSTANCE_ID"
    assert name(first.beat(1, instance_id="unknown").error_code) == "UNKNOWN_MEMBER_ID"
    assert outcome(first.beat(-2, instance_id="i")) == ("NONE", -2, None)
    assert name(first.beat(1, instance_id="i").error_code) == "FENCED_MEMBER_EPOCH"
    assert outcome(second.join([topic], instance_id="i")) == ("NONE", 1, [0, 1, 2, 3])
    assert name(first.beat(-2, instance_id="i").error_code) == "FENCED_INSTANCE_ID"
    assert outcome(second.beat(-1, instance_id="i")) == ("NONE", -1, None)
    assert name(second.beat(-1, instance_id="i").error_code) == "UNKNOWN_MEMBER_ID"


def test_admin_requests_describe_a_consumer_group(wire: Wire, topic: str, topic_id: bytes) -> None:
    member = WireMember(wire, topic, "m")
    member.join([topic])
    (group,) = wire.ask(CONSUMER_DESCRIBE, 1, group_ids=[topic], include_authorized_operations=True).groups
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Stable", 1, 1)
    assert (group.assignor_name, group.authorized_operations) == ("uniform", 3400)
    (found,) = group.members
    assert (found.member_epoch, found.member_type, found.subscribed_topic_names) == (1, 1, [topic])
    assert (found.subscribed_topic_regex, found.client_id, found.client_host) == ("", "wire", "/127.0.0.1")
    (part,) = found.assignment.topic_partitions
    assert (part.topic_id, part.topic_name, sorted(part.partitions)) == (topic_id, topic, [0, 1, 2, 3])
    (classic,) = wire.ask(DESCRIBE, 6, groups=[topic]).groups
    assert (name(classic.error_code), classic.group_state) == ("GROUP_ID_NOT_FOUND", "Dead")
    (classic,) = wire.ask(DESCRIBE, 5, groups=[topic]).groups
    assert (name(classic.error_code), classic.group_state) == ("NONE", "Dead")
    for filters, is_found in [
        ({"types_filter": ["consumer"]}, True),
        ({"types_filter": ["Consumer"], "states_filter": ["stable"]}, True),
        ({"types_filter": ["classic"]}, False),
        ({"states_filter": ["Empty"]}, False),
    ]:
        asked = {"states_filter": [], "types_filter": [], **filters}
        listed = [group for group in wire.ask(LIST, 5, **asked).groups if group.group_id == topic]
        assert bool(listed) == is_found
        assert all((row.group_type, row.protocol_type) == ("consumer", "consumer") for row in listed)
    assert name(wire.ask(DELETE, 2, groups_names=[topic]).results[0].error_code) == "NON_EMPTY_GROUP"
    left = wire.ask(
        LEAVE, 5, group_id=topic, members=[leave_group.MemberIdentity(member_id="m", group_instance_id=None)]
    )
    assert name(left.members[0].error_code) == "NONE"
    assert name(member.beat(1).error_code) == "UNKNOWN_MEMBER_ID"
    assert name(wire.ask(DELETE, 2, groups_names=[topic]).results[0].error_code) == "NONE"
    (gone,) = wire.ask(CONSUMER_DESCRIBE, 1, group_ids=[topic], include_authorized_operations=False).groups
    assert name(gone.error_code) == "GROUP_ID_NOT_FOUND"


def test_offsets_carry_the_epoch(wire: Wire, topic: str, topic_id: bytes) -> None:
    WireMember(wire, topic, "m").join([topic])

    def commit(member_id: str, epoch: int, version: int = 9) -> str:
        partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
        topics = [offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[partition])]
        asked = {"group_id": topic, "member_id": member_id, "generation_id_or_member_epoch": epoch}
        return name(wire.ask(OFFSET_COMMIT, version, topics=topics, **asked).topics[0].partitions[0].error_code)

    def fetch(member_id: str | None, epoch: int) -> str:
        group = offset_fetch.OffsetFetchRequestGroup(
            group_id=topic, member_id=member_id, member_epoch=epoch, topics=None
        )
        return name(wire.ask(OFFSET_FETCH, 9, groups=[group], require_stable=False).groups[0].error_code)

    assert [commit("m", 1), commit("m", 0), commit("m", 2)] == ["NONE", "STALE_MEMBER_EPOCH", "STALE_MEMBER_EPOCH"]
    assert [commit("x", 1), commit("", -1)] == ["UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID"]
    assert commit("m", 1, version=8) == "UNSUPPORTED_VERSION"
    assert [fetch("m", 1), fetch(None, -1)] == ["NONE", "NONE"]
    assert [fetch("m", 0), fetch("x", 1), fetch("", -1)] == [
        "STALE_MEMBER_EPOCH",
        "UNKNOWN_MEMBER_ID",
        "UNKNOWN_MEMBER_ID",
    ]
    partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    deleted = wire.ask(
        OFFSET_DELETE,
        0,
        group_id=topic,
        topics=[offset_delete.OffsetDeleteRequestTopic(name=topic, partitions=[partition])],
    )
    assert name(deleted.topics[0].partitions[0].error_code) == "GROUP_SUBSCRIBED_TO_TOPIC"


class Classic:
    """Hand-written member of the classic protocol."""

    def __init__(self, wire: Wire, group: str) -> None:
        self._wire, self._group, self.member_id = wire, group, ""

    def join(self, owned: tuple[int, ...] = (), protocol_type: str = "consumer") -> Any:
        parts = [TopicPartition(topic=self._group, partitions=list(owned))] if owned else []
        subscription = SUBSCRIPTION(topics=[self._group], owned_partitions=parts)
        data = b"\0\1" + codec(SUBSCRIPTION, 1).to_bytes(subscription)
        answer = self._wire.ask(
            JOIN,
            9,
            group_id=self._group,
            member_id=self.member_id,
            protocol_type=protocol_type,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=data)],
        )
        if name(answer.error_code) == "MEMBER_ID_REQUIRED":
            self.member_id = answer.member_id
            return self.join(owned, protocol_type)
        return answer

    def sync(self, generation: int, protocol_name: str = "range") -> tuple[str, bytes]:
        asked = {"group_id": self._group, "member_id": self.member_id, "generation_id": generation}
        named = {"protocol_type": "consumer", "protocol_name": protocol_name}
        answer = self._wire.ask(SYNC, 5, **asked, **named, assignments=[])
        return name(answer.error_code), bytes(answer.assignment)

    def beat(self, generation: int) -> str:
        asked = {"group_id": self._group, "member_id": self.member_id, "generation_id": generation}
        return name(self._wire.ask(HEARTBEAT, 4, **asked).error_code)


def test_one_group_has_members_of_both_protocols(wire: Wire, topic: str, topic_id: bytes) -> None:
    new, old = WireMember(wire, topic, "new"), Classic(wire, topic)
    new.join([topic])
    assert name(old.join(protocol_type="connect").error_code) == "INCONSISTENT_GROUP_PROTOCOL"
    joined = old.join()
    assert (name(joined.error_code), joined.generation_id, joined.leader) == ("NONE", 2, "")
    assert (joined.protocol_type, joined.protocol_name, joined.members) == ("consumer", "range", [])
    assert old.sync(3)[0] == "ILLEGAL_GENERATION"
    assert old.sync(2, "sticky")[0] == "INCONSISTENT_GROUP_PROTOCOL"
    assert old.sync(2)[0] == "NONE"
    assert old.beat(2) == "NONE"
    assert outcome(new.beat(1)) == ("NONE", 1, [0, 1])
    assert outcome(new.beat(1, topic_partitions=WireMember.owned(topic_id, 0, 1))) == ("NONE", 2, None)
    assert old.beat(2) == "REBALANCE_IN_PROGRESS"
    assert old.join().generation_id == 2
    code, assignment = old.sync(2)
    assert (code, assignment[-16:]) == ("NONE", b"\0\0\0\2\0\0\0\2\0\0\0\3\xff\xff\xff\xff")
    (group,) = wire.ask(CONSUMER_DESCRIBE, 1, group_ids=[topic], include_authorized_operations=False).groups
    assert sorted(member.member_type for member in group.members) == [0, 1]
    # The last member of the consumer protocol leaves: the group becomes classic again and rebalances.
    new.beat(-1)
    (group,) = wire.ask(DESCRIBE, 6, groups=[topic]).groups
    assert (name(group.error_code), group.group_state, len(group.members)) == ("NONE", "PreparingRebalance", 1)
    assert old.beat(2) == "REBALANCE_IN_PROGRESS"
    joined = old.join((2, 3))
    assert (joined.generation_id, joined.leader) == (3, old.member_id)
    assert name(new.beat(2).error_code) == "GROUP_ID_NOT_FOUND"
    # When a member of the consumer protocol joins again, the group becomes a consumer group again.
    assert outcome(new.join([topic]))[:2] == ("NONE", 4)
    assert old.beat(3) == "REBALANCE_IN_PROGRESS"
    assert old.join().generation_id == 4
    assert old.sync(4)[0] == "NONE"


def test_groups_of_other_types_are_not_converted(wire: Wire, topic: str, topic_id: bytes) -> None:
    worker = Classic(wire, topic)
    assert name(worker.join(protocol_type="connect").error_code) == "NONE"
    assert name(WireMember(wire, topic, "m").join([topic]).error_code) == "GROUP_ID_NOT_FOUND"
    (group,) = wire.ask(CONSUMER_DESCRIBE, 1, group_ids=[topic], include_authorized_operations=False).groups
    assert name(group.error_code) == "GROUP_ID_NOT_FOUND"
    assert worker.beat(1) == "NONE"
