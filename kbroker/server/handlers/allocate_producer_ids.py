"""AllocateProducerIds (67), v0: a broker gets a block of producer ids from the controller (KIP-730).

Served in a cluster only, for brokers of Apache Kafka. kbroker's brokers allocate blocks in the metadata tree
themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import allocate_producer_ids as messages
from kbroker.server.access.between_brokers import member_of

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


async def handle(context: Context, request: Request) -> Any:
    member_of(context, request)
    broker = context.controller.image.brokers.get(request.body.broker_id)
    if broker is None:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED)
    if broker.epoch != request.body.broker_epoch:
        raise Refusal(ErrorCode.STALE_BROKER_EPOCH)
    block = await context.controller.allocate_producer_ids()
    return messages.RESPONSE(producer_id_start=block.first, producer_id_len=block.last - block.first + 1)
