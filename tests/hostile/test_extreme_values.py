"""Requests with extreme values in every field, in a fixed order, to a whole broker: it has no bug, and still answers.

The decoders are fuzzed in tests/protocol; here each request is well-formed, and its handler has to cope.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from kbroker.protocol import types
from kbroker.protocol.registry import APIS, Api
from kbroker.protocol.versions import Struct
from kbroker.testing.running_broker import running_broker
from tests.broker.batches import make_batch
from tests.broker.wire import Client, connect, encode_request
from tests.protocol.generated_values import Random, filled, fullest, smallest

PROPERTIES: Final = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
RANDOM_REQUESTS: Final = 12
"""Random requests of each API, beside those with the least and with the largest values."""

QUOTAS: Final = 49  # of AlterClientQuotas: it would mute the connections of the test
NUMBERS: Final = (0, 0, 0, 1, -1, 2)
TEXTS: Final = ("t", "t", "u", "group", "id", "m", "", "1", "..", "a/b", "__consumer_offsets", "x" * 250, "-1")

HINTS: Final[dict[str, tuple[Any, ...]]] = {
    "acks": (-1, 0, 1),
    "allow_auto_topic_creation": (True,),
    "assignments": ([],),
    "config_names": (None,),
    "configuration_keys": (None,),
    "forgotten_topics_data": ([],),
    "generation_id": (-1, 0, 1),
    "generation_id_or_member_epoch": (-1, 0, 1),
    "group_id": ("group", "other"),
    "group_instance_id": (None,),
    "instance_id": (None,),
    "key": ("group", "id", "retention.ms"),
    "key_type": (0, 1),
    "leader_epoch": (-1, 0),
    "current_leader_epoch": (-1, 0),
    "max_wait_ms": (0,),
    "member_epoch": (0, 1, -1, -2),
    "member_id": ("m", "", "n"),
    "index": (0, 1),
    "name": ("t", "t", "u", "retention.ms"),
    "num_partitions": (-1, 1, 3),
    "partition": (0, 1),
    "partition_index": (0, 1),
    "partition_max_bytes": (100, 100_000),
    "producer_epoch": (-1, 0, 1),
    "producer_id": (-1, 0, 1, 2),
    "protocol_name": ("range",),
    "protocol_type": ("consumer",),
    "rebalance_timeout_ms": (10_000,),
    "replica_id": (-1,),
    "replication_factor": (-1, 1),
    "resource_name": ("t", "1", "group"),
    "resource_type": (2, 4, 32),
    "server_assignor": (None, "uniform"),
    "session_epoch": (-1, 0, 1),
    "session_timeout_ms": (10_000,),
    "subscribed_topic_names": (["t"], None),
    "subscribed_topic_regex": ("t.*", "[", None),
    "topic": ("t",),
    "topic_name": ("t",),
    "transaction_timeout_ms": (10_000,),
    "transactional_id": ("id", None),
}
"""Usual values of the fields, so that requests pass the first check."""


class Values(Random):
    """Mostly what the broker knows; else values at the ends of their types."""

    def __init__(self, chance: random.Random, topic_id: bytes) -> None:
        super().__init__(chance)
        self.structs_left = 40
        self.bytes_left = 5_000
        self.ids = (topic_id, topic_id, types.ZERO_UUID, b"\xff" * 16)
        batch = bytes(make_batch(b"value"))
        place = chance.randrange(len(batch))
        broken = batch[:place] + b"\xff" + batch[place + 1 :]
        self.blobs = (batch, batch, broken, batch[:place], b"", bytes(8))

    def number(self, low: int, high: int) -> int:
        kind = self.chance.randrange(10)
        if kind < 6:
            return min(max(self.chance.choice(NUMBERS), low), high)
        return (low, high, high - 1, self.chance.randint(low, high))[kind - 6]

    def text(self) -> str:
        return self.chance.choice(TEXTS) if self.chance.randrange(10) else super().text()

    def data(self, size: int) -> bytes:
        return self.chance.choice(self.ids if size == 16 else self.blobs)

    def length(self) -> int:
        return 0 if self.chance.randrange(10) else super().length()

    def count(self, *, of_structs: bool) -> int:
        return min(super().count(of_structs=of_structs), 4)


def random_value(struct: Struct, version: int, values: Values) -> Any:
    members: dict[str, Any] = {}
    for member in struct.fields:
        if not member.is_in(version):
            continue
        hints = HINTS.get(member.name)
        if hints is not None and values.chance.randrange(8):
            value = values.chance.choice(hints)
            if value is not None or member.is_nullable_in(version):
                members[member.name] = value
        elif not member.is_nullable_in(version) or not values.is_null():
            members[member.name] = random_part(member.subcon, version, values)
        else:
            members[member.name] = None
    return struct(**members)


def random_part(subcon: Any, version: int, values: Values) -> Any:
    if isinstance(subcon, Struct):
        return random_value(subcon, version, values)
    if isinstance(subcon, types.Array) and isinstance(subcon.element, Struct):
        return [random_value(subcon.element, version, values) for _ in range(values.count(of_structs=True))]
    return filled(subcon, version, values)


def requests(chance: random.Random, topic_id: bytes) -> Iterator[tuple[Api, int, Any]]:
    for api in APIS:
        if api.key == QUOTAS or not api.is_served(is_in_cluster=False):
            continue
        assert api.serves is not None
        first, last = api.serves
        for version in {first, last}:
            yield api, version, smallest(api.request, version)
            yield api, version, fullest(api.request, version)
        for _ in range(RANDOM_REQUESTS):
            version = chance.choice((first, last, last))
            yield api, version, random_value(api.request, version, Values(chance, topic_id))


async def drain(stream: trio.SocketStream) -> None:
    async with stream:
        try:
            while await stream.receive_some(65536):
                pass
        except trio.BrokenResourceError:
            pass


async def attack(port: int, canary: Client) -> None:
    topic_id = await canary.create_topic("t", 2)
    for key_type in (0, 1):
        await canary.ask("FindCoordinator", 4, key_type=key_type, coordinator_keys=["id"])
    chance = random.Random(13)
    shuffled = list(requests(chance, topic_id))
    chance.shuffle(shuffled)
    async with trio.open_nursery() as nursery:
        for number, (api, version, body) in enumerate(shuffled):
            if number % 8 == 0:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                nursery.start_soon(drain, stream)
            members = {name: getattr(body, name) for name in body.names}
            # An earlier request may have closed the connection.
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.send_all(encode_request(api.name, version, number, **members))
            if number % 50 == 0:
                await canary.expect_service()
                await canary.try_create_topic("t", 2)  # it may have been deleted
        nursery.cancel_scope.cancel()


async def test_extreme_values_meet_no_bug(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with running_broker(tmp_path / "data", PROPERTIES) as broker, connect(broker.port) as canary:
        await attack(broker.port, canary)
        await canary.expect_service()
        await canary.create_topic("after-all")
        answer = await canary.produce("after-all", make_batch(b"value"))
        assert (answer.error_code, answer.base_offset) == (0, 0)
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert not tracebacks, "\n".join(logging.Formatter().format(record) for record in tracebacks)
