"""DescribeUserScramCredentials (50), v0: responds that users have no SCRAM credentials (KIP-554).

kbroker stores none. Kafka's ConfigCommand calls this API before it shows the quotas of users.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_user_scram_credentials as messages
from kbroker.server.access.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.DESCRIBE):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    counts = Counter(user.name for user in request.body.users or ())
    return messages.RESPONSE(error_message=None, results=[_result(name, count) for name, count in counts.items()])


def _result(name: str, count: int) -> Any:
    if count > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    else:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {name}"
    return messages.DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
