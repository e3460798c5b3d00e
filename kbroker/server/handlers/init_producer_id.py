"""InitProducerId (22), v0-5: returns a producer id and epoch, for idempotence and for transactions (KIP-98).

Without a transactional id every request gets a new producer id, even if it names its id and epoch (v3, KIP-360): the
client then starts again with sequence 0. With a transactional id, the producer id stays and the epoch grows, which
fences earlier producers. An open transaction is aborted first; the client gets CONCURRENT_TRANSACTIONS and retries.
Before v4, PRODUCER_FENCED is sent as INVALID_PRODUCER_EPOCH (KIP-588).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import init_producer_id as messages
from kbroker.server.access.permissions import allows_any_topic, allows_cluster, allows_transactional_id
from kbroker.server.coordinators.transaction_requests import find_transaction, known_error, pending_transaction
from kbroker.transaction.result import NeedsProducerId, TransactionResult

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

NO_ID: Final = -1
FENCED_SINCE: Final = 4


def handle(context: Context, request: Request) -> Any:
    body = request.body
    transactional_id = body.transactional_id
    if transactional_id is not None:
        if not allows_transactional_id(context, request, AclOperation.WRITE, transactional_id):
            raise Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not _may_produce(context, request):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if (body.producer_id == NO_ID) != (body.producer_epoch == NO_ID):
        raise Refusal(ErrorCode.INVALID_REQUEST)
    if transactional_id is not None:
        return _init(context, request, None)
    producer_id = context.producer_ids.next_or_none()
    if producer_id is None:
        return _wait(context)
    return messages.RESPONSE(producer_id=producer_id, producer_epoch=0)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code, producer_id=NO_ID, producer_epoch=NO_ID)


async def _wait(context: Context) -> Any:
    return messages.RESPONSE(producer_id=await context.producer_ids.wait_next(), producer_epoch=0)


def _may_produce(context: Context, request: Request) -> bool:
    """Whether the client may use idempotence: write permission for any topic, existing or not, suffices (KIP-679)."""
    return allows_cluster(context, request, AclOperation.IDEMPOTENT_WRITE, quiet=True) or allows_any_topic(
        context, request, AclOperation.WRITE
    )


def _init(context: Context, request: Request, new_id: int | None) -> Any:
    body = request.body
    if not body.transactional_id:
        raise Refusal(ErrorCode.INVALID_REQUEST)
    if not 0 < body.transaction_timeout_ms <= context.config.transaction_max_timeout_ms:
        raise Refusal(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    driver = find_transaction(context, request, body.transactional_id)
    expected = None if body.producer_id == NO_ID else (body.producer_id, body.producer_epoch)
    try:
        result = driver.shard.init_producer_id(
            body.transactional_id, body.transaction_timeout_ms, expected, new_id, driver.now_ms()
        )
    except NeedsProducerId:
        return _init_with_new_id(context, request)
    driver.apply(body.transactional_id, result, pending_transaction(request, _respond, refuse))
    return None


async def _init_with_new_id(context: Context, request: Request) -> Any:
    return _init(context, request, await context.producer_ids.wait_next())


def _respond(request: Request, result: TransactionResult) -> Any:
    code = known_error(result.error, request, FENCED_SINCE)
    return messages.RESPONSE(error_code=code, producer_id=result.producer_id, producer_epoch=result.producer_epoch)
