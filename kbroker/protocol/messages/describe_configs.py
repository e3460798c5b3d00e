"""DescribeConfigs (32): configs of topics, brokers, groups and loggers.

v0: only whether a value is the default. v1: source and synonyms. v3: types and documentation.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

DescribeConfigsResource = Struct(
    "DescribeConfigsResource",
    field("resource_type", Int8),
    field("resource_name", String),
    field("configuration_keys", Array(String), nullable=0),
)

REQUEST = Message(
    "DescribeConfigsRequest",
    field("resources", Array(DescribeConfigsResource)),
    field("include_synonyms", Bool, since=1),
    field("include_documentation", Bool, since=3),
    versions=(0, 4),
    flexible=4,
)

DescribeConfigsSynonym = Struct(
    "DescribeConfigsSynonym",
    field("name", String, since=1),
    field("value", String, since=1, nullable=1),
    field("source", Int8, since=1),
)

DescribeConfigsResourceResult = Struct(
    "DescribeConfigsResourceResult",
    field("name", String),
    field("value", String, nullable=0),
    field("read_only", Bool),
    field("is_default", Bool, until=0),
    field("config_source", Int8, since=1, default=-1),
    field("is_sensitive", Bool),
    field("synonyms", Array(DescribeConfigsSynonym), since=1),
    field("config_type", Int8, since=3),
    field("documentation", String, since=3, nullable=3),
)

DescribeConfigsResult = Struct(
    "DescribeConfigsResult",
    field("error_code", Int16),
    field("error_message", String, nullable=0),
    field("resource_type", Int8),
    field("resource_name", String),
    field("configs", Array(DescribeConfigsResourceResult)),
)

RESPONSE = Message(
    "DescribeConfigsResponse",
    field("throttle_time_ms", Int32),
    field("results", Array(DescribeConfigsResult)),
    versions=(0, 4),
    flexible=4,
)
