"""Automatic creation of topics, for clients and for internal topics. In a cluster the controller creates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kbroker.clock import Clock
from kbroker.controller.image import TopicImage
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.errors import Refusal

if TYPE_CHECKING:
    from kbroker.controller.cluster.cluster_member import ClusterMember
    from kbroker.controller.controller import Controller

__all__ = ["AutoCreationRate", "create_topics"]

BURST: Final = 1000
PARTITIONS_PER_SECOND: Final = 100


class AutoCreationRate:
    """Bounds how many partitions requests for metadata create: 1000 at once, then 100 in a second.

    Every name in such a request could become a topic, with files and nodes in the tree. A topic over the rate is
    answered as unknown, and its client asks again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._available = float(BURST)
        self._refilled = clock.monotonic()

    def take(self, count: int) -> bool:
        """Whether a topic with so many partitions may be created now. It then counts as created.

        A topic may exceed the available number, since one with more than `BURST` partitions could never be created
        otherwise; the next topics wait longer.
        """
        now = self._clock.monotonic()
        self._available = min(BURST, self._available + (now - self._refilled) * PARTITIONS_PER_SECOND)
        self._refilled = now
        if self._available <= 0:
            return False
        self._available -= count
        return True

    def give_back(self, count: int) -> None:
        """Returns partitions that were taken and not created."""
        self._available = min(BURST, self._available + count)


async def create_topics(
    controller: Controller, member: ClusterMember | None, topics: Sequence[NewTopic]
) -> list[TopicImage | Refusal]:
    """Returns an outcome for each topic, in order. A created topic is in this broker's image on return."""
    if member is None:
        return await controller.create_topics(topics)
    return await member.link.create_topics(topics)
