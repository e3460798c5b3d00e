"""DeleteTopics: by name and by id; topics named wrongly or twice are not deleted."""

from __future__ import annotations

from typing import Any

from kbroker.names import ZERO_UUID
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import delete_topics as messages
from tests.server.conftest import StartBroker
from tests.server.handlers.harness import HandlerBroker

DELETE_TOPICS = 20


def state(name: str | None = None, topic_id: bytes = ZERO_UUID) -> Any:
    return messages.DeleteTopicState(name=name, topic_id=topic_id)


async def delete(broker: HandlerBroker, *states: Any) -> list[Any]:
    response = await broker.ask(DELETE_TOPICS, 6, topics=list(states))
    responses: list[Any] = response.responses
    return responses


async def test_topics_are_deleted_by_name_in_every_version(broker: HandlerBroker) -> None:
    for version in range(7):
        topic = await broker.create_topic("gone")
        members: dict[str, Any] = {"topics": [state("gone")]} if version >= 6 else {"topic_names": ["gone"]}
        response = await broker.ask(DELETE_TOPICS, version, timeout_ms=1000, **members)
        (result,) = response.responses
        assert (result.name, result.error_code) == ("gone", 0)
        assert result.topic_id == (topic.id if version >= 6 else ZERO_UUID)
        assert broker.image.topic("gone") is None
        assert broker.partitions.get("gone", 0) is None


async def test_topics_are_deleted_by_id(broker: HandlerBroker) -> None:
    topic = await broker.create_topic("gone")
    await broker.create_topic("stays")
    (result,) = await delete(broker, state(topic_id=topic.id))
    assert (result.name, result.topic_id, result.error_code) == ("gone", topic.id, 0)
    assert set(broker.image.topics) == {"stays"}


async def test_unknown_topics_are_reported_by_name_or_id(broker: HandlerBroker) -> None:
    by_name, by_id = await delete(broker, state("absent"), state(topic_id=b"?" * 16))
    assert (by_name.name, by_name.error_code) == ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert (by_id.name, by_id.topic_id, by_id.error_code) == (None, b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID)
    assert by_name.error_message
    assert by_id.error_message


async def test_a_topic_with_neither_or_both_of_name_and_id_is_refused(broker: HandlerBroker) -> None:
    topic = await broker.create_topic("a")
    neither, both = await delete(broker, state(), state("a", topic.id))
    assert neither.error_code == both.error_code == ErrorCode.INVALID_REQUEST
    assert set(broker.image.topics) == {"a"}


async def test_a_topic_named_twice_is_not_deleted(broker: HandlerBroker) -> None:
    topics = [await broker.create_topic(name) for name in ("a", "b", "c", "d")]
    results = await delete(
        broker,
        *[state("a"), state("a")],
        *[state(topic_id=topics[1].id)] * 2,
        *[state("c"), state(topic_id=topics[2].id)],
        state("d"),
    )
    codes = {(result.name, result.topic_id): result.error_code for result in results}
    assert codes == {
        ("a", ZERO_UUID): ErrorCode.INVALID_REQUEST,
        (None, topics[1].id): ErrorCode.INVALID_REQUEST,
        ("c", ZERO_UUID): ErrorCode.INVALID_REQUEST,
        (None, topics[2].id): ErrorCode.INVALID_REQUEST,
        ("d", topics[3].id): 0,
    }
    assert set(broker.image.topics) == {"a", "b", "c"}


async def test_if_deletion_is_disabled_old_clients_get_a_code_that_they_know(start_broker: StartBroker) -> None:
    broker = await start_broker(delete_topic_enable="false")
    await broker.create_topic("a")
    for version in range(7):
        members: dict[str, Any] = {"topics": [state("a")]} if version >= 6 else {"topic_names": ["a"]}
        response = await broker.ask(DELETE_TOPICS, version, **members)
        (result,) = response.responses
        code = ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        assert (result.name, result.error_code) == ("a", code)
    assert set(broker.image.topics) == {"a"}


async def test_deletion_needs_a_permission_and_hides_names_behind_ids(broker: HandlerBroker) -> None:
    topics = {name: await broker.create_topic(name) for name in ("hidden", "seen", "mine")}
    broker.allow((AclOperation.DESCRIBE, "seen"), (AclOperation.DESCRIBE, "mine"), (AclOperation.DELETE, "mine"))
    results = await delete(broker, *[state(topic_id=topic.id) for topic in topics.values()], state("absent"))
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [(result.name, result.error_code) for result in results] == [
        (None, refused),
        ("seen", refused),
        ("mine", 0),
        ("absent", refused),
    ]
    assert set(broker.image.topics) == {"hidden", "seen"}


async def test_a_recreated_topic_has_another_id_and_an_empty_log(broker: HandlerBroker) -> None:
    from tests.log.batches import make_batch

    first = await broker.create_topic("a")
    broker.append("a", make_batch(b"1"))
    await delete(broker, state("a"))
    second = await broker.create_topic("a")
    assert first.id != second.id
    assert broker.log("a").log_end_offset == 0
