"""Requests that brokers send to the controller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.controller.conftest import Sessions
from tests.controller.members import TIMEOUT_SECONDS, Members, open_members


@pytest.fixture
def zookeeper_address() -> None:
    """Runs these tests on the embedded tree only."""


@pytest.fixture
async def members(sessions: Sessions) -> AsyncIterator[Members]:
    async with open_members(sessions) as opened:
        for broker_id in (1, 2, 3):
            await opened.start(broker_id)
        await opened.until_agreed(lambda image: len(image.brokers) == 3)
        yield opened


async def test_a_request_goes_to_the_next_controller_if_the_first_one_never_answers(members: Members) -> None:
    suspended = members.controller
    waiting = [one for one in members.all.values() if one is not suspended]
    suspended.is_silent = True
    with trio.fail_after(TIMEOUT_SECONDS):
        async with trio.open_nursery() as nursery:
            for one in waiting:
                # One of the two becomes the controller itself, the other sends its request again.
                nursery.start_soon(partial(one.member.link.shut_down, -1, timeout_s=10 * TIMEOUT_SECONDS))
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == len(waiting)
            await members.kill(suspended.id)
    assert members.controller in waiting
