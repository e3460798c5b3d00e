"""The checker of the crash tests finds lost, duplicated and reordered records."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kbroker.protocol.records import Record
from tests.broker.history import History
from tests.broker.wire import Client

PARTITION = ("t", 0)


class Stored:
    """A broker's log, as far as the checker looks."""

    def __init__(self, *values: bytes, first: int = 0) -> None:
        self.records = [Record(first + number, 0, None, value) for number, value in enumerate(values)]

    async def read_all(self, _topic: str, *, partition: int = 0) -> list[Record]:
        return self.records


async def check(history: History, stored: Stored) -> Any:
    return await history.check(cast(Client, stored))


@pytest.fixture
def history() -> History:
    known = History()
    known.acknowledge(PARTITION, 0, [b"a:0", b"a:1"])
    known.acknowledge(PARTITION, 2, [b"b:0"])
    return known


async def test_a_whole_log_passes_also_with_more_than_was_acknowledged(history: History) -> None:
    assert await check(history, Stored(b"a:0", b"a:1", b"b:0", b"b:1")) == 4


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        (Stored(b"a:0", b"a:1"), "lost 1 of 3"),
        (Stored(b"a:0", b"a:1", b"c:0"), "lost 1 of 3"),
        (Stored(), "lost 3 of 3"),
        (Stored(b"a:0", b"a:1", b"b:0", first=1), "holes"),
        (Stored(b"a:0", b"a:1", b"b:0", b"a:1"), "twice"),
        (Stored(b"a:0", b"a:1", b"b:0", b"c:5", b"c:4"), "follows"),
    ],
)
async def test_lost_duplicated_or_reordered_records_are_found(history: History, stored: Stored, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        await check(history, stored)


def test_two_values_at_one_offset_are_seen(history: History) -> None:
    with pytest.raises(AssertionError, match="and now"):
        history.learn(PARTITION, 1, b"other:0")


async def test_records_that_one_check_has_seen_must_be_in_the_next(history: History) -> None:
    await check(history, Stored(b"a:0", b"a:1", b"b:0", b"b:1"))
    with pytest.raises(AssertionError, match="lost 1 of 4"):
        await check(history, Stored(b"a:0", b"a:1", b"b:0"))
