"""Nodes that another tool wrote wrongly: the controller logs one line, keeps what it knows, and goes on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import trio

from kbroker.controller.changes import TopicRemoved
from kbroker.controller.cluster.event_queue import Event
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import Tree
from tests.controller.conftest import Sessions
from tests.controller.members import TIMEOUT_SECONDS, Members, open_members

TOPIC = "/brokers/topics/t"
STATE = "/brokers/topics/t/partitions/0/state"
CONFIG = "/config/topics/t"
DAMAGES = {
    TOPIC: (b"", b"{", b"[]", b'{"version":3}', b'{"partitions":{"0":["1","2"]}}', b'{"partitions":{"x":[1]}}'),
    STATE: (b"", b"{}", b'{"leader":"1","leader_epoch":0,"controller_epoch":1,"isr":[1,2]}'),
    CONFIG: (b"{", b'{"version":1,"config":[]}'),
}


@pytest.fixture
async def members(sessions: Sessions) -> AsyncIterator[Members]:
    async with open_members(sessions) as opened:
        yield opened


@pytest.fixture
async def tool(sessions: Sessions) -> Tree:
    """The session of another tool."""
    return await sessions.open()


async def start_two(members: Members, *, delete_topic_enable: str = "true") -> None:
    """Starts brokers 1, the controller, and 2, with the topic `t`."""
    for broker_id in (1, 2):
        await members.start(broker_id, delete_topic_enable=delete_topic_enable)
    await members.until_agreed(lambda image: len(image.brokers) == 2)
    new = NewTopic("t", assignment={0: (1, 2)}, configs={"retention.ms": "-1"})
    await members.controller.controller.create_topic(new)
    await members.until_agreed(lambda image: "t" in image.topics)


async def create(members: Members, topic: str) -> None:
    """Creates a topic: the controller works."""
    await members.controller.controller.create_topic(NewTopic(topic, assignment={0: (1, 2)}))
    await members.until_agreed(lambda image: topic in image.topics)


def has_lost_topic(members: Members) -> bool:
    return any(isinstance(change, TopicRemoved) for one in members.all.values() for change in one.recorder.take())


@pytest.mark.parametrize(("path", "data"), [(path, data) for path, many in DAMAGES.items() for data in many])
async def test_a_damaged_node_of_a_known_topic_changes_nothing(
    members: Members, tool: Tree, caplog: pytest.LogCaptureFixture, path: str, data: bytes
) -> None:
    await start_two(members)
    before = members.controller.image.topics["t"]
    await tool.set(path, data)
    # The controller reads everything again; then another broker becomes the controller, and reads everything.
    members.controller.member.events.put(Event.CONFLICT)
    await create(members, "after")
    await members.kill(1)
    await members.until(lambda: members.all[2].member.is_controller)
    await members.until(lambda: members.all[2].image.topics["t"].partitions[0].leader == 2)
    after = members.all[2].image.topics["t"]
    assert (after.id, after.configs) == (before.id, before.configs)
    assert not has_lost_topic(members)
    assert any("topic t" in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)


@pytest.mark.parametrize(("path", "data"), [(path, data) for path, many in DAMAGES.items() for data in many])
async def test_an_unknown_topic_with_a_damaged_node_is_left_out_until_it_is_repaired(
    members: Members, tool: Tree, caplog: pytest.LogCaptureFixture, path: str, data: bytes
) -> None:
    await start_two(members)
    good = (await tool.get(path)).data
    for broker_id in (2, 1):
        await members.kill(broker_id)
    await tool.set(path, data)
    caplog.clear()
    await members.start(1)
    await create_alone(members, "after")
    assert "t" not in members.all[1].image.topics
    assert any("Left out topic t" in record.getMessage() for record in caplog.records)
    await tool.set(path, good)
    await tool.set(TOPIC, (await tool.get(TOPIC)).data)  # the node that the controller watches
    await members.until(lambda: "t" in members.all[1].image.topics)


async def create_alone(members: Members, topic: str) -> None:
    await members.controller.controller.create_topic(NewTopic(topic, assignment={0: (1,)}))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version":9}', b'{"version":1,"partitions":[{"topic":"t"}]}'])
async def test_damaged_reassignments_are_ignored(members: Members, tool: Tree, data: bytes) -> None:
    await start_two(members)
    await tool.create(znodes.REASSIGN_PARTITIONS, data)
    await create(members, "after")


async def test_a_damaged_registration_of_a_broker_is_ignored(
    members: Members, tool: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    await start_two(members)
    await tool.create("/brokers/ids/7", b"{")
    await tool.create("/brokers/ids/x", b"{")
    await members.kill(2)
    await members.until(lambda: list(members.all[1].image.brokers) == [1])
    assert any("Ignored broker 7" in record.getMessage() for record in caplog.records)


async def test_damaged_configs_of_other_entities_are_ignored(
    members: Members, tool: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    await start_two(members)
    await tool.create("/config/brokers/1", b"{")
    await tool.create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change("brokers/1"), sequential=True)
    await tool.create(znodes.CONFIG_CHANGE_PREFIX, b"{", sequential=True)
    await create(members, "after")
    await members.kill(2)
    await members.start(2)
    await members.until_agreed(lambda image: len(image.brokers) == 2)
    assert any("/config/brokers/1" in record.getMessage() for record in caplog.records)
    # A config that is set now replaces the damaged node.
    await members.all[2].controller.update_entity_configs("brokers/1", lambda _: {"log.cleaner.threads": "2"})
    assert znodes.decode_configs((await tool.get("/config/brokers/1")).data) == {"log.cleaner.threads": "2"}


async def test_marks_delete_nothing_if_topics_cannot_be_deleted(
    members: Members, tool: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await start_two(members, delete_topic_enable="false")
    await tool.create(znodes.delete_topic_path("t"))
    with trio.fail_after(TIMEOUT_SECONDS):
        while await tool.children(znodes.DELETE_TOPICS):
            await trio.lowlevel.checkpoint()
    assert any("since delete topic is disabled" in record.getMessage() for record in caplog.records)
    # A mark that the controller finds when it is elected.
    for broker_id in (2, 1):
        await members.kill(broker_id)
    await tool.create(znodes.delete_topic_path("t"))
    await members.start(1, delete_topic_enable="false")
    await create_alone(members, "after")
    assert await tool.children(znodes.DELETE_TOPICS) == []
    assert "t" in members.all[1].image.topics
    assert not has_lost_topic(members)


async def test_a_damaged_node_of_the_controller_ends_no_broker(
    members: Members, tool: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    await start_two(members)
    await tool.set(znodes.CONTROLLER, b"{")
    with trio.fail_after(TIMEOUT_SECONDS):
        while not any("node of the controller" in record.getMessage() for record in caplog.records):
            await trio.lowlevel.checkpoint()
    await create(members, "after")
    await members.kill(1)
    await members.until(lambda: members.all[2].member.is_controller)
