"""The shop against a Kafka of its own, in every test."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from shop import Shop, count_orders  # type: ignore[import-not-found]

from kbroker.testing import Broker

pytestmark = pytest.mark.kbroker_topics("orders:3")


def partitions(broker: Broker) -> dict[str, int]:
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if not name.startswith("__")}


def test_orders_are_counted(kbroker: Broker) -> None:
    shop = Shop(kbroker.bootstrap)
    for article in ("tea", "tea", "cup"):
        shop.order("ada", article)
    assert count_orders(kbroker.bootstrap, until=3) == {"tea": 2, "cup": 1}


@pytest.mark.parametrize("article", ["tea", "cup"])
def test_every_test_begins_with_nothing(kbroker: Broker, article: str) -> None:
    Shop(kbroker.bootstrap).order("ada", article)
    assert count_orders(kbroker.bootstrap, until=1) == {article: 1}


@pytest.mark.kbroker_topics("events", "audit:2")
def test_a_test_adds_topics_to_those_of_its_module(kbroker: Broker) -> None:
    assert partitions(kbroker) == {"orders": 3, "events": 1, "audit": 2}


@pytest.mark.kbroker_settings(num_partitions=5)
@pytest.mark.kbroker_topics("events")
def test_a_test_has_settings_of_its_own(kbroker: Broker) -> None:
    assert partitions(kbroker) == {"orders": 3, "events": 5}


def test_an_order_survives_a_change_of_leaders(kbroker: Broker) -> None:
    fault = kbroker.faults.fail("Produce", code="NOT_LEADER_OR_FOLLOWER", times=2)
    Shop(kbroker.bootstrap).order("ada", "tea")
    assert fault.hits == 2


def test_an_order_that_is_not_allowed_is_an_error(kbroker: Broker) -> None:
    kbroker.faults.fail("Produce", code="TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaException):
        Shop(kbroker.bootstrap).order("ada", "tea")


def test_a_fault_does_not_outlive_its_test(kbroker: Broker) -> None:
    Shop(kbroker.bootstrap).order("ada", "tea")


def test_no_topic_comes_by_itself(kbroker: Broker) -> None:
    Producer({"bootstrap.servers": kbroker.bootstrap}).list_topics("unknown", timeout=30)
    assert kbroker.topics == ["orders"]


@pytest.mark.kbroker_settings(auto_create_topics_enable=True)
def test_a_topic_comes_by_itself_where_it_may(kbroker: Broker) -> None:
    Producer({"bootstrap.servers": kbroker.bootstrap}).list_topics("unknown", timeout=30)
    assert kbroker.topics == ["orders", "unknown"]
