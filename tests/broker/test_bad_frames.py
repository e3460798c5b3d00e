"""Frames that are no valid requests: their connection is closed, and other connections are not affected."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from kbroker.protocol.error_codes import ErrorCode
from kbroker.testing.running_broker import RunningBroker
from tests.broker.batches import make_batch
from tests.broker.conftest import Connect, StartBroker
from tests.broker.wire import BY_NAME, Client, decode_response, encode_frame, encode_request, produce_members

pytestmark = pytest.mark.usefixtures("either_watcher")

HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
TLS_HELLO = bytes.fromhex("16030102000100")  # its first four bytes would be a length of 350 MB
GARBAGE = {
    "an HTTP request": HTTP,
    "a TLS hello": TLS_HELLO + bytes(512),
    "random bytes": b"\x7f" + bytes(range(1, 200)),
    "a negative length": struct.pack(">i", -1),
    "the smallest length": struct.pack(">i", -(2**31)),
    "a length of zero": struct.pack(">i", 0),
    "a frame shorter than a header": struct.pack(">i", 3) + b"abc",
    "a header that ends early": struct.pack(">i", 8) + struct.pack(">hhi", 18, 3, 1),
    "a client id that does not fit": struct.pack(">i", 10) + struct.pack(">hhih", 18, 3, 1, 500),
    "a frame larger than the limit": struct.pack(">i", 1_000_001) + bytes(100),
}


@pytest.fixture
async def broker(start_broker: StartBroker) -> RunningBroker:
    return await start_broker({"socket.request.max.bytes": "1000000"})


async def test_garbage_ends_its_connection_and_no_other(broker: RunningBroker, connect_to: Connect) -> None:
    bystander = await connect_to(broker)
    for kind, sent in GARBAGE.items():
        culprit = await connect_to(broker)
        await culprit.send_bytes(sent)
        assert await culprit.wait_closed() == b"", kind
        await bystander.expect_service()


async def test_a_frame_of_exactly_the_limit_is_served(client: Client) -> None:
    await client.create_topic("large")
    smallest = len(encode_request("Produce", 9, 1, **produce_members("large", make_batch(b""))))
    frame = b""
    for size in range(1_000_004 - smallest - 16, 1_000_004 - smallest + 1):
        frame = encode_request("Produce", 9, 1, **produce_members("large", make_batch(bytes(size))))
        if len(frame) == 1_000_004:
            break
    assert len(frame) == 1_000_004, "no batch makes a frame of that size"
    await client.send_bytes(frame)
    _, response = decode_response("Produce", 9, await client.receive_frame())
    assert response.responses[0].partition_responses[0].error_code == 0


UNSERVED = {
    "an unknown API": (999, 0),
    "a negative API": (-1, 0),
    "an API between brokers": (4, 0),
    "a future version": (0, 99),
    "a negative version": (1, -1),
    "the last possible version": (3, 32767),
}


async def test_an_unsupported_api_or_version_closes_the_connection(broker: RunningBroker, connect_to: Connect) -> None:
    bystander = await connect_to(broker)
    for kind, (key, version) in UNSERVED.items():
        culprit = await connect_to(broker)
        await culprit.send_bytes(encode_frame(key, version, 1, bytes(50)))
        assert await culprit.wait_closed() == b"", kind
        await bystander.expect_service()


async def test_a_newer_api_versions_is_answered_in_v0_with_all_versions(client: Client) -> None:
    for version in (5, 99, 32767, -1):
        await client.send_bytes(encode_frame(18, version, 7, b"\x05what\x01?\x00", header_version=2))
        correlation_id, response = decode_response("ApiVersions", 0, await client.receive_frame())
        assert correlation_id == 7
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (18, 0, 4) in [(api.api_key, api.min_version, api.max_version) for api in response.api_keys]
    await client.expect_service()


FULL_BODIES = {"Produce": produce_members("t", make_batch(b"v"))}


def cut_off_requests() -> Iterator[bytes]:
    """The first and last version of everything that is served, one byte short of their end."""
    for api in BY_NAME.values():
        for version in api.serves or ():
            nothing = encode_frame(api.key, version, 1, b"", api.request_header_version(version))
            whole = encode_request(api.name, version, 1, **FULL_BODIES.get(api.name, {}))
            if len(whole) > len(nothing):
                yield struct.pack(">i", len(whole) - 5) + whole[4:-1]


async def test_a_body_that_is_cut_off_ends_the_connection(broker: RunningBroker, connect_to: Connect) -> None:
    bystander = await connect_to(broker)
    requests = list(cut_off_requests())
    assert len(requests) > 20
    for request in requests:
        culprit = await connect_to(broker)
        await culprit.send_bytes(request)
        assert await culprit.wait_closed() == b"", request
    await bystander.expect_service()


async def test_requests_before_the_garbage_are_answered(client: Client) -> None:
    await client.create_topic("t")
    await client.send_bytes(client.encode("Produce", 9, **produce_members("t", make_batch(b"kept"))) + HTTP)
    response = await client.receive()
    assert response.responses[0].partition_responses[0].error_code == 0
    assert await client.wait_closed() == b""


async def test_an_array_that_claims_millions_of_entries_costs_nothing(
    client: Client, broker: RunningBroker, connect_to: Connect
) -> None:
    body = struct.pack(">hii", -1, 1000, 2**31 - 1)  # Produce v0: acks, timeout, a count of topics
    await client.send_bytes(encode_frame(0, 0, 1, body))
    assert await client.wait_closed() == b""
    await (await connect_to(broker)).expect_service()


@pytest.mark.parametrize("sent", [b"\x00", struct.pack(">i", 500), struct.pack(">i", 500) + b"begun"])
async def test_a_frame_that_never_completes_is_closed_when_it_has_been_idle_too_long(
    start_broker: StartBroker, connect_to: Connect, sent: bytes
) -> None:
    broker = await start_broker({"connections.max.idle.ms": "200"})
    client = await connect_to(broker)
    await client.send_bytes(sent)
    assert await client.wait_closed() == b""


async def test_a_client_that_says_nothing_is_closed_and_one_that_waits_for_records_is_not(
    start_broker: StartBroker, connect_to: Connect
) -> None:
    broker = await start_broker({"connections.max.idle.ms": "500"})
    waiting, silent = await connect_to(broker), await connect_to(broker)
    await waiting.create_topic("t")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_empty_answer_after, waiting, 1500)
        await silent.wait_closed()


async def expect_empty_answer_after(client: Client, max_wait_ms: int) -> None:
    answer = await client.fetch("t", 0, max_wait_ms=max_wait_ms)
    assert not answer.records


async def test_random_bytes_never_reach_anybody_else(
    broker: RunningBroker, connect_to: Connect, data_dir: Path
) -> None:
    bystander = await connect_to(broker)
    await bystander.create_topic("t")
    for _ in range(50):
        culprit = await connect_to(broker)
        noise = os.urandom(64)
        # A length that is right, so that the noise is taken for a request.
        await culprit.send_bytes(struct.pack(">i", len(noise)) + noise)
        await culprit.stream.send_eof()
        await culprit.wait_closed()
    assert (await bystander.produce("t", make_batch(b"v"))).error_code == 0
    assert directories_in(data_dir) == {"t-0"}


def directories_in(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir() if entry.is_dir()}
