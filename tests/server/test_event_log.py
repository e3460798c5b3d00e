"""The event log has each change once, and no secrets."""

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
from kbroker.controller.image import Image, PartitionState, TopicImage
from kbroker.server.event_log import EventLog

STATE = PartitionState(leader=1, leader_epoch=0, isr=(1,), replicas=(1,), partition_epoch=0)
ORDERS = TopicImage("orders", b"0" * 16, (STATE,))


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> LoggedChanges:
    return LoggedChanges(caplog)


class LoggedChanges:
    """Applies changes to an image with the topic orders, and returns the logged lines."""

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


def test_created_and_deleted_topics_are_logged(logged: LoggedChanges) -> None:
    new = TopicImage("events", b"1" * 16, (STATE, STATE), {"retention.ms": "1"})
    assert logged(TopicAdded(new)) == ["Created topic events with 2 partitions, retention.ms=1"]
    assert logged(TopicRemoved(new)) == ["Deleted topic events"]


def test_of_partition_changes_only_new_partitions_are_logged(logged: LoggedChanges) -> None:
    moved = STATE._replace(leader_epoch=1)
    assert logged(PartitionsChanged("orders", {0: moved})) == []
    assert logged(PartitionsChanged("orders", {1: STATE})) == ["Increased partitions of topic orders from 1 to 2"]


def test_topic_configs_are_logged_when_they_differ(logged: LoggedChanges) -> None:
    changed = TopicConfigsChanged("orders", {"retention.ms": "1"})
    assert logged(changed) == ["Configs of topic orders changed to: retention.ms=1"]
    assert logged(changed) == []  # as after a change of the broker's defaults
    assert logged(TopicConfigsChanged("orders", {})) == ["Configs of topic orders changed to: none"]


def test_quotas_are_logged(logged: LoggedChanges) -> None:
    changed = EntityConfigsChanged("users/alice", {"producer_byte_rate": "1024"})
    assert logged(changed) == ["Configs of users/alice changed to: producer_byte_rate=1024"]


@pytest.mark.parametrize(
    ("entity", "name"),
    [("brokers/1", "ssl.key.password"), ("brokers/1", "plugin.secret"), ("users/alice", "SCRAM-SHA-256")],
)
def test_secrets_are_not_logged(logged: LoggedChanges, entity: str, name: str) -> None:
    (line,) = logged(EntityConfigsChanged(entity, {name: "hunter2"}))
    assert line == f"Configs of {entity} changed to: {name}=[hidden]"
