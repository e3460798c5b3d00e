"""Large requests whose client has left: those that change nothing end at the next slice, and their memory is freed.

Counts slices and elements: each slice begins with a question whether the client is still there.
"""

from __future__ import annotations

import gc
from typing import Any, cast

import pytest
import trio

from kbroker.errors import Refusal
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.messages import (
    describe_configs,
    fetch,
    list_offsets,
    metadata,
    offset_fetch,
    offset_for_leader_epoch,
)
from kbroker.protocol.registry import api
from kbroker.protocol.values import Value
from kbroker.server.requests.thread_work import MAX_THREADS
from kbroker.server.wire.request_slot import RequestSlot
from tests.hostile.canary import QUARTER_OF_A_SLICE, CountedWork
from tests.server.conftest import StartBroker, broker, start_broker
from tests.server.handlers.group_harness import GroupBroker
from tests.server.handlers.harness import HandlerBroker, Peer, StillClock
from tests.server.toy_protocol import frame
from tests.server.wire_bench import Bench

__all__ = ["broker", "start_broker"]  # fixtures

COUNT = 6_000
SLICES = 5
"""Slices that a client waits before it leaves; all elements take thousands."""

OFFSET_FETCH, DELETE_TOPICS = 9, 20

NAMES = [f"name-{number}" for number in range(COUNT)]
GROUPS = [offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in NAMES]
READING: dict[str, tuple[int, int, dict[str, Any]]] = {
    "offsets of groups": (OFFSET_FETCH, 9, {"groups": GROUPS}),
    "offsets": (
        2,
        7,
        {
            "topics": [
                list_offsets.ListOffsetsTopic(
                    name="orders",
                    partitions=[list_offsets.ListOffsetsPartition(partition_index=n) for n in range(COUNT)],
                )
            ]
        },
    ),
    "topics": (
        3,
        12,
        {"topics": [metadata.MetadataRequestTopic(name=name) for name in NAMES], "allow_auto_topic_creation": False},
    ),
    "coordinators": (10, 4, {"key_type": 0, "coordinator_keys": NAMES}),
    "groups": (15, 5, {"groups": NAMES}),
    "epochs": (
        23,
        4,
        {
            "topics": [
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic="orders",
                    partitions=[
                        offset_for_leader_epoch.OffsetForLeaderPartition(partition=n, leader_epoch=0)
                        for n in range(COUNT)
                    ],
                )
            ]
        },
    ),
    "configs": (
        32,
        4,
        {
            "resources": [
                describe_configs.DescribeConfigsResource(resource_type=32, resource_name=name, configuration_keys=[])
                for name in NAMES
            ]
        },
    ),
    "records": (
        1,
        11,
        {
            "topics": [
                fetch.FetchTopic(topic="orders", partitions=[fetch.FetchPartition(partition=n) for n in range(COUNT)])
            ],
            "session_epoch": -1,
            "max_wait_ms": 0,
        },
    ),
}


class LeavingPeer(Peer):
    """Leaves after it was asked for a number of times."""

    def __init__(self, questions: int) -> None:
        super().__init__("PLAINTEXT")
        self.left = questions
        self.released = trio.Event()

    def has_peer_left(self) -> bool:
        self.left -= 1
        return self.left < 0

    def release(self) -> None:
        super().release()
        self.released.set()


@pytest.fixture
async def groups(start_broker: StartBroker, nursery: trio.Nursery) -> GroupBroker:
    groups = GroupBroker(await start_broker(offsets_topic_num_partitions=1))
    groups.start(nursery)
    await groups.coordinator.shards.ensure_topic()
    await groups.wait_loaded()
    return groups


def send(broker: HandlerBroker, peer: Peer, key: int, version: int, **members: Any) -> RequestSlot:
    called = api(key)
    header = REQUEST_HEADER(request_api_key=key, request_api_version=version, correlation_id=77, client_id="me")
    sent = codec(REQUEST_HEADER, called.request_header_version(version)).to_bytes(header)
    sent += codec(called.request, version).to_bytes(called.request(**members))
    slot = RequestSlot(cast(Any, peer))
    clock = broker.context.clock
    assert isinstance(clock, StillClock)
    clock.ticks = QUARTER_OF_A_SLICE
    broker.dispatch.handle(cast(Any, peer), memoryview(bytearray(sent)), slot)
    return slot


def count_values(kind: str) -> int:
    gc.collect()
    return sum(isinstance(found, Value) and type(found).__name__ == kind for found in gc.get_objects())


@pytest.mark.parametrize("name", READING)
async def test_a_large_request_ends_at_the_next_slice_after_its_client_has_left(groups: GroupBroker, name: str) -> None:
    broker = groups.broker
    peer = LeavingPeer(SLICES)
    key, version, members = READING[name]
    slot = send(broker, peer, key, version, **members)
    await peer.released.wait()
    assert peer.left == -1, "it went on after the client had left"
    assert slot.parts is None
    assert peer.is_abandoned
    assert broker.dispatch.bugs == 0
    assert broker.dispatch._large_requests.value == MAX_THREADS


