"""OffsetCommit (8), v0-9: how far a group has come. Written with the other commits of the run.

v1: a time of commit for each partition. v2 to v4: a retention of their own. v9: GROUP_ID_NOT_FOUND for a member of a
group that is not there, ILLEGAL_GENERATION before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.coordinator.ticket import Ticket
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_commit as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import allows_group
from kbroker.server.offset_answers import leave_out_what_cannot_be, refuse_rest, refuse_these

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

_Response = messages.RESPONSE.value
_Topic = messages.OffsetCommitResponseTopic.value
_Partition = messages.OffsetCommitResponsePartition.value


def handle(context: Context, request: Request) -> Any:
    body = request.body
    if not allows_group(context, request, Operation.READ, body.group_id):
        return refuse(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
    response = refuse(request, ErrorCode.NONE, None)
    if body.topics:
        leave_out_what_cannot_be(context, request, response)
        if not body.topics:
            return response
    try:
        driver = context.groups.find(body.group_id)
        records, refused = driver.shard.commit(body, request.version, driver.now())
    except Refusal as refusal:
        return refuse_rest(response, refusal.code)
    if refused:
        refuse_these(response, refused)
    ticket = Ticket(request.reply, lambda code: request.reply(refuse_rest(response, code)))
    if records:
        driver.enqueue(records, ticket, response)
    else:
        driver.flush()
        driver.answer(ticket, response)
    return None


def refuse(request: Request, code: int, message: str | None) -> Any:
    return _Response(
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(partition_index=each.partition_index, error_code=code) for each in topic.partitions
                ],
            )
            for topic in request.body.topics
        ]
    )
