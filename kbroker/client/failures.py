"""What can go wrong for a client, each in one line that a person can act on.

A peer that breaks the rules of the wire is a PeerError instead; everything here is an answer, or the lack of one.
"""

from __future__ import annotations

from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["BrokerRefusal", "ConnectionFailed", "NoSuchGroup", "NoSuchTopic", "NotServed", "error_code"]


def error_code(number: int) -> ErrorCode:
    """A code of a release newer than ours is an unknown error, not a crash."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class ConnectionFailed(UserError):
    """Nobody answers, or no longer; another try may succeed."""

    def __init__(self, address: object, reason: str) -> None:
        super().__init__(reason)
        self.address = address


class NotServed(UserError):
    """The broker does not serve an API, or no version of it that we know."""


class BrokerRefusal(UserError):
    """The broker's answer is an error code."""

    def __init__(self, code: int, subject: str, message: str | None = None) -> None:
        self.code = error_code(code)
        name = self.code.name if self.code.value == code else f"error code {code}"
        super().__init__(f"{subject}: {' '.join(message.split())} ({name})" if message else f"{subject}: {name}")


class NoSuchTopic(BrokerRefusal):
    def __init__(self, topic: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}", "there is no such topic")
        self.topic = topic


class NoSuchGroup(BrokerRefusal):
    def __init__(self, group: str) -> None:
        super().__init__(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}", "there is no such group")
        self.group = group
