"""A broker of a few lines, over streams in memory: it answers what a test tells it to, right or wrong."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import trio
from trio.testing import memory_stream_pair

from kbroker.client.address import Address
from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import CouldNotConnect
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.messages import api_versions, metadata
from kbroker.protocol.registry import APIS, Api

BY_NAME: Mapping[str, Api] = {row.name: row for row in APIS}
ADDRESS = Address("toy", 9092)

Answer = Callable[[Any], Any]


def answer_frame(asked: Api, version: int, correlation_id: int, response: Any) -> bytes:
    header = RESPONSE_HEADER(correlation_id=correlation_id)
    content = codec(RESPONSE_HEADER, asked.response_header_version(version)).to_bytes(header)
    content += codec(asked.response, version).to_bytes(response)
    return struct.pack(">i", len(content)) + content


async def read_request(stream: trio.abc.ReceiveStream) -> tuple[Api, int, int, Any] | None:
    """API, version, correlation id and body; None at the end."""
    frame = await _read_exactly(stream, 4)
    if frame is None:
        return None
    content = await _read_exactly(stream, struct.unpack(">i", frame)[0])
    assert content is not None
    key, version = struct.unpack_from(">hh", content)
    asked = next(row for row in APIS if row.key == key)
    header, position = codec(REQUEST_HEADER, asked.request_header_version(version)).decode(content)
    body, end = codec(asked.request, version).decode(content, position)
    assert end == len(content)
    return asked, version, header.correlation_id, body


async def _read_exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            more = await stream.receive_some(size - len(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        if not more:
            return None
        data += more
    return data


class ToyBroker:
    """`answers`: API name -> function from the request to the response; None answers nothing at all."""

    def __init__(self, nursery: trio.Nursery, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers: dict[str, Answer] = {"ApiVersions": self.api_versions, **(answers or {})}
        self.asked: Counter[str] = Counter()
        self.versions: dict[str, int] = {}
        self.is_down = False
        self._nursery = nursery
        self._streams: list[trio.abc.Stream] = []

    async def connect(self, address: Address, *, client_id: str) -> BrokerConnection:
        if self.is_down:
            raise CouldNotConnect(address)
        ours, theirs = memory_stream_pair()
        self._streams.append(theirs)
        self._nursery.start_soon(self._serve, theirs)
        connection = BrokerConnection(ours, address, client_id=client_id)
        await connection.negotiate()
        return connection

    async def drop_connections(self) -> None:
        for stream in self._streams:
            await trio.aclose_forcefully(stream)
        self._streams.clear()

    async def _serve(self, stream: trio.abc.Stream) -> None:
        while (request := await read_request(stream)) is not None:
            asked, version, correlation_id, body = request
            self.asked[asked.name] += 1
            self.versions[asked.name] = version
            response = self.answers[asked.name](body)
            if response is not None:
                await stream.send_all(answer_frame(asked, version, correlation_id, response))

    def api_versions(self, _request: Any) -> Any:
        keys = [
            api_versions.ApiVersion(
                api_key=BY_NAME[name].key,
                min_version=BY_NAME[name].versions[0],
                max_version=BY_NAME[name].versions[-1],
            )
            for name in self.answers
        ]
        return api_versions.RESPONSE(api_keys=keys)


def metadata_of(topics: Mapping[str, int], *, leader: int = 1, error_code: int = 0) -> Any:
    """One broker; these topics with so many partitions."""
    return metadata.RESPONSE(
        brokers=[metadata.MetadataResponseBroker(node_id=1, host=ADDRESS.host, port=ADDRESS.port)],
        cluster_id="toys",
        controller_id=1,
        topics=[
            metadata.MetadataResponseTopic(
                name=name,
                error_code=error_code,
                topic_id=bytes(15) + b"\x07",
                partitions=[
                    metadata.MetadataResponsePartition(
                        partition_index=number, leader_id=leader, replica_nodes=[1], isr_nodes=[1]
                    )
                    for number in range(count)
                ],
            )
            for name, count in topics.items()
        ],
    )


class StepCounter(trio.abc.Instrument):
    """Counts how often trio resumes the task that has created it."""

    def __init__(self) -> None:
        self._task = trio.lowlevel.current_task()
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += task is self._task
