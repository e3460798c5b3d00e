"""Consumer groups with aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiokafka

from compat_tests.scenarios.groups import DEADLINE_S, create_topic, produce_numbers


def consumer(bootstrap: str, topic: str) -> Any:
    return aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=300,
    )


async def read(members: list[Any], is_done: Callable[[list[int]], bool]) -> list[int]:
    seen: list[int] = []

    async def poll() -> None:
        while not is_done(seen):
            for member in members:
                for records in (await member.getmany(timeout_ms=50)).values():
                    seen.extend(int(record.value) for record in records)

    await asyncio.wait_for(poll(), DEADLINE_S)
    return seen


def test_two_members_share_commit_and_continue(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 4)
    produce_numbers(bootstrap, topic, range(40), 4)

    async def scenario() -> None:
        first, second = consumer(bootstrap, topic), consumer(bootstrap, topic)
        await first.start()
        await second.start()
        await read([first, second], lambda seen: len(first.assignment()) == len(second.assignment()) == 2)
        assert not first.assignment() & second.assignment()
        await second.stop()
        await read([first], lambda seen: len(first.assignment()) == 4)
        await first.seek_to_beginning()
        assert sorted(await read([first], lambda seen: len(seen) >= 40)) == list(range(40))
        await first.commit()
        await first.stop()
        produce_numbers(bootstrap, topic, range(40, 48), 4)
        third = consumer(bootstrap, topic)
        await third.start()
        assert sorted(await read([third], lambda seen: len(seen) >= 8)) == list(range(40, 48))
        await third.stop()

    asyncio.run(scenario())
