"""ApiVersions (18): the APIs and versions that the broker supports.

The response header is always v0, even if the body is flexible. The response to an unknown version is v0, with the
version range of this API.
v3: software name and version of the client; features. v4: features whose minimum is 0.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "ApiVersionsRequest",
    field("client_software_name", String, since=3),
    field("client_software_version", String, since=3),
    versions=(0, 4),
    flexible=3,
)

ApiVersion = Struct(
    "ApiVersion",
    field("api_key", Int16),
    field("min_version", Int16),
    field("max_version", Int16),
)

SupportedFeatureKey = Struct(
    "SupportedFeatureKey",
    field("name", String, since=3),
    field("min_version", Int16, since=3),
    field("max_version", Int16, since=3),
)

FinalizedFeatureKey = Struct(
    "FinalizedFeatureKey",
    field("name", String, since=3),
    field("max_version_level", Int16, since=3),
    field("min_version_level", Int16, since=3),
)

RESPONSE = Message(
    "ApiVersionsResponse",
    field("error_code", Int16),
    field("api_keys", Array(ApiVersion)),
    field("throttle_time_ms", Int32, since=1),
    field("supported_features", Array(SupportedFeatureKey), since=3, tag=0),
    field("finalized_features_epoch", Int64, since=3, tag=1, default=-1),
    field("finalized_features", Array(FinalizedFeatureKey), since=3, tag=2),
    field("zk_migration_ready", Bool, since=3, tag=3),
    versions=(0, 4),
    flexible=3,
)
