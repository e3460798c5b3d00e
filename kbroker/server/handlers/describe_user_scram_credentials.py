"""DescribeUserScramCredentials (50), v0: nobody has any yet. Kafka's ConfigCommand asks before showing quotas."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_user_scram_credentials as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, Operation.DESCRIBE):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Authorization failed.")
    counts = Counter(user.name for user in request.body.users or ())
    return messages.RESPONSE(error_message=None, results=[_result(name, count) for name, count in counts.items()])


def _result(name: str, count: int) -> Any:
    if count > 1:
        code, message = ErrorCode.DUPLICATE_RESOURCE, f"The user {name} is named more than once."
    else:
        code, message = ErrorCode.RESOURCE_NOT_FOUND, f"The user {name} has no SCRAM credentials."
    return messages.DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
