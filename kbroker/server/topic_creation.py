"""Topics that a broker creates for its clients and for itself: in a cluster the controller is asked to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.controller.image import Topic
from kbroker.controller.topic_rules import NewTopic
from kbroker.errors import Refusal

if TYPE_CHECKING:
    from kbroker.controller.cluster_member import ClusterMember
    from kbroker.controller.controller import Controller

__all__ = ["create_topics"]


async def create_topics(
    controller: Controller, member: ClusterMember | None, wishes: Sequence[NewTopic]
) -> list[Topic | Refusal]:
    """An outcome for each, in order; a topic that is created is in the image when this returns."""
    if member is None:
        return await controller.create_topics(wishes)
    return await member.link.create_topics(wishes)
