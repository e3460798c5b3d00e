"""DescribeCluster (60): the brokers or controllers of a cluster.

v1: the endpoint type, brokers or controllers. v2: fenced brokers.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int8, Int16, Int32, String
from kbroker.protocol.versions import Message, Struct, field

REQUEST = Message(
    "DescribeClusterRequest",
    field("include_cluster_authorized_operations", Bool),
    field("endpoint_type", Int8, since=1, default=1),
    field("include_fenced_brokers", Bool, since=2),
    versions=(0, 2),
    flexible=0,
)

DescribeClusterBroker = Struct(
    "DescribeClusterBroker",
    field("broker_id", Int32),
    field("host", String),
    field("port", Int32),
    field("rack", String, nullable=0, default=None),
    field("is_fenced", Bool, since=2),
)

RESPONSE = Message(
    "DescribeClusterResponse",
    field("throttle_time_ms", Int32),
    field("error_code", Int16),
    field("error_message", String, nullable=0, default=None),
    field("endpoint_type", Int8, since=1, default=1),
    field("cluster_id", String),
    field("controller_id", Int32, default=-1),
    field("brokers", Array(DescribeClusterBroker)),
    field("cluster_authorized_operations", Int32, default=-0x80000000),
    versions=(0, 2),
    flexible=0,
)
