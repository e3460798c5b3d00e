"""UpdateFeatures (57): raise or lower finalized features.

v1: kinds of upgrade, validate only. v2: one result for all features.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

FeatureUpdateKey = Struct(
    "FeatureUpdateKey",
    field("feature", String),
    field("max_version_level", Int16),
    field("allow_downgrade", Bool, until=0),
    field("upgrade_type", Int8, since=1, default=1),
)

REQUEST = Message(
    "UpdateFeaturesRequest",
    field("timeout_ms", Int32, default=60000),
    field("feature_updates", Array(FeatureUpdateKey)),
    field("validate_only", Bool, since=1),
    versions=(0, 2),
    flexible=0,
)

UpdatableFeatureResult = Struct(
    "UpdatableFeatureResult",
    field("feature", String),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
)

RESPONSE = Message(
    "UpdateFeaturesResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("results", Array(UpdatableFeatureResult), until=1),
    versions=(0, 2),
    flexible=0,
)
