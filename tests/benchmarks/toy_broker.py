"""Broker in memory that serves the requests of the loads with kbroker's codecs, and can respond wrongly on purpose."""

from __future__ import annotations

import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from benchmarks.connection import Address
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.messages import (
    api_versions,
    create_topics,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    produce,
)
from kbroker.protocol.record_batch import read_header, restamp, validate_batch

MESSAGES: dict[int, Any] = {
    0: produce,
    1: fetch,
    2: list_offsets,
    3: metadata,
    18: api_versions,
    19: create_topics,
    22: init_producer_id,
}
FLEXIBLE = {0: 9, 1: 12, 2: 6, 3: 9, 18: 3, 19: 5, 22: 2}
NOT_LEADER_OR_FOLLOWER, NOT_CONTROLLER = 6, 41
Distort = Callable[[Any], None]


class ToyBroker:
    """`logs`: topic -> partitions -> batches. `distort`: API key -> function that falsifies a response.

    Brokers of a cluster share their logs, and lead the partitions in turn: partition 0 is led by the second broker. The
    last broker is the controller.
    """

    def __init__(self, broker_id: int = 0, addresses: list[Address] | None = None) -> None:
        self.logs: dict[str, list[list[bytes]]] = {}
        self.distort: dict[int, Distort] = {}
        self.lock = threading.Lock()
        self.acks: set[int] = set()
        self._id = broker_id
        self._addresses = [] if addresses is None else addresses

    def leads(self, partition: int) -> bool:
        return not self._addresses or self._leader(partition) == self._id

    def _leader(self, partition: int) -> int:
        return (partition + 1) % len(self._addresses)

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
        self.acks.add(request.acks)
        if not self.leads(partition.index):
            return _produced(topic.name, partition.index, error_code=NOT_LEADER_OR_FOLLOWER)
        batches = self.logs[topic.name][partition.index]
        batch = bytearray(partition.records)
        validate_batch(batch)
        base = self.end(batches)
        restamp(batch, 0, base, 0)
        batches.append(bytes(batch))
        return _produced(topic.name, partition.index, base_offset=base)

    def handle_1(self, request: Any) -> Any:
        (topic,) = request.topics
        (requested,) = topic.partitions
        assert self.leads(requested.partition)
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
                error_code=0 if self.leads(requested.partition_index) else NOT_LEADER_OR_FOLLOWER,
                offset=self.end(self.logs[topic.name][requested.partition_index]),
            )
            for requested in topic.partitions
        ]
        return list_offsets.RESPONSE(topics=[list_offsets.ListOffsetsTopicResponse(name=topic.name, partitions=rows)])

    def handle_3(self, request: Any) -> Any:
        brokers = [
            metadata.MetadataResponseBroker(node_id=broker_id, host=host, port=port)
            for broker_id, (host, port) in enumerate(self._addresses)
        ]
        every_id = list(range(len(brokers)))
        topics = [
            metadata.MetadataResponseTopic(
                name=topic.name,
                partitions=[
                    metadata.MetadataResponsePartition(
                        partition_index=index, leader_id=self._leader(index), replica_nodes=every_id, isr_nodes=every_id
                    )
                    for index in range(len(self.logs[topic.name]))
                ],
            )
            for topic in request.topics
        ]
        return metadata.RESPONSE(brokers=brokers, controller_id=len(brokers) - 1, topics=topics)

    def handle_18(self, _: Any) -> Any:
        return api_versions.RESPONSE(api_keys=[api_versions.ApiVersion(api_key=key) for key in MESSAGES])

    def handle_19(self, request: Any) -> Any:
        (topic,) = request.topics
        if self._addresses and self._id != len(self._addresses) - 1:
            refused = create_topics.CreatableTopicResult(name=topic.name, error_code=NOT_CONTROLLER)
            return create_topics.RESPONSE(topics=[refused])
        self.logs[topic.name] = [[] for _ in range(topic.num_partitions)]
        return create_topics.RESPONSE(topics=[create_topics.CreatableTopicResult(name=topic.name)])

    def handle_22(self, _: Any) -> Any:
        return init_producer_id.RESPONSE(producer_id=7, producer_epoch=1)


def _produced(topic: str, partition: int, **fields: int) -> Any:
    answer = produce.PartitionProduceResponse(index=partition, **{"base_offset": -1, **fields})
    return produce.RESPONSE(responses=[produce.TopicProduceResponse(name=topic, partition_responses=[answer])])


@contextmanager
def serving_cluster() -> Iterator[list[tuple[ToyBroker, Address]]]:
    """Serves three brokers, and yields them with their addresses."""
    addresses: list[Address] = []
    toys = [ToyBroker(broker_id, addresses) for broker_id in range(3)]
    with ExitStack() as stack:
        for toy in toys:
            toy.logs = toys[0].logs
            toy.lock = toys[0].lock
            addresses.append(stack.enter_context(serving(toy)))
        yield list(zip(toys, addresses, strict=True))


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
