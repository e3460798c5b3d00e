"""AlterPartition (56), v0-3: a leader proposes a new ISR; the controller validates and stores it (KIP-497).

Served in a cluster only. v2: topics by id. v3: ISR members with their broker epochs, -1 if the leader does not know
them (KIP-903).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.controller.image import PartitionState
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_partition as messages
from kbroker.server.access.between_brokers import member_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

IDS_SINCE: Final = 2
EPOCHS_SINCE: Final = 3


async def handle(context: Context, request: Request) -> Any:
    member_of(context, request)
    body = request.body
    image = context.controller.image
    names = [
        image.topic_names_by_id.get(topic.topic_id, "") if request.version >= IDS_SINCE else topic.topic_name
        for topic in body.topics
    ]
    proposals = [
        _proposal(name, partition, request.version)
        for name, topic in zip(names, body.topics, strict=True)
        for partition in topic.partitions
    ]
    outcomes = iter(
        await context.controller.alter_partitions(body.broker_id, broker_epoch=body.broker_epoch, proposals=proposals)
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if request.version >= IDS_SINCE else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return messages.RESPONSE(
        topics=[
            messages.TopicDataResponse(
                topic_name=topic.topic_name,
                topic_id=topic.topic_id,
                partitions=[
                    _result(partition.partition_index, next(outcomes), None if name else unknown)
                    for partition in topic.partitions
                ],
            )
            for name, topic in zip(names, body.topics, strict=True)
        ]
    )


def _proposal(topic: str, proposed: Any, version: int) -> IsrProposal:
    isr = (member.broker_id for member in proposed.new_isr_with_epochs) if version >= EPOCHS_SINCE else proposed.new_isr
    return IsrProposal(topic, proposed.partition_index, proposed.leader_epoch, proposed.partition_epoch, tuple(isr))


def _result(index: int, outcome: PartitionState | Refusal, code: int | None) -> Any:
    if isinstance(outcome, Refusal):
        return messages.PartitionDataResponse(partition_index=index, error_code=code or outcome.code)
    return messages.PartitionDataResponse(
        partition_index=index,
        leader_id=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        isr=outcome.isr,
        partition_epoch=outcome.partition_epoch,
    )
