"""DeleteTopics (20): delete topics.

v4: flexible. v5: an error message; THROTTLING_QUOTA_EXCEEDED. v6: by name or by id.
"""

from __future__ import annotations

from kbroker.protocol.types import Array, Int16, Int32, String, Uuid
from kbroker.protocol.versions import Message, Struct, field

DeleteTopicState = Struct(
    "DeleteTopicState",
    field("name", String, since=6, nullable=6, default=None),
    field("topic_id", Uuid, since=6),
)

REQUEST = Message(
    "DeleteTopicsRequest",
    field("topics", Array(DeleteTopicState), since=6),
    field("topic_names", Array(String), until=5),
    field("timeout_ms", Int32),
    versions=(0, 6),
    flexible=4,
)

DeletableTopicResult = Struct(
    "DeletableTopicResult",
    field("name", String, nullable=6),
    field("topic_id", Uuid, since=6),
    field("error_code", Int16),
    field("error_message", String, since=5, nullable=5, default=None),
)

RESPONSE = Message(
    "DeleteTopicsResponse",
    field("throttle_time_ms", Int32, since=1),
    field("responses", Array(DeletableTopicResult)),
    versions=(0, 6),
    flexible=4,
)
