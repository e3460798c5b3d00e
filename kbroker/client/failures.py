"""Errors of the client, each with a one-line message for the user.

They mean that a broker responded with an error, or did not respond. A peer that violates the protocol is a PeerError.
"""

from __future__ import annotations

from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode, error_code

__all__ = [
    "BrokerRefusal",
    "ConnectionFailed",
    "CouldNotConnect",
    "HandshakeFailed",
    "LoginFailed",
    "NoSuchGroup",
    "NoSuchTopic",
    "NotServed",
]


class ConnectionFailed(UserError):
    """The broker cannot be reached, or the connection broke. A retry may succeed."""

    def __init__(self, address: object, reason: str) -> None:
        super().__init__(reason)
        self.address = address


class CouldNotConnect(ConnectionFailed):
    """No TCP connection to the address: unknown host, refused, or timed out."""

    def __init__(self, address: object, detail: str = "") -> None:
        super().__init__(address, f"Could not connect to {address}{detail}")


class HandshakeFailed(ConnectionFailed):
    """The broker could not prove its identity with TLS, or refused this client."""

    def __init__(self, address: object, reason: str) -> None:
        super().__init__(address, f"SSL handshake with {address} failed: {reason}")


class LoginFailed(ConnectionFailed):
    """The broker refused the login, or could not prove its own identity."""

    def __init__(self, address: object, reason: str) -> None:
        super().__init__(address, f"Could not log in to {address}: {reason}")


class NotServed(UserError):
    """The broker does not support an API, or only in versions that this client does not know."""


class BrokerRefusal(UserError):
    """The broker responded with an error code."""

    def __init__(self, code: int, subject: str, message: str | None = None) -> None:
        self.code = error_code(code)
        name = self.code.name if self.code.value == code else f"error code {code}"
        super().__init__(f"{subject}: {' '.join(message.split())} ({name})" if message else f"{subject}: {name}")


class NoSuchTopic(BrokerRefusal):
    def __init__(self, topic: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}", "the topic does not exist")
        self.topic = topic


class NoSuchGroup(BrokerRefusal):
    def __init__(self, group: str) -> None:
        super().__init__(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}", "the group does not exist")
        self.group = group
