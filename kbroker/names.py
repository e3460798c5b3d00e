"""Names that Kafka gives to things: legal topic names, the topics it keeps for itself, and ids of 16 random bytes.

Never decides what happens to an illegal name: it says what is wrong with it, and the caller picks the error.
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
"""Holds the embedded tree, in the first data directory."""
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})

# A partition's directory is `<topic>-<partition>`, and a file name has at most 255 bytes.
MAX_TOPIC_NAME_LENGTH: Final = 249

ZERO_UUID: Final = bytes(16)

RandomBytes = Callable[[int], bytes]
"""Gives that many random bytes; `os.urandom` in a broker, something seeded in a test."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """What makes the name illegal, or None."""
    if not name:
        return "Topic name is empty"
    if name in (".", ".."):
        return "Topic name may not be '.' or '..'"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"Topic name is {len(name)} characters long, more than {MAX_TOPIC_NAME_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"Topic name '{name}' may hold only ASCII letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Two topics with one key cannot live together: metric names know no difference between a dot and an underscore."""
    return name.replace(".", "_")


def colliding_topics(name: str, existing: Iterable[str]) -> list[str]:
    """The other topics whose names differ from this one only in dots and underscores."""
    key = collision_key(name)
    return sorted(other for other in existing if other != name and collision_key(other) == key)


def is_internal_topic(name: str) -> bool:
    return name in INTERNAL_TOPICS


def uuid_to_text(uuid: bytes) -> str:
    """Kafka's form of an id: 22 characters of base64url, without the padding."""
    if len(uuid) != 16:
        raise ValueError(f"a uuid has 16 bytes, not {len(uuid)}")
    return urlsafe_b64encode(uuid)[:22].decode("ascii")


def uuid_from_text(text: str) -> bytes:
    """The 16 bytes behind Kafka's form of an id; ValueError if it is none."""
    if len(text) > 24:
        raise ValueError(f"'{text[:24]}…' is too long for a uuid")
    try:
        body = text.rstrip("=")
        uuid = urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except ValueError as problem:
        raise ValueError(f"'{text}' is not a uuid in base64url") from problem
    # The decoder drops what is outside the alphabet: compare, or two texts would name one id.
    if len(uuid) != 16 or uuid_to_text(uuid)[:21] != body[:21]:
        raise ValueError(f"'{text}' is not a uuid in base64url")
    return uuid


def random_uuid(random_bytes: RandomBytes) -> bytes:
    """A random id (RFC 4122, version 4) whose text never begins with a dash, which a command line takes for an option.

    The version bits keep it clear of the ids that Kafka reserves: those are small numbers.
    """
    while True:
        raw = bytearray(random_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        uuid = bytes(raw)
        if not uuid_to_text(uuid).startswith("-"):
            return uuid
