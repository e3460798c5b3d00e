"""Kafka's names: valid topic names, internal topics, and UUIDs.

Reports problems of names as text; the caller chooses the error.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from typing import Final

__all__ = [
    "CONSUMER_OFFSETS",
    "INTERNAL_TOPICS",
    "MAX_TOPIC_NAME_LENGTH",
    "METADATA_FILE",
    "TRANSACTION_STATE",
    "ZERO_UUID",
    "RandomBytes",
    "TopicPartition",
    "colliding_topics",
    "collision_key",
    "is_internal_topic",
    "random_uuid",
    "topic_name_problem",
    "uuid_from_text",
    "uuid_to_text",
]

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
METADATA_FILE: Final = "kbroker-metadata.db"
"""File of the embedded metadata tree, in the first data directory."""
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})

# A partition's directory is `<topic>-<partition>`, and a file name has at most 255 bytes.
MAX_TOPIC_NAME_LENGTH: Final = 249

ZERO_UUID: Final = bytes(16)

TopicPartition = tuple[str, int]
"""Topic name and partition index."""

RandomBytes = Callable[[int], bytes]
"""Returns the given number of random bytes: `os.urandom` in a broker, a seeded generator in tests."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """Returns the reason why a topic name is invalid, or None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        limit = MAX_TOPIC_NAME_LENGTH
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {limit}"
    if not _LEGAL.fullmatch(name):
        allowed = "ASCII alphanumerics, '.', '_' and '-'"
        return f"Topic name is invalid: '{name}' contains one or more characters other than {allowed}"
    return None


def collision_key(name: str) -> str:
    """Returns a key that is equal for colliding topic names. Metric names do not distinguish dots and underscores."""
    return name.replace(".", "_")


def colliding_topics(name: str, existing: Iterable[str]) -> list[str]:
    """Returns the existing topics whose names differ from this one only in dots and underscores."""
    key = collision_key(name)
    return sorted(other for other in existing if other != name and collision_key(other) == key)


def is_internal_topic(name: str) -> bool:
    return name in INTERNAL_TOPICS


def uuid_to_text(uuid: bytes) -> str:
    """Formats a UUID as Kafka does: 22 characters of base64url without padding."""
    if len(uuid) != 16:
        raise ValueError(f"a uuid has 16 bytes, not {len(uuid)}")
    return urlsafe_b64encode(uuid)[:22].decode("ascii")


def uuid_from_text(text: str) -> bytes:
    """Parses Kafka's text form of a UUID. Raises ValueError if it is invalid."""
    if len(text) > 24:
        raise ValueError(f"'{text[:24]}…' is too long for a uuid")
    try:
        body = text.rstrip("=")
        uuid = urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except ValueError as problem:
        raise ValueError(f"'{text}' is not a uuid in base64url") from problem
    # The decoder ignores characters outside the alphabet: compare, or two texts would mean the same UUID.
    if len(uuid) != 16 or uuid_to_text(uuid)[:21] != body[:21]:
        raise ValueError(f"'{text}' is not a uuid in base64url")
    return uuid


def random_uuid(random_bytes: RandomBytes) -> bytes:
    """Generates a UUID (RFC 4122, version 4) whose text does not start with a dash, which would look like an option.

    The version bits exclude the UUIDs that Kafka reserves, which are small numbers.
    """
    while True:
        raw = bytearray(random_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        uuid = bytes(raw)
        if not uuid_to_text(uuid).startswith("-"):
            return uuid
