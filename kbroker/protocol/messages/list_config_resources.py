"""ListConfigResources (74): resources that hold configs.

v0 lists client metrics only, as ListClientMetricsResources did; v1 any type.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "ListConfigResourcesRequest",
    field("resource_types", Array(Int8), since=1),
    versions=(0, 1),
    flexible=0,
)

ConfigResource = Struct(
    "ConfigResource",
    field("resource_name", String),
    field("resource_type", Int8, since=1, default=16),
)

RESPONSE = Message(
    "ListConfigResourcesResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("config_resources", Array(ConfigResource)),
    versions=(0, 1),
    flexible=0,
)
