"""Finds stray logs: their topic was deleted, or their replica moved away, while this broker was down. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

from kbroker.controller.image import Image
from kbroker.names import TopicPartition

__all__ = ["find_strays"]


def find_strays(
    logs: Iterable[TopicPartition], image: Image, existing: Container[str], broker_id: int
) -> list[TopicPartition]:
    """Returns the logs that belong to no replica of this broker.

    `existing`: names of the topics in the metadata tree. A topic that only the tree has is new, is being deleted, or
    its node is damaged: its logs are no strays yet.
    """
    return [key for key in logs if _is_stray(key, image, existing, broker_id)]


def _is_stray(key: TopicPartition, image: Image, existing: Container[str], broker_id: int) -> bool:
    topic, index = key
    known = image.topic(topic)
    if known is None:
        return topic not in existing
    return index < len(known.partitions) and broker_id not in known.partitions[index].replicas
