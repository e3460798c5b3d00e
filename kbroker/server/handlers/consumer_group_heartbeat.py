"""ConsumerGroupHeartbeat (68), v0-1: keeps a member of a consumer group alive and exchanges assignments (KIP-848).

Member epoch 0 joins, -1 leaves, -2 leaves temporarily (static members only). v0: the broker generates a missing member
id. v1: the client generates its member id (KIP-1082); subscriptions by regular expression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.group.consumer.assignors import known_assignors
from kbroker.group.consumer.consumer_group import JOIN, LEAVE, LEAVE_TEMPORARILY, HeartbeatRequest
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import consumer_group_heartbeat as messages
from kbroker.server.access.permissions import allows_group, allows_topic
from kbroker.server.coordinators.group_requests import find_shard, pending_response

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

OWN_ID_SINCE: Final = 1


def handle(context: Context, request: Request) -> None:
    body = request.body
    if "consumer" not in context.config.group_coordinator_rebalance_protocols:
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION)
    if not allows_group(context, request, AclOperation.READ, body.group_id):
        raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def may_see(topic: str) -> bool:
        return allows_topic(context, request, AclOperation.DESCRIBE, topic)

    if body.subscribed_topic_names and not all(map(may_see, body.subscribed_topic_names)):
        raise Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    driver = find_shard(context, request, AclOperation.READ, body.group_id)
    _check(context, request)
    client_host = f"/{request.client_host}"  # as Java prints an InetAddress: tools show it
    heartbeat = HeartbeatRequest(body, request.client_id or "", client_host, pending_response(request, refuse), may_see)
    driver.apply(body.group_id, driver.shard.consumer_heartbeat(heartbeat, driver.now()))


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(error_code=code, error_message=message)


def _check(context: Context, request: Request) -> None:
    """Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR if the request is invalid in every state of the group."""
    body = request.body
    epoch = body.member_epoch
    if not body.member_id and (request.version >= OWN_ID_SINCE or epoch > JOIN or epoch == LEAVE):
        raise _invalid("MemberId can't be empty.")
    for name, value in (("GroupId", body.group_id), ("InstanceId", body.instance_id), ("RackId", body.rack_id)):
        if value == "":
            raise _invalid(f"{name} can't be empty.")
    if epoch == JOIN:
        _check_join(body)
    elif epoch == LEAVE_TEMPORARILY and body.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_TEMPORARILY:
        raise _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    known = known_assignors(context.config.group_consumer_assignors)
    if body.server_assignor is not None and body.server_assignor not in known:
        message = f"ServerAssignor {body.server_assignor} is not supported. Supported assignors: {', '.join(known)}."
        raise Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, message)


def _check_join(body: Any) -> None:
    if body.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if body.topic_partitions is None or body.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
        message = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        raise _invalid(message)


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
