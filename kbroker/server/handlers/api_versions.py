"""ApiVersions (18), v0-4: lists the APIs and versions that the registry serves.

An unknown version gets a v0 response with UNSUPPORTED_VERSION and this API's own range (KIP-511). v3: the client's
software name and version, validated as in Apache Kafka; and features: `group.version` 1 enables consumer groups
(KIP-848), `transaction.version` 2 means that the producer epoch grows with every transaction (KIP-890). In a cluster
`transaction.version` is missing, as in Apache Kafka 3.9 with ZooKeeper: a broker of Apache Kafka may join or coordinate
at any time, and does not know it. Clients before v4 reject a feature range that begins at 0, so supported features are
sent from v4 only. The response is the same for all clients, so its encoded bytes are cached.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import api_versions as messages
from kbroker.protocol.registry import APIS, Api, api

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["early_response", "handle", "handle_unknown_version"]

_API_VERSIONS = 18
_FEATURES = {"group.version": 1, "transaction.version": 2}
_FEATURES_IN_CLUSTER = {"group.version": 1}
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

_bodies: dict[tuple[int, bool], bytes] = {}  # by version and `is_in_cluster`; entries never become stale


def handle(context: Context, request: Request) -> Any:
    version = request.version
    if not _is_valid(version, request.body):
        return messages.RESPONSE(error_code=ErrorCode.INVALID_REQUEST)
    is_in_cluster = context.member is not None
    if request.route.quotas is not None:
        return _response(version, is_in_cluster)  # not cached: the throttle time differs for each client
    encoded = _bodies.get((version, is_in_cluster))
    if encoded is None:
        encoded = _bodies[version, is_in_cluster] = request.encode(_response(version, is_in_cluster))
    request.reply_encoded(encoded)
    return None


def handle_unknown_version(context: Context, request: Request) -> Any:
    """Called by dispatch instead of `handle`; the response is encoded as v0."""
    return _unsupported()


def early_response(is_in_cluster: bool, version: int, body: Any) -> Any:
    """Returns the response for a client that has not logged in yet. `body` is None in a version that is not served.

    No quota applies to it: the user is not known.
    """
    if body is None:
        return _unsupported()
    if not _is_valid(version, body):
        return messages.RESPONSE(error_code=ErrorCode.INVALID_REQUEST)
    return _response(version, is_in_cluster)


def _is_valid(version: int, body: Any) -> bool:
    if version < 3:
        return True
    names = (body.client_software_name, body.client_software_version)
    return all(_SOFTWARE.fullmatch(name) is not None for name in names)


def _unsupported() -> Any:
    return messages.RESPONSE(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_row(api(_API_VERSIONS))])


def _response(version: int, is_in_cluster: bool) -> Any:
    features = (_FEATURES_IN_CLUSTER if is_in_cluster else _FEATURES).items()
    supported = [messages.SupportedFeatureKey(name=name, min_version=0, max_version=last) for name, last in features]
    finalized = [
        messages.FinalizedFeatureKey(name=name, min_version_level=last, max_version_level=last)
        for name, last in features
    ]
    return messages.RESPONSE(
        api_keys=_served(is_in_cluster),
        supported_features=supported if version >= 4 else [],
        finalized_features=finalized,
        finalized_features_epoch=0,
    )


def _served(is_in_cluster: bool) -> list[Any]:
    return [_row(served) for served in APIS if served.is_served(is_in_cluster=is_in_cluster)]


def _row(served: Api) -> Any:
    assert served.serves is not None
    first, last = served.serves
    return messages.ApiVersion(api_key=served.key, min_version=first, max_version=last)
