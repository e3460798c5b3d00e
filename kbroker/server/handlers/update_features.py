"""UpdateFeatures (57), v0-2: no feature of the cluster is versioned here, so that none can be raised or lowered.

As from v2 on, one that fails fails all; the error is said at the top in every version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import update_features as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]

_UPGRADE_TYPES: Final = (1, 2, 3)  # up, safely down, down at any price


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, Operation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Authorization failed.")
    for update in request.body.feature_updates:
        raise Refusal(ErrorCode.INVALID_UPDATE_VERSION, _problem(context, request.version, update))
    return messages.RESPONSE(error_message=None)


def _problem(context: Context, version: int, update: Any) -> str:
    level, feature = update.max_version_level, update.feature
    if version >= 1 and update.upgrade_type not in _UPGRADE_TYPES:
        reason = "there is no such type of upgrade"
    elif level < 0:
        reason = "a version cannot be negative"
    else:
        reason = f"broker {context.broker_id} has no such feature"
    return f"Invalid update version {level} for feature {feature}: {reason}."
