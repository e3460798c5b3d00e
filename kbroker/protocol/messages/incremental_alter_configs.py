"""IncrementalAlterConfigs (44): set, delete, append to or subtract from single configs."""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

AlterableConfig = Struct(
    "AlterableConfig",
    field("name", String),
    field("config_operation", Int8),
    field("value", String, nullable=0),
)

AlterConfigsResource = Struct(
    "AlterConfigsResource",
    field("resource_type", Int8),
    field("resource_name", String),
    field("configs", Array(AlterableConfig)),
)

REQUEST = Message(
    "IncrementalAlterConfigsRequest",
    field("resources", Array(AlterConfigsResource)),
    field("validate_only", Bool),
    versions=(0, 1),
    flexible=1,
)

AlterConfigsResourceResponse = Struct(
    "AlterConfigsResourceResponse",
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("resource_type", Int8),
    field("resource_name", String),
)

RESPONSE = Message(
    "IncrementalAlterConfigsResponse",
    field("throttle_time_ms", Int32),
    field("responses", Array(AlterConfigsResourceResponse)),
    versions=(0, 1),
    flexible=1,
)
