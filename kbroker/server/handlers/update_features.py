"""UpdateFeatures (57), v0-2: refuses every change, because no feature of the cluster has a version to change (KIP-584).

As from v2, one invalid update fails the whole request; the error is top-level in all versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import update_features as messages
from kbroker.server.access.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

_UPGRADE_TYPES: Final = (1, 2, 3)  # upgrade, safe downgrade, unsafe downgrade


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    for update in request.body.feature_updates:
        raise Refusal(ErrorCode.INVALID_UPDATE_VERSION, _problem(context, request.version, update))
    return messages.RESPONSE(error_message=None)


def _problem(context: Context, version: int, update: Any) -> str:
    level, feature = update.max_version_level, update.feature
    if version >= 1 and update.upgrade_type not in _UPGRADE_TYPES:
        reason = "The controller does not support the given upgrade type."
    elif level < 0:
        reason = "A feature version cannot be less than 0."
    else:
        reason = f"Broker {context.broker_id} does not support this feature."
    return f"Invalid update version {level} for feature {feature}. {reason}"
