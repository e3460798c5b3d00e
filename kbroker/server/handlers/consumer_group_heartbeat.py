"""ConsumerGroupHeartbeat (68), v0-1: a member of a consumer group lives, says what it has, and learns what to have.

v0: the broker gives a member without an id one. v1: the member makes its own; subscriptions by regular expression.
Epoch 0 joins, -1 leaves, -2 leaves for a while (a static member that will be back).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.group.assignors import known_assignors
from kbroker.group.consumer import JOIN, LEAVE, LEAVE_FOR_A_WHILE, Beat
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import consumer_group_heartbeat as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import find_shard, group_ticket
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

OWN_ID_SINCE: Final = 1


def handle(context: Context, request: Request) -> None:
    body = request.body
    if "consumer" not in context.config.group_coordinator_rebalance_protocols:
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION)
    driver = find_shard(context, request, Operation.READ, body.group_id)
    _check(context, request)

    def may_see(topic: str) -> bool:
        return allows_topic(context, request, Operation.DESCRIBE, topic)

    if body.subscribed_topic_names and not all(map(may_see, body.subscribed_topic_names)):
        raise Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    client_host = f"/{request.client_host}"  # as Java prints an address, for the tools that show it
    beat = Beat(body, request.client_id or "", client_host, group_ticket(request, refuse), may_see)
    driver.take(body.group_id, driver.shard.consumer_heartbeat(beat, driver.now()))


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code, error_message=message)


def _check(context: Context, request: Request) -> None:
    """What makes no sense whatever the group is at."""
    body = request.body
    epoch = body.member_epoch
    if not body.member_id and (request.version >= OWN_ID_SINCE or epoch > JOIN or epoch == LEAVE):
        raise _invalid("MemberId is empty.")
    for name, value in (("GroupId", body.group_id), ("InstanceId", body.instance_id), ("RackId", body.rack_id)):
        if value == "":
            raise _invalid(f"{name} is empty.")
    if epoch == JOIN:
        _check_join(body)
    elif epoch == LEAVE_FOR_A_WHILE and body.instance_id is None:
        raise _invalid("Only a member with an InstanceId can leave for a while.")
    elif epoch < LEAVE_FOR_A_WHILE:
        raise _invalid(f"There is no MemberEpoch {epoch}.")
    known = known_assignors(context.config.group_consumer_assignors)
    if body.server_assignor is not None and body.server_assignor not in known:
        message = f"There is no assignor {body.server_assignor}, only {', '.join(known)}."
        raise Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, message)


def _check_join(body: Any) -> None:
    if body.rebalance_timeout_ms == -1:
        raise _invalid("Who joins must name a RebalanceTimeoutMs.")
    if body.topic_partitions is None or body.topic_partitions:
        raise _invalid("Who joins has no TopicPartitions, and must say so.")
    if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
        raise _invalid("Who joins must have SubscribedTopicNames or a SubscribedTopicRegex, if only empty ones.")


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
