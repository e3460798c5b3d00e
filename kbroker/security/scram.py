"""SASL SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802) without channel binding, as Kafka uses it.

    client first   n,[a=<authorization id>],n=<user>,r=<client nonce>[,<name>=<value>...]
    server first   r=<client nonce><server nonce>,s=<base64 salt>,i=<iterations>
    client final   c=biws,r=<both nonces>,p=<base64 proof>
    server final   v=<base64 signature of the server>

The password never crosses the wire, and the client verifies the server too. User names are ASCII; `,` is written =2C
and `=` is written =3D. With the extension `tokenauth=true` the name is the id of a delegation token (KIP-48).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from kbroker.security.credentials import (
    MIN_ITERATIONS,
    ScramCredential,
    ScramHash,
    made_up_credential,
    salted_password,
)
from kbroker.security.mechanism import AuthenticationFailed

__all__ = ["FindCredential", "FindToken", "ScramClient", "ScramServer", "TokenCredential", "new_nonce"]

FindCredential = Callable[[str], ScramCredential | None]


class TokenCredential(NamedTuple):
    """Credential of a delegation token, with the name of its owner and its expiry."""

    credential: ScramCredential
    user: str
    expires_ms: int


FindToken = Callable[[str], TokenCredential | None]

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"  # anything but NUL, comma and equals sign
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*"
_BASE64: Final = r"[A-Za-z0-9/+]+={0,2}"

_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authorization_id>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unsigned>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL: Final = re.compile(rf"v=(?P<signature>{_BASE64}){_EXTENSIONS}")

# Attributes of RFC 5802. As extensions they would contradict the ones before them.
_RESERVED: Final = frozenset("amnrscpive")
_NO_BINDING: Final = "n,,"
# Of a broker: a client must not spend minutes on one login.
_MAX_CLIENT_ITERATIONS: Final = 1_000_000
_NONCE_BYTES: Final = 18


def new_nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)


class ScramServer:
    """`find_credential` returns the credential of a user, or None; `find_token` that of a delegation token.

    `secret`: for the salts of names without a credential.
    """

    def __init__(
        self,
        scram: ScramHash,
        find_credential: FindCredential,
        *,
        find_token: FindToken = lambda token_id: None,
        secret: bytes,
        make_nonce: Callable[[], str] = new_nonce,
    ) -> None:
        self.user: str | None = None
        self.expires_ms: int | None = None
        self.is_token_login = False
        self._scram = scram
        self._find_credential = find_credential
        self._find_token = find_token
        self._secret = secret
        self._make_nonce = make_nonce
        self._next: Callable[[str], bytes] | None = self._answer_first
        self._name = ""  # of the user, or of the token's owner
        self._expires_ms: int | None = None
        self._gs2_header = ""
        self._client_nonce = ""
        self._nonce = ""
        self._messages = ""
        self._credential: ScramCredential | None = None
        self._is_made_up = False

    def step(self, token: bytes) -> bytes:
        answer, self._next = self._next, None
        if answer is None:
            raise AuthenticationFailed("unexpected token after the exchange")
        try:
            text = token.decode("ascii")
        except UnicodeDecodeError:
            raise AuthenticationFailed("the message is not ASCII") from None
        return answer(text)

    def _answer_first(self, text: str) -> bytes:
        first = _CLIENT_FIRST.fullmatch(text)
        if first is None or _has_reserved(first["extensions"]):
            raise AuthenticationFailed("invalid SCRAM client first message")
        name = _plain_name(first["name"])
        self.is_token_login = _is_token(first["extensions"])
        credential = self._find_of_token(name) if self.is_token_login else self._find_of_user(name)
        if credential is not None and credential.iterations < MIN_ITERATIONS:
            raise AuthenticationFailed(f"the credential has less than {MIN_ITERATIONS} iterations")
        authorization_id = first["authorization_id"]
        if authorization_id is not None and _plain_name(authorization_id) != name:
            message = "Authentication failed: Client requested an authorization id that is different from username"
            raise AuthenticationFailed(message, message)
        self._is_made_up = credential is None
        self._credential = credential or self._make_up(name)
        self._gs2_header = first["header"]
        self._client_nonce = first["nonce"]
        self._nonce = self._client_nonce + self._make_nonce()
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._messages = f"{first['bare']},{answer}"
        self._next = self._answer_final
        return answer.encode()

    def _find_of_user(self, name: str) -> ScramCredential | None:
        self._name = name
        return self._find_credential(name)

    def _find_of_token(self, token_id: str) -> ScramCredential | None:
        found = self._find_token(token_id)
        if found is None:
            return None
        self._name, self._expires_ms = found.user, found.expires_ms
        return found.credential

    def _make_up(self, name: str) -> ScramCredential:
        # Salts of tokens differ from those of users: else a client could compare both to find out which users exist.
        return made_up_credential(self._scram, f"token\0{name}" if self.is_token_login else name, self._secret)

    def _answer_final(self, text: str) -> bytes:
        final = _CLIENT_FINAL.fullmatch(text)
        credential, self._credential = self._credential, None
        if final is None or credential is None:
            raise AuthenticationFailed("invalid SCRAM client final message")
        # librdkafka before 2.6.1 sends its own nonce twice. Kafka 3.9 accepts that too, Kafka 4.1 does not. In both
        # forms the nonce of the server is complete and signed.
        if final["nonce"] not in (self._nonce, self._client_nonce + self._nonce):
            raise AuthenticationFailed("invalid nonce in the SCRAM client final message")
        # Java sends the header without the authorization id, RFC 5802 wants it as it was.
        if _decoded(final["binding"]) not in (_NO_BINDING.encode(), self._gs2_header.encode()):
            raise AuthenticationFailed("invalid channel binding in the SCRAM client final message")
        signed = f"{self._messages},{final['unsigned']}".encode()
        if not _is_proof(self._scram, credential, signed, _decoded(final["proof"])) or self._is_made_up:
            raise AuthenticationFailed("invalid credentials")
        self.user, self.expires_ms = self._name, self._expires_ms
        return b"v=" + base64.b64encode(self._scram.hmac(credential.server_key, signed))


def _is_proof(scram: ScramHash, credential: ScramCredential, signed: bytes, proof: bytes) -> bool:
    signature = scram.hmac(credential.stored_key, signed)
    if len(proof) != len(signature):
        return False
    return hmac.compare_digest(scram.hash(_xor(proof, signature)), credential.stored_key)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(left, right, strict=True))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("invalid base64 in a SCRAM message") from None


def _plain_name(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _sasl_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _extensions(text: str) -> list[tuple[str, str]]:
    return [(part.partition("=")[0], part.partition("=")[2]) for part in text.split(",")[1:]]


def _has_reserved(extensions: str) -> bool:
    return any(name in _RESERVED for name, _ in _extensions(extensions))


def _is_token(extensions: str) -> bool:
    """Whether the client logs in with a delegation token instead of a user."""
    return any(name == "tokenauth" and value.lower() == "true" for name, value in _extensions(extensions))


class ScramClient:
    """`is_token`: `user` is the id of a delegation token, and `password` its HMAC in base64."""

    def __init__(
        self,
        scram: ScramHash,
        user: str,
        password: str,
        *,
        is_token: bool = False,
        make_nonce: Callable[[], str] = new_nonce,
    ) -> None:
        self._scram = scram
        self._user = user
        self._password = password
        self._nonce = make_nonce()
        self._bare = f"n={_sasl_name(user)},r={self._nonce}" + (",tokenauth=true" if is_token else "")
        self._signature: bytes | None = None  # that the broker must send

    def first_token(self) -> bytes:
        try:
            return f"{_NO_BINDING}{self._bare}".encode("ascii")
        except UnicodeEncodeError:
            raise AuthenticationFailed("user names of SCRAM must be ASCII") from None

    def step(self, challenge: bytes) -> bytes | None:
        text = challenge.decode("ascii", "replace")
        if self._signature is None:
            return self._answer_first(text)
        final = _SERVER_FINAL.fullmatch(text)
        if final is None or not hmac.compare_digest(_decoded(final["signature"]), self._signature):
            raise AuthenticationFailed("the broker could not prove that it knows the password")
        return None

    def _answer_first(self, text: str) -> bytes:
        first = _SERVER_FIRST.fullmatch(text)
        if first is None:
            raise AuthenticationFailed("the broker sent an invalid SCRAM message")
        if not first["nonce"].startswith(self._nonce) or len(first["nonce"]) == len(self._nonce):
            raise AuthenticationFailed("the broker sent another nonce than this client")
        iterations = int(first["iterations"])
        if not MIN_ITERATIONS <= iterations <= _MAX_CLIENT_ITERATIONS:
            raise AuthenticationFailed(f"the broker wants {iterations} iterations")
        scram = self._scram
        salted = salted_password(scram, self._password, salt=_decoded(first["salt"]), iterations=iterations)
        unsigned = f"c={base64.b64encode(_NO_BINDING.encode()).decode()},r={first['nonce']}"
        signed = f"{self._bare},{text},{unsigned}".encode()
        client_key = scram.hmac(salted, b"Client Key")
        proof = _xor(client_key, scram.hmac(scram.hash(client_key), signed))
        self._signature = scram.hmac(scram.hmac(salted, b"Server Key"), signed)
        return f"{unsigned},p={base64.b64encode(proof).decode()}".encode()
