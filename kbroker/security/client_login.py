"""A login of the client side: which mechanism, as which user. Starts one exchange for each connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from kbroker.errors import UserError
from kbroker.security.credentials import SCRAM_MECHANISMS
from kbroker.security.jaas import (
    OAUTH_BEARER_LOGIN_MODULE,
    PLAIN_LOGIN_MODULE,
    SCRAM_LOGIN_MODULE,
    parse_jaas,
)
from kbroker.security.mechanism import OAUTHBEARER, PLAIN, SUPPORTED_MECHANISMS, ClientMechanism
from kbroker.security.oauthbearer import OAuthBearerClient
from kbroker.security.plain import PlainClient
from kbroker.security.scram import ScramClient

__all__ = [
    "NO_GSSAPI",
    "ClientLogin",
    "login_of_jaas",
    "login_of_token",
    "login_of_user",
    "token_file",
]

NO_GSSAPI: Final = (
    "kbroker has no GSSAPI (Kerberos). Use SCRAM-SHA-512, SCRAM-SHA-256, PLAIN over TLS, or OAUTHBEARER instead"
)
_NO_TOKEN: Final = (
    "needs a token in a file: set sasl.oauthbearer.token.endpoint.url=file:///... A program must renew the file; "
    "kbroker reads it for each login"
)


@dataclass(frozen=True, slots=True)
class ClientLogin:
    mechanism: str
    start: Callable[[], ClientMechanism] = field(repr=False)
    """Returns the client side of a new exchange."""


def login_of_user(mechanism: str, *, user: str, password: str, source: str, is_token: bool = False) -> ClientLogin:
    """Returns a login with PLAIN or SCRAM. Raises UserError, which begins with `source`, if the mechanism is another.

    `is_token`: `user` is the id of a delegation token, and `password` its HMAC in base64.
    """
    if is_token and mechanism not in SCRAM_MECHANISMS:
        raise UserError(f"{source}: a delegation token needs a SCRAM mechanism, not {mechanism}")
    if mechanism == PLAIN:
        if "\0" in user + password:
            raise UserError(f"{source}: user and password must not contain a NUL character")
        return ClientLogin(mechanism, lambda: PlainClient(user, password))
    scram = SCRAM_MECHANISMS.get(mechanism)
    if scram is None:
        raise UserError(f"{source}: {_unusable(mechanism)}")
    if not user.isascii() or not user:
        raise UserError(f"{source}: user names of SCRAM must be ASCII, and not empty")
    return ClientLogin(mechanism, lambda: ScramClient(scram, user, password, is_token=is_token))


def login_of_token(read_token: Callable[[], str], extensions: Mapping[str, str] | None = None) -> ClientLogin:
    """Returns a login with OAUTHBEARER. `read_token` is called for each login: tokens expire, and files change."""
    return ClientLogin(OAUTHBEARER, lambda: OAuthBearerClient(read_token().strip(), extensions))


def login_of_jaas(mechanism: str, text: str, *, source: str) -> ClientLogin:
    """Returns the login of a JAAS config. Raises UserError, which begins with `source`, if it has no login."""
    if mechanism not in SUPPORTED_MECHANISMS:
        raise UserError(f"{source}: {_unusable(mechanism)}")
    module = parse_jaas(text, source=source)
    expected = {PLAIN: PLAIN_LOGIN_MODULE, OAUTHBEARER: OAUTH_BEARER_LOGIN_MODULE}.get(mechanism, SCRAM_LOGIN_MODULE)
    if module.class_name != expected:
        raise UserError(f"{source}: {mechanism} needs the login module {expected}, not {module.class_name}")
    if mechanism == OAUTHBEARER:
        raise UserError(f"{source}: OAUTHBEARER {_NO_TOKEN}")
    user, password = module.options.get("username"), module.options.get("password")
    if user is None or password is None:
        raise UserError(f"{source}: username and password are needed to log in")
    is_token = module.options.get("tokenauth", "").lower() == "true"
    return login_of_user(mechanism, user=user, password=password, source=source, is_token=is_token)


def token_file(url: str | None, *, source: str) -> str:
    """Returns the path of a file: URL. Raises UserError if the URL is another: kbroker fetches no tokens."""
    parts = urlsplit(url or "")
    if parts.scheme != "file" or not parts.path:
        raise UserError(f"{source}: OAUTHBEARER {_NO_TOKEN}")
    return unquote(parts.path)


def _unusable(mechanism: str) -> str:
    if mechanism == "GSSAPI":
        return NO_GSSAPI
    return f"SASL mechanism {mechanism} is not supported; supported: {', '.join(SUPPORTED_MECHANISMS)}"
