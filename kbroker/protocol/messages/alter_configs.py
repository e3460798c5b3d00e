"""AlterConfigs (33): replace all configs of a resource. Deprecated; use IncrementalAlterConfigs.

v1: the client delays its next request when it is throttled (KIP-219).
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

AlterableConfig = Struct(
    "AlterableConfig",
    field("name", String),
    field("value", String, nullable=0),
)

AlterConfigsResource = Struct(
    "AlterConfigsResource",
    field("resource_type", Int8),
    field("resource_name", String),
    field("configs", Array(AlterableConfig)),
)

REQUEST = Message(
    "AlterConfigsRequest",
    field("resources", Array(AlterConfigsResource)),
    field("validate_only", Bool),
    versions=(0, 2),
    flexible=2,
)

AlterConfigsResourceResponse = Struct(
    "AlterConfigsResourceResponse",
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("resource_type", Int8),
    field("resource_name", String),
)

RESPONSE = Message(
    "AlterConfigsResponse",
    field("throttle_time_ms", Int32),
    field("responses", Array(AlterConfigsResourceResponse)),
    versions=(0, 2),
    flexible=2,
)
