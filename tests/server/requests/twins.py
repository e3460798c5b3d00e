"""Two brokers that get the same frames, each on one connection. One of the brokers recognises no requests."""

from __future__ import annotations

import uuid
from typing import Any, Final, cast

import pytest
from hypothesis import strategies as st

from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.messages import fetch, list_offsets, produce
from kbroker.protocol.registry import api
from kbroker.server.requests import dispatch as dispatching
from kbroker.server.requests.request import read_request
from kbroker.server.wire.request_slot import RequestSlot
from kbroker.server.wire.transport import BYTES
from tests.server.handlers.harness import HandlerBroker, Peer, parse_response

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
KNOWN_PRODUCES: Final = range(7, 14)
KNOWN_FETCHES: Final = range(4, 19)
KNOWN_LIST_OFFSETS: Final = range(1, 11)
LATEST: Final = -1
EARLIEST: Final = -2
TOPICS: Final = ("t", "with-a-longer-name")
CLOSED: Final = b"the connection was closed"
WAITS: Final = b"there is no answer yet"


def topic_id(name: str) -> bytes:
    return uuid.UUID(bytes=bytes([1 + TOPICS.index(name)]) * 16, version=4).bytes


class Source:
    """Source of equal topic ids for both brokers, in place of randomness."""

    next = b"\xff" * 16

    def take(self, size: int) -> bytes:
        return self.next[:size]


class Twins:
    """Two brokers that get the same frames. `decoded` counts the requests that were decoded."""

    def __init__(self, quick: HandlerBroker, plain: HandlerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.brokers = (quick, plain)
        self.quick = quick
        monkeypatch.setattr(plain.dispatch, "_repeated_of", lambda key: None)
        self.peers = [Peer("PLAINTEXT"), Peer("PLAINTEXT")]
        self.decoded = 0

        def counting(*arguments: Any) -> Any:
            self.decoded += 1
            return read_request(*arguments)

        monkeypatch.setattr(dispatching, "read_request", counting)

    def ask(self, *frames: bytes) -> list[bytes]:
        """Returns the responses to the frames of one run, which must be equal."""
        answers = [self._ask(number, frames) for number in (0, 1)]
        assert answers[0] == answers[1]
        return answers[0]

    def ask_known(self, *frames: bytes) -> list[bytes]:
        """Like `ask`, for frames that must be recognised."""
        before = self.decoded
        answers = self.ask(*frames)
        assert self.decoded - before == len(frames), "only the other broker should have decoded them"
        return answers

    def ask_unknown(self, *frames: bytes) -> list[bytes]:
        before = self.decoded
        answers = self.ask(*frames)
        assert self.decoded - before == 2 * len(frames)
        return answers

    def _ask(self, number: int, frames: tuple[bytes, ...]) -> list[bytes]:
        broker, peer = self.brokers[number], cast(Any, self.peers[number])
        slots = []
        try:
            for frame in frames:
                slots.append(RequestSlot(peer))
                broker.dispatch.handle(peer, memoryview(bytearray(frame)), slots[-1])
        except PeerError:
            slots.pop()
            self.peers[number] = Peer("PLAINTEXT")
        broker.context.run.write()
        answers = [content_of(slot) for slot in slots]
        return answers if len(slots) == len(frames) else [*answers, CLOSED]

    def forget(self) -> None:
        self.peers = [Peer("PLAINTEXT"), Peer("PLAINTEXT")]


def content_of(slot: RequestSlot) -> bytes:
    if slot.parts is None:
        slot.cancel()
        return WAITS
    content = b"".join(part if isinstance(part, BYTES) else part.read() for part in slot.parts)
    for part in slot.parts:
        if not isinstance(part, BYTES):
            part.release()
    return content


def frame_of(key: int, version: int, body: Any, *, client_id: str | None = "me") -> bytes:
    header = REQUEST_HEADER(request_api_key=key, request_api_version=version, correlation_id=77, client_id=client_id)
    asked = api(key)
    head = codec(REQUEST_HEADER, asked.request_header_version(version)).to_bytes(header)
    return head + codec(asked.request, version).to_bytes(body)


def produce_frame(
    version: int,
    batch: bytes | bytearray | None,
    topic: str = "t",
    index: int = 0,
    *,
    acks: int = 1,
    transactional_id: str | None = None,
    client_id: str | None = "me",
) -> bytes:
    data = produce.TopicProduceData(
        name=topic,
        topic_id=topic_id(topic),
        partition_data=[produce.PartitionProduceData(index=index, records=batch)],
    )
    body = produce.REQUEST(transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[data])
    return frame_of(PRODUCE, version, body, client_id=client_id)


def fetch_frame(
    version: int,
    offset: int,
    topic: str = "t",
    index: int = 0,
    *,
    max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    isolation: int = 0,
    epoch: int = -1,
    replica: int = -1,
    last_fetched_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
    client_id: str | None = "me",
) -> bytes:
    asked = fetch.FetchPartition(
        partition=index,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_fetched_epoch,
    )
    data = fetch.FetchTopic(topic=topic, topic_id=topic_id(topic), partitions=[asked])
    members = {"replica_state": fetch.ReplicaState(replica_id=replica)} if version >= 15 else {"replica_id": replica}
    body = fetch.REQUEST(
        max_wait_ms=0,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[data],
        **members,
    )
    return frame_of(FETCH, version, body, client_id=client_id)


def list_offsets_frame(
    version: int,
    timestamp: int = LATEST,
    topic: str = "t",
    index: int = 0,
    *,
    isolation: int = 0,
    epoch: int = -1,
    replica: int = -1,
    client_id: str | None = "me",
) -> bytes:
    asked = list_offsets.ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp)
    data = list_offsets.ListOffsetsTopic(name=topic, partitions=[asked])
    body = list_offsets.REQUEST(replica_id=replica, isolation_level=isolation, topics=[data], timeout_ms=1000)
    return frame_of(LIST_OFFSETS, version, body, client_id=client_id)


def listed(version: int, frame: bytes) -> tuple[int, int, int]:
    """Returns error code, offset and leader epoch."""
    (topic,) = parse_response(LIST_OFFSETS, version, frame).topics
    (answer,) = topic.partitions
    return answer.error_code, answer.offset, answer.leader_epoch


def produced(version: int, frame: bytes) -> tuple[int, int]:
    (topic,) = parse_response(PRODUCE, version, frame).responses
    (answer,) = topic.partition_responses
    return answer.error_code, answer.base_offset


def fetched(version: int, frame: bytes) -> tuple[int, bytes]:
    (topic,) = parse_response(FETCH, version, frame).responses
    (answer,) = topic.partitions
    return answer.error_code, bytes(answer.records or b"")


def mutations() -> st.SearchStrategy[tuple[str, int, int]]:
    return st.tuples(st.sampled_from(["flip", "flip", "cut", "add"]), st.integers(0, 200), st.integers(1, 255))


def mutated(frame: bytes, mutation: tuple[str, int, int], batch_size: int) -> bytes:
    """Changed anywhere but in API, version and batch: those have tests of their own."""
    kind, place, value = mutation
    behind_size = 3 if frame[1] == PRODUCE and frame[3] >= 9 else 0
    batch_end = len(frame) - behind_size
    if kind == "flip":
        places = [*range(4, batch_end - batch_size), *range(batch_end, len(frame))]
        at = places[-1 - place % len(places)]
        return frame[:at] + bytes([frame[at] ^ value]) + frame[at + 1 :]
    if kind == "cut":
        return frame[: max(len(frame) - 1 - place, 4)]
    return frame + bytes(place % 5) + bytes([value])
