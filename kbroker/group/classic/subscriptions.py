"""Reads the topics of a classic group's members from their metadata, which is opaque to the broker otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.consumer_protocol import SUBSCRIPTION

__all__ = ["CONSUMER", "subscribed_topics"]

CONSUMER: Final = "consumer"
"""The protocol type of consumers. The metadata of other types (`connect`) is never parsed."""


def subscribed_topics(protocol_type: str, subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Returns the subscribed topics; None if the members are not consumers or their metadata cannot be parsed."""
    if protocol_type != CONSUMER:
        return None
    topics: set[str] = set()
    decode = codec(SUBSCRIPTION, 0).decode  # later versions only append fields
    try:
        for subscription in subscriptions:
            topics.update(decode(subscription, 2)[0].topics)
    except PeerError:
        return None
    return frozenset(topics)
