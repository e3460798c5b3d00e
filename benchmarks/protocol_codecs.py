"""Compares compiled codecs with interpreted construct and with kafka-python's compiled codecs on the same messages.

`python -m benchmarks.protocol_codecs` prints ratios with their floors, and microseconds for the two hottest paths. The
codecs run in turns and the best turn of each counts, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.schemas.fields.codecs import EncodeBufferPool

from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.messages import api_versions, fetch, metadata, produce
from kbroker.protocol.registry import APIS
from kbroker.protocol.versions import Message

INTERPRETED_FLOOR = 20.0
KAFKA_PYTHON_FLOOR = 1.0
TURNS = 40
TURN_SECONDS = 0.004

Run = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One message and its three codecs."""

    name: str
    compiled: Run
    interpreted: Run
    kafka_python: Run


def best_times(*runs: Run, turns: int = TURNS) -> list[float]:
    """Returns the best time of one call of each function, in seconds; the functions run in turns."""
    loops = [max(1, int(TURN_SECONDS / max(_once(run), 1e-7))) for run in runs]
    best = [float("inf")] * len(runs)
    for _ in range(turns):
        for place, (run, count) in enumerate(zip(runs, loops, strict=True)):
            best[place] = min(best[place], _timed(run, count))
    return best


def _once(run: Run) -> float:
    run()
    return _timed(run, 1)


def _timed(run: Run, count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        run()
    return (perf_counter() - start) / count


def decode_row(name: str, message: Message, version: int, theirs: Any, value: Any) -> Row:
    compiled = codec(message, version)
    data = compiled.to_bytes(value)
    decode, view = compiled.decode, memoryview(data)
    flexible = theirs.flexible_version_q(version)
    their_decode = theirs._struct.compiled_decode_from(version, compact=flexible, tagged=flexible, data_class=theirs)
    assert decode(view)[1] == their_decode(view, 0)[1] == len(data)
    assert message.parse(data, version) == value
    return Row(name, lambda: decode(view), lambda: message.parse(data, version), lambda: their_decode(view, 0))


def encode_row(name: str, message: Message, version: int, value: Any, theirs: Any) -> Row:
    to_bytes = codec(message, version).to_bytes
    flexible = theirs.flexible_version_q(version)
    encode_into = theirs._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)

    def their_encode() -> bytes:
        with EncodeBufferPool.acquire() as out:
            encode_into(theirs, out)
            return bytes(out.result())

    assert to_bytes(value) == message.build(value, version) == their_encode()
    return Row(name, lambda: to_bytes(value), lambda: message.build(value, version), their_encode)


def produce_request() -> Any:
    partition = produce.PartitionProduceData(index=3, records=bytes(16384))
    topic = produce.TopicProduceData(name="benchmark-topic", partition_data=[partition])
    return produce.REQUEST(acks=-1, timeout_ms=30000, topic_data=[topic])


def produce_response() -> Any:
    partition = produce.PartitionProduceResponse(index=3, base_offset=1_000_000, log_start_offset=0)
    topic = produce.TopicProduceResponse(name="benchmark-topic", partition_responses=[partition])
    return produce.RESPONSE(responses=[topic])


def fetch_request(partitions: int) -> Any:
    rows = [
        fetch.FetchPartition(partition=n, fetch_offset=n * 1000, partition_max_bytes=1 << 20) for n in range(partitions)
    ]
    topic = fetch.FetchTopic(topic="benchmark-topic", partitions=rows)
    return fetch.REQUEST(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=[topic])


