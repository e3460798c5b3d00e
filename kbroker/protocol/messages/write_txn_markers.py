"""WriteTxnMarkers (27): a coordinator asks brokers to write the markers that end transactions.

v1: flexible.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Bool, Int16, Int32, Int64, String
from kbroker.protocol.versions import Message, Struct, field

WritableTxnMarkerTopic = Struct(
    "WritableTxnMarkerTopic",
    field("name", String),
    field("partition_indexes", Array(Int32)),
)

WritableTxnMarker = Struct(
    "WritableTxnMarker",
    field("producer_id", Int64),
    field("producer_epoch", Int16),
    field("transaction_result", Bool),
    field("topics", Array(WritableTxnMarkerTopic)),
    field("coordinator_epoch", Int32),
)

REQUEST = Message(
    "WriteTxnMarkersRequest",
    field("markers", Array(WritableTxnMarker)),
    versions=(0, 1),
    flexible=1,
)

WritableTxnMarkerPartitionResult = Struct(
    "WritableTxnMarkerPartitionResult",
    field("partition_index", Int32),
    field("error_code", Int16),
)

WritableTxnMarkerTopicResult = Struct(
    "WritableTxnMarkerTopicResult",
    field("name", String),
    field("partitions", Array(WritableTxnMarkerPartitionResult)),
)

WritableTxnMarkerResult = Struct(
    "WritableTxnMarkerResult",
    field("producer_id", Int64),
    field("topics", Array(WritableTxnMarkerTopicResult)),
)

RESPONSE = Message(
    "WriteTxnMarkersResponse",
    field("markers", Array(WritableTxnMarkerResult)),
    versions=(0, 1),
    flexible=1,
)
