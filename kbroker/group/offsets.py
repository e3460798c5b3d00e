"""Committed offsets: what a commit becomes in the log, and when it is too old to keep."""

from __future__ import annotations

from typing import Any

from kbroker.group.hard_state import TopicPartition
from kbroker.group.records import NO_TIMESTAMP, CommittedOffset, offset_record
from kbroker.group.step import KeyAndValue, Now
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["commit_records", "is_expired"]


def commit_records(
    body: Any, now: Now, metadata_max_bytes: int
) -> tuple[list[KeyAndValue], dict[TopicPartition, ErrorCode]]:
    """The records of an OffsetCommit (or of its transactional twin), and the partitions that are refused."""
    group_id = body.group_id
    now_ms = now.wall_ms
    retention_ms = getattr(body, "retention_time_ms", NO_TIMESTAMP)  # v2 to v4
    expire_timestamp = NO_TIMESTAMP if retention_ms < 0 else now_ms + retention_ms
    records: list[KeyAndValue] = []
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in body.topics:
        name = topic.name
        for each in topic.partitions:
            metadata = each.committed_metadata or ""
            if len(metadata) > metadata_max_bytes:
                refused[name, each.partition_index] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            said_ms = getattr(each, "commit_timestamp", NO_TIMESTAMP)  # v1
            committed = (
                each.committed_offset,
                each.committed_leader_epoch,
                metadata,
                now_ms if said_ms < 0 else said_ms,
                expire_timestamp,
            )
            records.append(offset_record(group_id, name, each.partition_index, committed))
    return records, refused


def is_expired(committed: CommittedOffset, since_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    """`since_ms`: when the group became empty; otherwise the commit counts. A time of its own (v2 to v4) wins."""
    commit_timestamp, expire_timestamp = committed[3], committed[4]
    if expire_timestamp != NO_TIMESTAMP:
        return now_ms >= expire_timestamp
    return now_ms - (commit_timestamp if since_ms is None else since_ms) >= retention_ms
