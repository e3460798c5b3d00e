"""Raw client on the compiled codecs: it sends any bytes, also ones that no correct client would send."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.messages import create_topics, delete_records, fetch, list_offsets, metadata, produce
from kbroker.protocol.record_batch import iter_headers
from kbroker.protocol.records import Record, iter_records
from kbroker.protocol.registry import APIS, Api

__all__ = ["Client", "connect", "encode_request", "records_of"]

BY_NAME: dict[str, Api] = {api.name: api for api in APIS}
PATIENCE_SECONDS = 30.0
MANY_BYTES = 50 * 1024 * 1024


def encode_request(api_name: str, version: int, correlation_id: int, /, **members: Any) -> bytes:
    """A whole frame, the length in front."""
    asked = BY_NAME[api_name]
    body = codec(asked.request, version).to_bytes(asked.request(**members))
    return encode_frame(asked.key, version, correlation_id, body, asked.request_header_version(version))


def encode_frame(key: int, version: int, correlation_id: int, body: bytes, header_version: int = 1) -> bytes:
    header = REQUEST_HEADER(
        request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id="wire"
    )
    content = codec(REQUEST_HEADER, header_version).to_bytes(header) + body
    return struct.pack(">i", len(content)) + content


def decode_response(api_name: str, version: int, frame: bytes) -> tuple[int, Any]:
    answered = BY_NAME[api_name]
    header, position = codec(RESPONSE_HEADER, answered.response_header_version(version)).decode(frame)
    response, end = codec(answered.response, version).decode(frame, position)
    assert end == len(frame), "bytes are left behind the response"
    return header.correlation_id, response


class Client:
    """One connection. `send` and `receive` pipeline; `ask` is both."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = bytearray()
        self._asked: list[tuple[str, int, int]] = []
        self._correlation_id = 0

    async def send_bytes(self, data: bytes) -> None:
        await self.stream.send_all(data)

    def encode(self, api_name: str, version: int, /, **members: Any) -> bytes:
        """A request that counts as asked: its answer is due in its turn."""
        self._correlation_id += 1
        self._asked.append((api_name, version, self._correlation_id))
        return encode_request(api_name, version, self._correlation_id, **members)

    async def send(self, api_name: str, version: int, /, **members: Any) -> None:
        await self.send_bytes(self.encode(api_name, version, **members))

    async def ask(self, api_name: str, version: int, /, **members: Any) -> Any:
        await self.send(api_name, version, **members)
        return await self.receive()

    async def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        api_name, version, asked_id = self._asked.pop(0)
        frame = await self.receive_frame()
        correlation_id, response = decode_response(api_name, version, frame)
        assert correlation_id == asked_id, "responses are not in the order of the requests"
        return response

    async def receive_frame(self) -> bytes:
        with trio.fail_after(PATIENCE_SECONDS):
            await self._fill(4)
            (size,) = struct.unpack_from(">i", self._received)
            await self._fill(4 + size)
        frame = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        return frame

    async def wait_closed(self) -> bytes:
        """Returns all bytes until the broker closes the connection."""
        with trio.fail_after(PATIENCE_SECONDS):
            try:
                while data := await self.stream.receive_some():
                    self._received += data
            except trio.BrokenResourceError:
                pass  # reset: it closed with bytes of ours unread
        return bytes(self._received)

    async def _fill(self, size: int) -> None:
        while len(self._received) < size:
            data = await self.stream.receive_some(65536)
            if not data:
                raise EOFError(f"closed after {len(self._received)} of {size} bytes")
            self._received += data

    # The requests that most tests need

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Its id. Configs by Kafka's names with underscores for dots."""
        result = await self.try_create_topic(name, partitions, {key.replace("_", "."): configs[key] for key in configs})
        assert result.error_code == 0, result
        return bytes(result.topic_id)

    async def try_create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Any:
        topic = create_topics.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                create_topics.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
            ],
        )
        return (await self.ask("CreateTopics", 7, topics=[topic])).topics[0]

    async def delete_topic(self, name: str) -> None:
        response = await self.ask("DeleteTopics", 5, topic_names=[name], timeout_ms=30000)
        assert response.responses[0].error_code == 0

    async def produce(
        self, topic: str, batch: bytes | bytearray | None, *, partition: int = 0, version: int = 9, acks: int = -1
    ) -> Any:
        """The answer for the one partition."""
        await self.send("Produce", version, **produce_members(topic, batch, partition=partition, acks=acks))
        return (await self.receive()).responses[0].partition_responses[0]

    async def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int = 11,
        max_bytes: int = MANY_BYTES,
        **members: Any,
    ) -> Any:
        """Returns the response for the one partition. Does not wait by default."""
        await self.send("Fetch", version, **fetch_members({(topic, partition): offset}, max_bytes=max_bytes, **members))
        return (await self.receive()).responses[0].partitions[0]

    async def read_all(self, topic: str, *, partition: int = 0, offset: int = 0) -> list[Record]:
        """Every record from `offset` to the high watermark, as a consumer sees them."""
        found: list[Record] = []
        while True:
            answer = await self.fetch(topic, offset, partition=partition)
            assert answer.error_code == 0, ErrorCode(answer.error_code)
            if offset >= answer.high_watermark:
                return found
            new = [record for record in records_of(answer) if record.offset >= offset]
            assert new, f"nothing at {offset} below the high watermark {answer.high_watermark}"
            found += new
            offset = new[-1].offset + 1

    async def list_offset(self, topic: str, timestamp: int, *, partition: int = 0, version: int = 7) -> Any:
        asked = list_offsets.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics = [list_offsets.ListOffsetsTopic(name=topic, partitions=[asked])]
        return (await self.ask("ListOffsets", version, replica_id=-1, topics=topics)).topics[0].partitions[0]

    async def delete_records(self, topic: str, offset: int, *, partition: int = 0) -> Any:
        asked = delete_records.DeleteRecordsPartition(partition_index=partition, offset=offset)
        topics = [delete_records.DeleteRecordsTopic(name=topic, partitions=[asked])]
        return (await self.ask("DeleteRecords", 2, topics=topics, timeout_ms=30000)).topics[0].partitions[0]

    async def topic_metadata(self, name: str, *, auto_create: bool = False) -> Any:
        asked = [metadata.MetadataRequestTopic(name=name)]
        return (await self.ask("Metadata", 12, topics=asked, allow_auto_topic_creation=auto_create)).topics[0]

    async def new_producer_id(self) -> int:
        response = await self.ask("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=60000)
        assert response.error_code == 0
        return int(response.producer_id)

    async def expect_service(self) -> None:
        """The broker is alive and this connection in order."""
        response = await self.ask("ApiVersions", 3, client_software_name="wire", client_software_version="1")
        assert response.error_code == 0


def produce_members(
    topic: str | bytes, batch: bytes | bytearray | None, *, partition: int = 0, acks: int = -1
) -> dict[str, Any]:
    """A topic's id, as bytes, from v13 on."""
    data = produce.PartitionProduceData(index=partition, records=batch)
    named = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    return {
        "acks": acks,
        "timeout_ms": 30000,
        "topic_data": [produce.TopicProduceData(partition_data=[data], **named)],
    }


def fetch_members(
    offsets: Mapping[tuple[str | bytes, int], int],
    *,
    max_bytes: int = MANY_BYTES,
    partition_max_bytes: int = MANY_BYTES,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    **members: Any,
) -> dict[str, Any]:
    """A topic's id, as bytes, from v13 on."""
    topics = []
    for (topic, partition), offset in offsets.items():
        asked = fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
        named = {"topic_id": topic} if isinstance(topic, bytes) else {"topic": topic}
        topics.append(fetch.FetchTopic(partitions=[asked], **named))
    return {"max_wait_ms": max_wait_ms, "min_bytes": min_bytes, "max_bytes": max_bytes, "topics": topics, **members}


def records_of(answer: Any) -> list[Record]:
    """The records of a partition's fetch answer. A batch cut off at the end is left out, as clients do."""
    data = bytes(answer.records or b"")
    return [record for position, _header in iter_headers(data) for record in iter_records(data, position)]


@asynccontextmanager
async def connect(port: int, host: str = "127.0.0.1") -> AsyncIterator[Client]:
    stream = await trio.open_tcp_stream(host, port)
    try:
        yield Client(stream)
    finally:
        await trio.aclose_forcefully(stream)
