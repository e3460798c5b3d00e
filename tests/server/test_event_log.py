"""What an operator finds in the log of what was changed: once, and without secrets."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.controller.changes import (
    Change,
    EntityConfigsChanged,
    PartitionsChanged,
    TopicAdded,
    TopicConfigsChanged,
    TopicRemoved,
    apply,
)
from kbroker.controller.image import Image, Partition, Topic
from kbroker.server.event_log import EventLog

STATE = Partition(leader=1, leader_epoch=0, isr=(1,), replicas=(1,), partition_epoch=0)
ORDERS = Topic("orders", b"0" * 16, (STATE,))


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


class Told:
    """Applies changes to an image with the topic orders, and says what was logged of them."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        self._caplog = caplog
        self._image = apply(Image(), [TopicAdded(ORDERS)])
        self._log = EventLog(self._image)

    def __call__(self, *changes: Change) -> Sequence[str]:
        self._caplog.clear()
        self._image = apply(self._image, changes)
        self._log.on_image(self._image, changes)
        return self._caplog.messages


def test_topics_come_and_go(told: Told) -> None:
    new = Topic("events", b"1" * 16, (STATE, STATE), {"retention.ms": "1"})
    assert told(TopicAdded(new)) == ["topic events created with 2 partitions, retention.ms=1"]
    assert told(TopicRemoved(new)) == ["topic events deleted"]


def test_only_more_partitions_are_told(told: Told) -> None:
    moved = STATE._replace(leader_epoch=1)
    assert told(PartitionsChanged("orders", {0: moved})) == []
    assert told(PartitionsChanged("orders", {1: STATE})) == ["topic orders has 2 partitions now, 1 before"]


def test_configs_of_a_topic_are_told_when_they_differ(told: Told) -> None:
    changed = TopicConfigsChanged("orders", {"retention.ms": "1"})
    assert told(changed) == ["configs of topic orders are now: retention.ms=1"]
    assert told(changed) == []  # it came along with new defaults of the broker
    assert told(TopicConfigsChanged("orders", {})) == ["configs of topic orders are now: none"]


def test_quotas_are_told(told: Told) -> None:
    changed = EntityConfigsChanged("users/alice", {"producer_byte_rate": "1024"})
    assert told(changed) == ["configs of users/alice are now: producer_byte_rate=1024"]


@pytest.mark.parametrize(
    ("entity", "name"),
    [("brokers/1", "ssl.key.password"), ("brokers/1", "plugin.secret"), ("users/alice", "SCRAM-SHA-256")],
)
def test_secrets_are_not_told(told: Told, entity: str, name: str) -> None:
    (line,) = told(EntityConfigsChanged(entity, {name: "hunter2"}))
    assert line == f"configs of {entity} are now: {name}=[hidden]"
