"""InitProducerId (22), v0-5: a producer id with epoch 0 for an idempotent producer.

Without a transactional id every request gets a new id, also one that names the id and epoch it has (v3, KIP-360): the
client then starts over with sequence 0. There is no transaction coordinator yet: a transactional id is checked as Kafka
checks it, and then answered with COORDINATOR_NOT_AVAILABLE, upon which clients look for a coordinator again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import init_producer_id as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster, allows_topic, allows_transactional_id

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

NO_ID: Final = -1


def handle(context: Context, request: Request) -> Any:
    body = request.body
    transactional_id = body.transactional_id
    if transactional_id is not None:
        if not allows_transactional_id(context, request, Operation.WRITE, transactional_id):
            raise Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not _may_produce(context, request):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if (body.producer_id == NO_ID) != (body.producer_epoch == NO_ID):
        raise Refusal(ErrorCode.INVALID_REQUEST)
    if transactional_id is not None:
        raise Refusal(_transactional_refusal(context, request))
    producer_id = context.producer_ids.take()
    if producer_id is None:
        return _wait(context)
    return messages.RESPONSE(producer_id=producer_id, producer_epoch=0)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code, producer_id=NO_ID, producer_epoch=NO_ID)


async def _wait(context: Context) -> Any:
    return messages.RESPONSE(producer_id=await context.producer_ids.wait_next(), producer_epoch=0)


def _may_produce(context: Context, request: Request) -> bool:
    """Whoever may write to some topic may do so idempotently (KIP-679)."""
    return allows_cluster(context, request, Operation.IDEMPOTENT_WRITE) or any(
        allows_topic(context, request, Operation.WRITE, name) for name in context.controller.image.topics
    )


def _transactional_refusal(context: Context, request: Request) -> ErrorCode:
    body = request.body
    if not body.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if not 0 < body.transaction_timeout_ms <= context.config.transaction_max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
