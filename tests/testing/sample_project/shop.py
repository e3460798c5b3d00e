"""A small program that lives on Kafka: it takes orders with confluent-kafka and counts them with kafka-python."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import KafkaException, Producer
from kafka import KafkaConsumer


class Shop:
    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "retry.backoff.ms": 10})

    def order(self, customer: str, article: str) -> int:
        """The partition that it went to."""
        done: list[tuple[Any, Any]] = []
        value = json.dumps({"customer": customer, "article": article})
        self._producer.produce("orders", value, key=customer, on_delivery=lambda error, at: done.append((error, at)))
        self._producer.flush(30)
        ((error, message),) = done
        if error is not None:
            raise KafkaException(error)
        return int(message.partition())


def count_orders(bootstrap: str, *, until: int) -> dict[str, int]:
    """Orders by article, once so many have been seen."""
    counts: dict[str, int] = {}
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=bootstrap,
        group_id="statistics",
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    try:
        for message in consumer:
            article = json.loads(message.value)["article"]
            counts[article] = counts.get(article, 0) + 1
            if sum(counts.values()) == until:
                break
    finally:
        consumer.close()
    return counts
