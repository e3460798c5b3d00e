"""Records as tests write and read them, and the client that does both in the broker's loop.

Faults do not apply to this client: a test can look at a topic while its own clients get errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import trio

from kbroker.client.address import Address
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.client.connection_security import ConnectionSecurity
from kbroker.client.consuming import Consumer
from kbroker.client.failures import NoSuchTopic
from kbroker.client.offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.producing import Producer
from kbroker.errors import UserError

__all__ = ["HELPER_CLIENT_ID", "KafkaRecord", "NewRecord", "produce", "read_records"]

HELPER_CLIENT_ID: Final = "kbroker-testing"

_MAX_WAIT_MS: Final = 100
_RETRY_SECONDS: Final = 0.05
_SHOWN_RECORDS: Final = 10

_Data = str | bytes | None
_Headers = Mapping[str, _Data] | Iterable[tuple[str, _Data]]


class KafkaRecord(NamedTuple):
    """A record that was read, or is to be written. Text is written as UTF-8; records that were read have bytes."""

    value: _Data
    key: _Data = None
    headers: _Headers = ()
    partition: int | None = None
    """None to write to the partition of the key, or for the next partition in turn if there is no key."""
    timestamp: int | None = None
    """Milliseconds since the epoch; None to write the time of the broker's clock."""
    offset: int | None = None
    topic: str | None = None

    @property
    def text(self) -> str:
        """Returns the value as text."""
        return (_encoded(self.value) or b"").decode()


NewRecord = _Data | tuple[_Data, _Data] | KafkaRecord
"""A value, a pair of key and value, or a KafkaRecord."""


async def produce(
    address: Address,
    topic: str,
    records: Iterable[NewRecord],
    now_ms: int,
    security: ConnectionSecurity | None = None,
) -> None:
    """Writes records and returns when they are committed.

    Raises UserError if a partition does not exist, or a record is not of the types above.
    """
    if isinstance(records, str | bytes | KafkaRecord):
        raise UserError(f"Expected a list of records for topic {topic}, got one: {records!r}. Write [{records!r}].")
    async with open_cluster([address], client_id=HELPER_CLIENT_ID, security=security) as cluster:
        producer = Producer(cluster, topic)
        await producer.start()
        count = len((await cluster.topic(topic)).partitions)
        for number, record in enumerate(map(_kafka_record, records)):
            key, partition = _encoded(record.key), record.partition
            if partition is None and key is None:
                partition = number % count
            if partition is not None and not 0 <= partition < count:
                raise UserError(f"Topic {topic} has {count} partitions: partition {partition} does not exist")
            is_full = producer.add(
                _encoded(record.value),
                key=key,
                headers=_headers(record.headers),
                partition=partition,
                timestamp_ms=now_ms if record.timestamp is None else record.timestamp,
            )
            if is_full:
                await producer.flush()
        await producer.flush()


async def read_records(
    address: Address,
    topic: str,
    count: int | None,
    *,
    timeout: float,
    read_committed: bool,
    security: ConnectionSecurity | None = None,
) -> list[KafkaRecord]:
    """Returns the records of a topic, ordered by partition and offset: all up to its end.

    With `count`, waits until there are at least so many, and raises AssertionError after `timeout` seconds.
    """
    found: list[KafkaRecord] = []
    async with open_cluster([address], client_id=HELPER_CLIENT_ID, security=security) as cluster:
        with trio.move_on_after(timeout) as scope:
            consumer = await _consumer(cluster, topic, is_patient=count is not None, read_committed=read_committed)
            await _read_to_end(cluster, consumer, topic, found, read_committed=read_committed)
            while len(found) < (count or 0):
                found += await _poll(consumer, topic)
            if count:
                await _read_to_end(cluster, consumer, topic, found, read_committed=read_committed)
    if scope.cancelled_caught:
        raise AssertionError(_missing_text(topic, found, count, timeout))
    return sorted(found, key=lambda record: (record.partition, record.offset))


async def _consumer(cluster: Cluster, topic: str, *, is_patient: bool, read_committed: bool) -> Consumer:
    """Returns a consumer from the beginning. `is_patient`: waits for a topic that does not exist yet."""
    while True:
        try:
            info = await cluster.topic(topic)
            break
        except NoSuchTopic:
            if not is_patient:
                raise UserError(f"Topic {topic} does not exist") from None
            await trio.sleep(_RETRY_SECONDS)
    starts = await list_offsets(cluster, topic, {partition.number: EARLIEST for partition in info.partitions})
    positions = {index: start.offset for index, start in starts.items()}
    return Consumer(cluster, topic, positions, read_committed=read_committed, max_wait_ms=_MAX_WAIT_MS)


async def _read_to_end(
    cluster: Cluster, consumer: Consumer, topic: str, found: list[KafkaRecord], *, read_committed: bool
) -> None:
    latest = dict.fromkeys(consumer.positions, LATEST)
    ends = await list_offsets(cluster, topic, latest, read_committed=read_committed)
    while any(consumer.positions[index] < end.offset for index, end in ends.items()):
        found += await _poll(consumer, topic)


async def _poll(consumer: Consumer, topic: str) -> list[KafkaRecord]:
    return [
        KafkaRecord(
            value=record.value,
            key=record.key,
            headers=record.headers,
            partition=fetched.partition,
            timestamp=record.timestamp,
            offset=record.offset,
            topic=topic,
        )
        for fetched in await consumer.poll()
        for record in fetched.records
    ]


def _missing_text(topic: str, found: Sequence[KafkaRecord], count: int | None, timeout: float) -> str:
    if count is None:
        return f"Could not read topic {topic} to its end within {timeout:g} s"
    shown = ", ".join(repr(record.value) for record in found[:_SHOWN_RECORDS])
    more = ", …" if len(found) > _SHOWN_RECORDS else ""
    values = f": {shown}{more}" if found else ""
    noun = "record" if count == 1 else "records"
    return f"Expected {count} {noun} in topic {topic} within {timeout:g} s, found {len(found)}{values}"


def _kafka_record(record: NewRecord) -> KafkaRecord:
    if isinstance(record, KafkaRecord):
        return record
    if isinstance(record, tuple):
        key, value = record
        return KafkaRecord(value, key)
    return KafkaRecord(record)


def _headers(headers: _Headers) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, _encoded(value)) for name, value in pairs]


def _encoded(data: _Data) -> bytes | None:
    """Returns text as UTF-8. Raises UserError if it has another type: a test may run without a type checker."""
    if isinstance(data, str):
        return data.encode()
    if data is not None and not isinstance(data, bytes):
        raise UserError(f"Keys, values and header values are bytes, str or None, not {type(data).__name__}: {data!r}")
    return data
