"""AlterClientQuotas (49): set or remove quotas."""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Float64, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

EntityData = Struct(
    "EntityData",
    field("entity_type", String),
    field("entity_name", String, nullable=0),
)

OpData = Struct(
    "OpData",
    field("key", String),
    field("value", Float64),
    field("remove", Bool),
)

EntryData = Struct(
    "EntryData",
    field("entity", Array(EntityData)),
    field("ops", Array(OpData)),
)

REQUEST = Message(
    "AlterClientQuotasRequest",
    field("entries", Array(EntryData)),
    field("validate_only", Bool),
    versions=(0, 1),
    flexible=1,
)

EntryDataResponse = Struct(
    "EntryData",
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("entity", Array(EntityData)),
)

RESPONSE = Message(
    "AlterClientQuotasResponse",
    field("throttle_time_ms", Int32),
    field("entries", Array(EntryDataResponse)),
    versions=(0, 1),
    flexible=1,
)
