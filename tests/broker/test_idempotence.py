"""Idempotent producers: a repeated batch is stored once, a gap is refused, also after a restart."""

from __future__ import annotations

from kbroker.protocol.error_codes import ErrorCode
from tests.broker.batches import make_batch
from tests.broker.conftest import Connect, StartBroker
from tests.broker.wire import Client, produce_members


async def send(client: Client, producer_id: int, sequence: int, *, epoch: int = 0, count: int = 2) -> tuple[int, int]:
    values = [b"%d" % (sequence + number) for number in range(count)]
    batch = make_batch(*values, producer_id=producer_id, epoch=epoch, sequence=sequence)
    answer = await client.produce("t", batch)
    return answer.error_code, answer.base_offset


OUT_OF_ORDER = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


async def test_one_of_the_last_five_batches_is_answered_with_its_old_offset(client: Client) -> None:
    await client.create_topic("t")
    producer_id = await client.new_producer_id()
    for sequence in range(0, 14, 2):
        assert await send(client, producer_id, sequence) == (0, sequence)
    for sequence in range(4, 14, 2):
        assert await send(client, producer_id, sequence) == (0, sequence)
    for forgotten in (0, 2):
        code, _ = await send(client, producer_id, forgotten)
        assert code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert [int(record.value or b"") for record in await client.read_all("t")] == list(range(14))


async def test_gaps_and_half_repeats_are_out_of_order(client: Client) -> None:
    await client.create_topic("t")
    producer_id = await client.new_producer_id()
    assert await send(client, producer_id, 0) == (0, 0)
    assert await send(client, producer_id, 4) == OUT_OF_ORDER
    assert await send(client, producer_id, 1) == OUT_OF_ORDER
    assert await send(client, producer_id, 0, count=1) == OUT_OF_ORDER
    assert await send(client, producer_id, 2) == (0, 2)


async def test_an_old_epoch_is_fenced_and_a_new_one_starts_at_zero(client: Client) -> None:
    await client.create_topic("t")
    producer_id = await client.new_producer_id()
    assert await send(client, producer_id, 0, epoch=1) == (0, 0)
    assert await send(client, producer_id, 2, epoch=0) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert await send(client, producer_id, 2, epoch=2) == OUT_OF_ORDER
    assert await send(client, producer_id, 0, epoch=2) == (0, 2)
    assert await send(client, producer_id, 2, epoch=1) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


async def test_any_first_sequence_is_accepted_where_nothing_is_known_of_the_producer(client: Client) -> None:
    await client.create_topic("t")
    assert await send(client, 4711, 100) == (0, 0)
    assert await send(client, 4711, 104) == OUT_OF_ORDER
    assert await send(client, 4711, 102) == (0, 2)


async def test_sequences_go_on_after_a_clean_restart(start_broker: StartBroker, connect_to: Connect) -> None:
    broker = await start_broker()
    client = await connect_to(broker)
    await client.create_topic("t")
    producer_id = await client.new_producer_id()
    for sequence in range(0, 12, 2):
        assert await send(client, producer_id, sequence) == (0, sequence)
    await broker.stop()
    client = await connect_to(await start_broker())
    # Kafka's snapshots keep the last batch of a producer, no more: an older one is not known as a repeat.
    assert await send(client, producer_id, 8) == OUT_OF_ORDER
    assert await send(client, producer_id, 10) == (0, 10)
    assert await send(client, producer_id, 14) == OUT_OF_ORDER
    assert await send(client, producer_id, 12) == (0, 12)
    assert await client.new_producer_id() != producer_id
    assert [int(record.value or b"") for record in await client.read_all("t")] == list(range(14))


async def test_repeats_within_one_run_of_frames_are_stored_once(client: Client) -> None:
    await client.create_topic("t")
    producer_id = await client.new_producer_id()
    batches = [make_batch(b"%d" % number, producer_id=producer_id, sequence=number) for number in (0, 1, 1, 0, 2)]
    frames = [client.encode("Produce", 9, **produce_members("t", batch)) for batch in batches]
    await client.send_bytes(b"".join(frames))
    answers = [(await client.receive()).responses[0].partition_responses[0] for _ in batches]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 1), (0, 1), (0, 0), (0, 2)]
    assert [record.value for record in await client.read_all("t")] == [b"0", b"1", b"2"]
