"""Both sides of a SASL exchange as state machines: tokens in, tokens out. Knows no connection and no request."""

from __future__ import annotations

from typing import Final, Protocol

__all__ = [
    "OAUTHBEARER",
    "PLAIN",
    "SCRAM_SHA_256",
    "SCRAM_SHA_512",
    "SUPPORTED_MECHANISMS",
    "AuthenticationFailed",
    "ClientMechanism",
    "ServerMechanism",
    "printable",
]

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
SUPPORTED_MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)


class AuthenticationFailed(Exception):
    """The peer could not prove its identity.

    `reason` is for the log. `answer` is the text for the client; None: the general text, which reveals nothing.
    """

    def __init__(self, reason: str, answer: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer


class ServerMechanism(Protocol):
    """Server side of one exchange. A step after the last one, or after a failure, raises AuthenticationFailed."""

    user: str | None
    """Name of the user once the exchange is complete. None before."""
    expires_ms: int | None
    """When the credential expires, in ms since the epoch. None if it does not expire."""
    is_token_login: bool
    """Whether the client has logged in with a delegation token."""

    def step(self, token: bytes) -> bytes:
        """Returns the answer to a token of the client. Raises AuthenticationFailed if the login fails."""
        ...


class ClientMechanism(Protocol):
    """Client side of one exchange."""

    def first_token(self) -> bytes: ...

    def step(self, challenge: bytes) -> bytes | None:
        """Returns the next token, or None if the exchange is complete. Raises AuthenticationFailed if it fails."""
        ...


def printable(text: str) -> str:
    """Returns the text without characters that could break a line of a log or control a terminal."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
