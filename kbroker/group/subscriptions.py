"""Which topics the members of a classic group read: looked up in what consumers tell each other, opaque otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.consumer_protocol import SUBSCRIPTION

__all__ = ["CONSUMER", "subscribed_topics"]

CONSUMER: Final = "consumer"
"""The protocol type of consumers; others (`connect`) mean nothing to a broker."""


def subscribed_topics(protocol_type: str, subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """None if it cannot be known: no consumers, or their bytes are not of Kafka's protocol."""
    if protocol_type != CONSUMER:
        return None
    topics: set[str] = set()
    decode = codec(SUBSCRIPTION, 0).decode  # every later version only adds at the end
    try:
        for subscription in subscriptions:
            topics.update(decode(subscription, 2)[0].topics)
    except PeerError:
        return None
    return frozenset(topics)
