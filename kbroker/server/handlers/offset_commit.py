"""OffsetCommit (8), v0-9: stores a group's offsets; responds when the records are committed.

Commits that arrive together are appended as one batch. v1: a commit timestamp for each partition. v2-4: a retention
time for these offsets. v9: a member of a group that does not exist gets GROUP_ID_NOT_FOUND, before that
ILLEGAL_GENERATION (KIP-848).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from kbroker.coordinator.pending_response import PendingResponse
from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_commit as messages
from kbroker.server.access.permissions import allows_group
from kbroker.server.coordinators.offset_responses import (
    CommitResponseTypes,
    check_topics,
    commit_response,
    refuse_partitions,
    refuse_rest,
)
from kbroker.server.requests.request import LongRequest
from kbroker.time_slice import finish_at_once, finish_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

_TYPES: Final = CommitResponseTypes(
    messages.RESPONSE.value, messages.OffsetCommitResponseTopic.value, messages.OffsetCommitResponsePartition.value
)


def handle(context: Context, request: Request) -> Any:
    if not allows_group(context, request, AclOperation.READ, request.body.group_id):
        return refuse(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
    steps = _steps(context, request)
    # Only a large request holds its connection: the commits of a client must not overtake each other.
    return finish_in_slices(context.clock, steps) if isinstance(request, LongRequest) else finish_at_once(steps)


def _steps(context: Context, request: Request) -> Generator[None, None, Any]:
    """Checks the topics in slices. Everything else happens in the last turn: the group cannot change meanwhile."""
    body = request.body
    has_topics = bool(body.topics)
    response = yield from check_topics(context, request, _TYPES)
    if has_topics and not body.topics:
        return response
    try:
        driver = context.groups.shards.find(body.group_id)
        records, refused = driver.shard.offsets.commit(body, request.version, driver.now())
    except Refusal as refusal:
        return refuse_rest(response, refusal.code)
    if refused:
        refuse_partitions(response, refused)
    pending = PendingResponse(request.reply, lambda code: request.reply(refuse_rest(response, code)))
    if records:
        driver.enqueue(records, pending, response)
    else:
        driver.flush()
        driver.log.answer(pending, response)
    return None


def refuse(request: Request, code: int, message: str | None) -> Any:
    return commit_response(request, code, _TYPES)
