"""Requests to a busy controller: each is answered within its timeout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.controller.changes import TopicAdded
from kbroker.controller.image import PartitionState, TopicImage
from kbroker.controller.trees.tree import OperationResult, TreeOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_topics, elect_leaders
from tests.server.handlers.harness import HandlerBroker

CREATE_TOPICS, ELECT_LEADERS, UPDATE_FEATURES = 19, 43, 57


@pytest.fixture
async def controller(broker: HandlerBroker) -> HandlerBroker:
    """Returns a broker that is the controller of a cluster. Its topic `moved` is not led by its preferred replica."""
    broker.context.member = cast(Any, object())
    broker.context.nursery.start_soon(broker.context.deadlines.run)
    moved = PartitionState(2, 4, (1, 2), (1, 2), 0)
    broker.controller.store.commit([TopicAdded(TopicImage("moved", b"m" * 16, (moved,)))])
    return broker


async def create(controller: HandlerBroker, timeout_ms: int) -> int:
    topic = create_topics.CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
    response = await controller.ask(CREATE_TOPICS, 5, topics=[topic], timeout_ms=timeout_ms)
    return int(response.topics[0].error_code)


async def elect(controller: HandlerBroker, timeout_ms: int) -> tuple[int, list[int]]:
    wanted = [elect_leaders.TopicPartitions(topic="moved", partitions=[0])]
    response = await controller.ask(ELECT_LEADERS, 2, election_type=0, topic_partitions=wanted, timeout_ms=timeout_ms)
    codes = [found.error_code for topic in response.replica_election_results for found in topic.partition_result]
    return response.error_code, codes


async def answered_after(clock: MockClock, seconds: int, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Returns the answer to a request, which comes after so many seconds."""
    answers: list[Any] = []

    async def note() -> None:
        answers.append(await ask())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(note)
        await wait_all_tasks_blocked()
        clock.jump(seconds - 0.5)
        await wait_all_tasks_blocked()
        assert answers == []
        clock.jump(0.5)
    return answers[0]


async def test_a_request_that_waits_for_its_turn_is_refused_in_time_and_dropped(
    controller: HandlerBroker, mock_clock: MockClock
) -> None:
    async with controller.controller.store.exclusive():
        refused = await answered_after(mock_clock, 5, lambda: create(controller, 5000))
        assert refused == ErrorCode.REQUEST_TIMED_OUT
        assert await answered_after(mock_clock, 7, lambda: elect(controller, 7000)) == (7, [7])
    async with controller.controller.store.exclusive():  # behind everything that waited
        assert "orders" not in controller.image.topics
    assert await create(controller, 5000) == ErrorCode.NONE


async def test_a_request_that_writes_is_answered_in_time_and_finished(
    controller: HandlerBroker, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing, may_go_on = trio.Event(), trio.Event()

    async def slow(operations: Sequence[TreeOperation]) -> list[OperationResult]:
        is_writing.set()
        await may_go_on.wait()
        return []

    monkeypatch.setattr(controller.controller.store.tree, "multi", slow)
    assert await answered_after(mock_clock, 9, lambda: elect(controller, 9000)) == (7, [7])
    assert is_writing.is_set()
    may_go_on.set()
    async with controller.controller.store.exclusive():  # behind the election
        moved = controller.image.partition("moved", 0)
        assert moved is not None
        assert moved.leader == 1
    assert controller.dispatch.bugs == 0


@pytest.mark.usefixtures("mock_clock")
async def test_a_timeout_of_zero_still_gets_the_outcome(controller: HandlerBroker) -> None:
    assert await create(controller, 0) == ErrorCode.NONE


async def test_a_request_that_needs_no_tree_is_answered_at_once(controller: HandlerBroker) -> None:
    answer = await controller.ask(UPDATE_FEATURES, 1, feature_updates=[])
    assert answer.error_code == ErrorCode.NONE
    assert len(controller.context.deadlines) == 0
