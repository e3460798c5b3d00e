"""Logs in with SASL on a new connection, or again before the session ends (KIP-368).

SaslHandshake v1, then SaslAuthenticate with one token after another, until the mechanism is complete.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from kbroker.client.address import Address
from kbroker.client.failures import LoginFailed
from kbroker.protocol.error_codes import ErrorCode, error_code
from kbroker.protocol.registry import Api, api
from kbroker.security.client_login import ClientLogin
from kbroker.security.mechanism import AuthenticationFailed, printable

__all__ = ["Ask", "log_in"]

SASL_HANDSHAKE: Final = api(17)
SASL_AUTHENTICATE: Final = api(36)

Ask = Callable[[Api, int, dict[str, Any]], Awaitable[Any]]
"""Sends a request in at least this version, and returns the response."""


async def log_in(address: Address, login: ClientLogin, ask: Ask) -> int:
    """Logs in. Returns the lifetime of the session in ms; 0: it has no end.

    Raises LoginFailed if the broker refuses the login, or cannot prove that it knows the password.
    """
    handshake = await ask(SASL_HANDSHAKE, 1, {"mechanism": login.mechanism})
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        enabled = ", ".join(printable(name) for name in handshake.mechanisms)
        raise LoginFailed(address, f"{login.mechanism} is not enabled there; enabled: {enabled}")
    if handshake.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise LoginFailed(address, "its listener does not use SASL")
    if handshake.error_code != ErrorCode.NONE:
        raise LoginFailed(address, error_code(handshake.error_code).name)
    try:
        # In threads: SCRAM hashes for milliseconds, and a token may have to be read from a file.
        mechanism = await trio.to_thread.run_sync(login.start)
        token: bytes | None = mechanism.first_token()
        while True:
            response = await ask(SASL_AUTHENTICATE, 0, {"auth_bytes": token})
            if response.error_code != ErrorCode.NONE:
                reason = response.error_message or error_code(response.error_code).name
                raise LoginFailed(address, printable(reason))
            token = await trio.to_thread.run_sync(mechanism.step, bytes(response.auth_bytes))
            if token is None:
                return int(response.session_lifetime_ms)
    except AuthenticationFailed as problem:
        raise LoginFailed(address, problem.reason) from None
    except OSError as problem:  # of the file with the token
        raise LoginFailed(address, f"could not read the token: {problem.strerror}") from None