async def test_the_memory_of_a_large_request_is_freed_when_its_client_has_left(groups: GroupBroker) -> None:
    kind = "OffsetFetchRequestGroup"
    before = count_values(kind)
    assert before >= COUNT  # the module's own
    peer = LeavingPeer(SLICES)
    send(groups.broker, peer, OFFSET_FETCH, 9, groups=GROUPS)
    await peer.released.wait()
    assert count_values(kind) == before


async def test_few_groups_are_looked_up_after_the_client_has_left(
    groups: GroupBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = LeavingPeer(COUNT)
    looked_up = 0

    def find_shard(*_: object) -> Any:
        nonlocal looked_up
        looked_up += 1
        if looked_up == 1_000:
            peer.left = 0
        raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    monkeypatch.setattr("kbroker.server.handlers.offset_fetch.find_shard", find_shard)
    send(groups.broker, peer, OFFSET_FETCH, 9, groups=GROUPS)
    await peer.released.wait()
    assert 1_000 <= looked_up < 1_010


async def test_a_large_request_is_not_decoded_if_its_client_has_left_while_it_waited(broker: HandlerBroker) -> None:
    work = CountedWork(broker)
    for _ in range(MAX_THREADS):
        broker.dispatch._large_requests.acquire_nowait()
    peer = LeavingPeer(0)
    send(broker, peer, OFFSET_FETCH, 9, groups=GROUPS)
    await trio.testing.wait_all_tasks_blocked()
    broker.dispatch._large_requests.release()
    await peer.released.wait()
    assert not work.runs


async def test_a_response_that_nobody_waits_for_is_not_encoded(broker: HandlerBroker) -> None:
    """A request of few elements, whose response has many: it is no large request, and its connection is not held."""
    work = CountedWork(broker)
    for number in range(60):
        await broker.create_topic(f"topic-{number}", 50)
    for questions, runs in ((1 << 30, 1), (0, 0)):
        work.runs = 0
        peer = LeavingPeer(questions)
        send(broker, peer, 75, 0, topics=[], response_partition_limit=2_000, cursor=None)
        await trio.testing.wait_all_tasks_blocked(0.01)
        if runs:
            await peer.answered.wait()
        assert work.runs == runs
    assert broker.dispatch.bugs == 0


async def test_a_request_that_changes_something_is_carried_out_though_its_client_has_left(
    broker: HandlerBroker,
) -> None:
    await broker.create_topic("orders")
    peer = LeavingPeer(0)
    send(broker, peer, DELETE_TOPICS, 5, topic_names=[*NAMES, "orders"], timeout_ms=1000)
    await peer.released.wait()
    assert "orders" not in broker.image.topics


async def test_a_group_that_is_named_many_times_has_its_offsets_read_once(
    groups: GroupBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would take as long as the group has offsets, though only the first one counts."""
    await groups.broker.create_topic("topic")
    assert await groups.commit(5) == 0
    offsets = groups.coordinator.shards.find("group").shard.offsets
    reads: list[str] = []
    committed = offsets.committed

    def count_reads(group_id: str) -> Any:
        reads.append(group_id)
        return committed(group_id)

    monkeypatch.setattr(offsets, "committed", count_reads)
    repeated = offset_fetch.OffsetFetchRequestGroup(group_id="group", topics=None)
    response = await groups.ask(OFFSET_FETCH, 9, groups=[repeated] * COUNT, require_stable=True)
    (group,) = response.groups
    assert [partition.committed_offset for topic in group.topics for partition in topic.partitions] == [5]
    assert reads == ["group"]


# The connection's part


@pytest.mark.parametrize("is_held", [False, True])
def test_a_connection_knows_that_its_peer_has_left_before_it_reads_the_end(bench: Bench, is_held: bool) -> None:
    connection, client = bench.connect()
    assert not connection.has_peer_left()
    client.sendall(b"bytes that are not read yet")
    assert not connection.has_peer_left()
    if is_held:
        connection.hold()
    client.close()
    assert connection.has_peer_left()
    assert not connection.is_closed
    connection.close()
    assert connection.has_peer_left()


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_stop_does_not_wait_for_the_response_to_a_peer_that_has_left(bench: Bench, is_stopping: bool) -> None:
    connection, client = bench.connect()
    client.sendall(frame(b"pone"))
    while not bench.handler.handled:
        bench.turn()
    client.close()
    if is_stopping:
        connection.finish()
        assert not connection.is_closed
        connection.abandon()
    else:
        connection.abandon()
        assert not connection.is_closed
        connection.finish()
    assert connection.is_closed
