"""Broker in memory that serves the requests of the loads with kbroker's codecs, and can respond wrongly on purpose."""

from __future__ import annotations

import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from benchmarks.connection import Address
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.messages import api_versions, create_topics, fetch, init_producer_id, list_offsets, produce
from kbroker.protocol.record_batch import read_header, restamp, validate_batch

MESSAGES: dict[int, Any] = {
    0: produce,
    1: fetch,
    2: list_offsets,
    18: api_versions,
    19: create_topics,
    22: init_producer_id,
}
FLEXIBLE = {0: 9, 1: 12, 2: 6, 18: 3, 19: 5, 22: 2}
Distort = Callable[[Any], None]


class ToyBroker:
    """`logs`: topic -> partitions -> batches. `distort`: API key -> function that falsifies a response."""

    def __init__(self) -> None:
        self.logs: dict[str, list[list[bytes]]] = {}
        self.distort: dict[int, Distort] = {}
        self.lock = threading.Lock()

    def answer(self, frame: bytes) -> bytes:
        key, version = struct.unpack_from(">hh", frame)
        flexible = version >= FLEXIBLE[key]
        header, position = codec(REQUEST_HEADER, 2 if flexible else 1).decode(memoryview(frame))
        body, end = codec(MESSAGES[key].REQUEST, version).decode(memoryview(frame), position)
        assert end == len(frame)
        with self.lock:
            response = getattr(self, f"handle_{key}")(body)
        self.distort.get(key, lambda _: None)(response)
        head = codec(RESPONSE_HEADER, int(flexible)).to_bytes(RESPONSE_HEADER(correlation_id=header.correlation_id))
        return head + codec(MESSAGES[key].RESPONSE, version).to_bytes(response)

    def end(self, batches: list[bytes]) -> int:
        return read_header(batches[-1]).last_offset + 1 if batches else 0

    def handle_0(self, request: Any) -> Any:
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        batches = self.logs[topic.name][partition.index]
        batch = bytearray(partition.records)
        validate_batch(batch)
        base = self.end(batches)
        restamp(batch, 0, base, 0)
        batches.append(bytes(batch))
        answer = produce.PartitionProduceResponse(index=partition.index, base_offset=base)
        return produce.RESPONSE(responses=[produce.TopicProduceResponse(name=topic.name, partition_responses=[answer])])

    def handle_1(self, request: Any) -> Any:
        (topic,) = request.topics
        (requested,) = topic.partitions
        batches = self.logs[topic.topic][requested.partition]
        rest = b"".join(batch for batch in batches if read_header(batch).last_offset >= requested.fetch_offset)
        records = rest[: requested.partition_max_bytes]
        answer = fetch.PartitionData(partition_index=0, high_watermark=self.end(batches), records=records)
        return fetch.RESPONSE(responses=[fetch.FetchableTopicResponse(topic=topic.topic, partitions=[answer])])

    def handle_2(self, request: Any) -> Any:
        (topic,) = request.topics
        rows = [
            list_offsets.ListOffsetsPartitionResponse(
                partition_index=requested.partition_index,
                offset=self.end(self.logs[topic.name][requested.partition_index]),
            )
            for requested in topic.partitions
        ]
        return list_offsets.RESPONSE(topics=[list_offsets.ListOffsetsTopicResponse(name=topic.name, partitions=rows)])

    def handle_18(self, _: Any) -> Any:
        return api_versions.RESPONSE(api_keys=[api_versions.ApiVersion(api_key=key) for key in MESSAGES])

    def handle_19(self, request: Any) -> Any:
        (topic,) = request.topics
        self.logs[topic.name] = [[] for _ in range(topic.num_partitions)]
        return create_topics.RESPONSE(topics=[create_topics.CreatableTopicResult(name=topic.name)])

    def handle_22(self, _: Any) -> Any:
        return init_producer_id.RESPONSE(producer_id=7, producer_epoch=1)


@contextmanager
def serving(broker: ToyBroker, tls: ssl.SSLContext | None = None) -> Iterator[Address]:
    class Handler(socketserver.StreamRequestHandler):
        disable_nagle_algorithm = True

        def setup(self) -> None:
            if tls is not None:
                self.request = tls.wrap_socket(self.request, server_side=True)
            super().setup()

        def finish(self) -> None:
            super().finish()
            self.request.close()

        def handle(self) -> None:
            with suppress(ConnectionError):  # a load that finds a wrong response closes the connection
                while length := self.rfile.read(4):
                    answer = broker.answer(self.rfile.read(int.from_bytes(length, "big")))
                    self.wfile.write(struct.pack(">i", len(answer)) + answer)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield "127.0.0.1", int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
