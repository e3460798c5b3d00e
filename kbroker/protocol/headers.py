"""Headers of requests and responses.

Request headers: v0 has no client id (ControlledShutdown v0), v1 has one, v2 adds tagged fields. The client id has an
INT16 length in all versions. Response headers: v1 adds tagged fields. ApiVersions responses always have a v0 header,
since the client does not know the broker's versions yet.
"""

from __future__ import annotations

from kbroker.protocol.types import Int16, Int32, String16
from kbroker.protocol.versions import Message, field

REQUEST_HEADER = Message(
    "RequestHeader",
    field("request_api_key", Int16),
    field("request_api_version", Int16),
    field("correlation_id", Int32),
    field("client_id", String16, since=1, nullable=1),
    versions=(0, 2),
    flexible=2,
)

RESPONSE_HEADER = Message(
    "ResponseHeader",
    field("correlation_id", Int32),
    versions=(0, 1),
    flexible=1,
)


def request_header_version(api_key: int, version: int, *, flexible_since: int) -> int:
    if version >= flexible_since:
        return 2
    return 0 if api_key == 7 and version == 0 else 1


def response_header_version(api_key: int, version: int, *, flexible_since: int) -> int:
    return 1 if version >= flexible_since and api_key != 18 else 0
