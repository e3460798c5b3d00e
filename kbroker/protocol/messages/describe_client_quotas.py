"""DescribeClientQuotas (48): quotas of users, client ids and addresses."""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Float64, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

ComponentData = Struct(
    "ComponentData",
    field("entity_type", String),
    field("match_type", Int8),
    field("match", String, nullable=0),
)

REQUEST = Message(
    "DescribeClientQuotasRequest",
    field("components", Array(ComponentData)),
    field("strict", Bool),
    versions=(0, 1),
    flexible=1,
)

EntityData = Struct(
    "EntityData",
    field("entity_type", String),
    field("entity_name", String, nullable=0),
)

ValueData = Struct(
    "ValueData",
    field("key", String),
    field("value", Float64),
)

EntryData = Struct(
    "EntryData",
    field("entity", Array(EntityData)),
    field("values", Array(ValueData)),
)

RESPONSE = Message(
    "DescribeClientQuotasResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("entries", Array(EntryData), nullable=0),
    versions=(0, 1),
    flexible=1,
)