def metadata_responses(topics: int, partitions: int) -> tuple[Any, Any]:
    """Returns the same response for kbroker and for kafka-python; each partition has three replicas."""

    def members(number: int) -> dict[str, Any]:
        nodes = [number % 3, (number + 1) % 3, (number + 2) % 3]
        return {
            "partition_index": number,
            "leader_id": nodes[0],
            "leader_epoch": 5,
            "replica_nodes": nodes,
            "isr_nodes": nodes,
        }

    brokers = [{"node_id": n, "host": f"broker-{n}.example.org", "port": 9092} for n in range(3)]
    ids = [uuid.UUID(int=number + 1) for number in range(topics)]
    ours = metadata.RESPONSE(
        brokers=[metadata.MetadataResponseBroker(**broker) for broker in brokers],
        cluster_id="benchmark",
        controller_id=0,
        topics=[
            metadata.MetadataResponseTopic(
                name=f"topic-{number:04}",
                topic_id=ids[number].bytes,
                partitions=[metadata.MetadataResponsePartition(**members(n)) for n in range(partitions)],
            )
            for number in range(topics)
        ],
    )
    theirs = MetadataResponse(
        version=12,
        brokers=[MetadataResponse.MetadataResponseBroker(version=12, **broker) for broker in brokers],
        cluster_id="benchmark",
        controller_id=0,
        topics=[
            MetadataResponse.MetadataResponseTopic(
                version=12,
                name=f"topic-{number:04}",
                topic_id=ids[number],
                partitions=[
                    MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(version=12, **members(n))
                    for n in range(partitions)
                ],
            )
            for number in range(topics)
        ],
    )
    return ours, theirs


def api_versions_responses() -> tuple[Any, Any]:
    rows = [{"api_key": api.key, "min_version": api.versions[0], "max_version": api.versions[-1]} for api in APIS]
    ours = api_versions.RESPONSE(api_keys=[api_versions.ApiVersion(**row) for row in rows])
    theirs = ApiVersionsResponse(version=3, api_keys=[ApiVersionsResponse.ApiVersion(version=3, **row) for row in rows])
    return ours, theirs


def rows() -> list[Row]:
    our_metadata, their_metadata = metadata_responses(1000, 10)
    return [
        decode_row("Produce v9 decode, 16 KB", produce.REQUEST, 9, ProduceRequest, produce_request()),
        decode_row("Fetch v12 decode, 1 partition", fetch.REQUEST, 12, FetchRequest, fetch_request(1)),
        decode_row("Fetch v12 decode, 100 partitions", fetch.REQUEST, 12, FetchRequest, fetch_request(100)),
        encode_row("Metadata v12 encode, 1,000 x 10", metadata.RESPONSE, 12, our_metadata, their_metadata),
        encode_row("ApiVersions v3 encode", api_versions.RESPONSE, 3, *api_versions_responses()),
    ]


def produce_paths() -> dict[str, tuple[Run, float]]:
    """Returns name -> codec calls of one Produce request, and their budget in microseconds."""
    decode_header, decode_body = codec(REQUEST_HEADER, 2).decode, codec(produce.REQUEST, 9).decode
    encode_header, encode_body = codec(RESPONSE_HEADER, 1).encode, codec(produce.RESPONSE, 9).encode
    header = REQUEST_HEADER(request_api_key=0, request_api_version=9, correlation_id=7, client_id="benchmark")
    frame = memoryview(
        codec(REQUEST_HEADER, 2).to_bytes(header) + codec(produce.REQUEST, 9).to_bytes(produce_request())
    )
    answer_header, answer = RESPONSE_HEADER(correlation_id=7), produce_response()

    def decode() -> None:
        _, position = decode_header(frame)
        decode_body(frame, position)

    def encode() -> None:
        parts: list[Any] = []
        encode_header(answer_header, parts)
        encode_body(answer, parts)
        b"".join(parts)

    return {
        "Produce v9 decode, header and body": (decode, 4.0),
        "Produce v9 response encode": (encode, 2.0),
    }


def main() -> int:
    missed = False
    print(f"{'':34}{'µs':>10}{'interpreted':>14}{'kafka-python':>14}")
    for row in rows():
        compiled, interpreted, theirs = best_times(row.compiled, row.interpreted, row.kafka_python)
        ratios = interpreted / compiled, theirs / compiled
        is_below = ratios[0] < INTERPRETED_FLOOR or ratios[1] < KAFKA_PYTHON_FLOOR
        missed |= is_below
        print(f"{row.name:34}{compiled * 1e6:10.2f}{ratios[0]:13.1f}x{ratios[1]:13.2f}x{'   BELOW' * is_below}")
    print(f"{'floors':34}{'':10}{INTERPRETED_FLOOR:13.1f}x{KAFKA_PYTHON_FLOOR:13.2f}x")
    for name, (run, budget) in produce_paths().items():
        (seconds,) = best_times(run)
        print(f"{name:34}{seconds * 1e6:10.2f} (budget on an idle core: {budget:.0f} µs)")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
