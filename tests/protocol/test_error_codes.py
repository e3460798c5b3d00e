"""The table of error codes: complete, unique, and the few that decide how clients behave."""

from __future__ import annotations

import pytest

from kbroker.protocol.error_codes import ErrorCode

LAST_CODE_OF_4_1 = 133


def test_codes_run_from_minus_one_to_the_last_of_kafka_4_1_without_a_gap() -> None:
    assert sorted(ErrorCode) == list(range(-1, LAST_CODE_OF_4_1 + 1))
    assert len(ErrorCode.__members__) == LAST_CODE_OF_4_1 + 2  # no aliases


@pytest.mark.parametrize(
    ("name", "code", "retriable"),
    [
        ("UNKNOWN_SERVER_ERROR", -1, False),
        ("NONE", 0, False),
        ("OFFSET_OUT_OF_RANGE", 1, False),
        ("CORRUPT_MESSAGE", 2, True),
        ("UNKNOWN_TOPIC_OR_PARTITION", 3, True),
        ("NOT_LEADER_OR_FOLLOWER", 6, True),
        ("MESSAGE_TOO_LARGE", 10, False),
        ("COORDINATOR_NOT_AVAILABLE", 15, True),
        ("UNKNOWN_MEMBER_ID", 25, False),
        ("REBALANCE_IN_PROGRESS", 27, False),
        ("INVALID_TIMESTAMP", 32, False),
        ("UNSUPPORTED_VERSION", 35, False),
        ("UNSUPPORTED_FOR_MESSAGE_FORMAT", 43, False),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", 45, False),
        ("CONCURRENT_TRANSACTIONS", 51, True),
        ("KAFKA_STORAGE_ERROR", 56, True),
        ("UNSUPPORTED_COMPRESSION_TYPE", 76, False),
        ("INVALID_RECORD", 87, False),
        ("UNSTABLE_OFFSET_COMMIT", 88, True),
        ("UNKNOWN_TOPIC_ID", 100, True),
        ("TRANSACTION_ABORTABLE", 120, False),
        ("SHARE_SESSION_LIMIT_REACHED", 133, True),
    ],
)
def test_name_number_and_retriability_are_kafkas(name: str, code: int, retriable: bool) -> None:
    assert ErrorCode[name] == code
    assert ErrorCode(code).retriable is retriable
