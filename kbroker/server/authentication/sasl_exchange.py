"""States of one login with SASL: frames in, response frames out. Pure; `ConnectionLogin` runs it.

    START ──good ApiVersions──> AFTER_VERSIONS
      └────────┬──────────────────────┘
         SaslHandshake v1 ──> AUTHENTICATE ──SaslAuthenticate, n times──> COMPLETE
         SaslHandshake v0 ──> RAW_TOKENS ──tokens without a header, n times──> COMPLETE
    Anything else, and a wrong token: FAILED. The connection is then closed, after the response if there is one.

Re-authentication (KIP-368) begins at START, accepts no ApiVersions, and must end with the same principal. As in Kafka a
handshake with another mechanism succeeds then (BAD_MECHANISM), and the token after it fails.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.registry import Api, api
from kbroker.security.mechanism import AuthenticationFailed, ServerMechanism, printable

__all__ = ["Answers", "EnabledMechanism", "Login", "SaslExchange", "SaslStep"]

_SASL_HANDSHAKE: Final = api(17)
_API_VERSIONS: Final = api(18)
_SASL_AUTHENTICATE: Final = api(36)

_PREFIX: Final = struct.Struct(">hh")
_LENGTH: Final = struct.Struct(">i")
_PLAIN_HEADER: Final = struct.Struct(">ii")
_FLEXIBLE_HEADER: Final = struct.Struct(">iix")  # the pad byte is an empty tag section

START: Final = 0
AFTER_VERSIONS: Final = 1
AUTHENTICATE: Final = 2
RAW_TOKENS: Final = 3
BAD_MECHANISM: Final = 4
COMPLETE: Final = 5
FAILED: Final = 6


class EnabledMechanism(NamedTuple):
    start: Callable[[], ServerMechanism]
    max_session_ms: int = 0
    """`connections.max.reauth.ms`; 0: sessions have no end of their own."""


class Login(NamedTuple):
    """A successful login. `session_ms`: the time until the client must authenticate again; None: it need not."""

    mechanism: str
    user: str
    session_ms: int | None
    is_with_token: bool = False
    """Whether it was with a delegation token."""


class SaslStep(NamedTuple):
    """Outcome of a frame: send `response` (a whole frame, or None), and with a `failure` close the connection.

    `failure` is the reason, for the log.
    """

    response: bytes | None
    failure: str | None = None


class Answers(Protocol):
    """Responses of requests that do not belong to SASL."""

    def api_versions(self, version: int, body: Any) -> tuple[Any, bool]:
        """Returns the ApiVersions response, and whether the request was valid. `body` is None in unknown versions."""
        ...

    def refusal(self, frame: memoryview, code: int, message: str) -> bytes | None:
        """Returns the error response of the API of a request as a frame; None if it has none.

        Raises PeerError if the request is malformed.
        """
        ...


class SaslExchange:
    """One login, or one re-authentication if `previous` is the login before. `login` is set once it is complete."""

    def __init__(
        self,
        mechanisms: Mapping[str, EnabledMechanism],
        answers: Answers,
        now_ms: Callable[[], int],
        previous: Login | None = None,
    ) -> None:
        self.login: Login | None = None
        self._mechanisms = mechanisms
        self._answers = answers
        self._now_ms = now_ms
        self._previous = previous
        self._state = START if previous is None else AFTER_VERSIONS
        self._mechanism = ""
        self._server: ServerMechanism | None = None

    def handle(self, frame: memoryview) -> SaslStep:
        """Handles a frame of the client. Never raises for what a client can send, except PeerError."""
        try:
            step = self._handle(frame)
        except PeerError as problem:
            step = SaslStep(None, str(problem))
        if step.failure is not None:
            self._state, self._server = FAILED, None
        return step

    def _handle(self, frame: memoryview) -> SaslStep:
        if self._state in (START, AFTER_VERSIONS):
            return self._handle_handshake(frame)
        if self._state == AUTHENTICATE:
            return self._handle_authenticate(frame)
        if self._state == RAW_TOKENS:
            return self._handle_raw_token(bytes(frame))
        if self._state == BAD_MECHANISM:
            return SaslStep(None, f"SASL mechanism {printable(self._mechanism)} is not the one of the first login")
        return SaslStep(None, "Request after the end of the authentication")

    # Before the mechanism is known

    def _handle_handshake(self, frame: memoryview) -> SaslStep:
        key, version = _prefix(frame)
        if key == _API_VERSIONS.key and self._state == START:
            return self._handle_api_versions(frame, version)
        if key != _SASL_HANDSHAKE.key:
            return SaslStep(None, f"Unexpected Kafka request of type {_name(key)} during SASL handshake.")
        correlation_id, body = _read(_SASL_HANDSHAKE, version, frame)
        mechanism = self._mechanism = body.mechanism
        is_enabled = mechanism in self._mechanisms
        code = ErrorCode.NONE if is_enabled else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        members = {"error_code": code, "mechanisms": list(self._mechanisms)}
        response = _frame(_SASL_HANDSHAKE, version, correlation_id, _SASL_HANDSHAKE.response(**members))
        if not is_enabled:
            return SaslStep(response, f"Unsupported SASL mechanism {printable(mechanism)}")
        if self._previous is not None and self._previous.mechanism != mechanism:
            self._state = BAD_MECHANISM
        else:
            self._server = self._mechanisms[mechanism].start()
            self._state = AUTHENTICATE if version >= 1 else RAW_TOKENS
        return SaslStep(response)

    def _handle_api_versions(self, frame: memoryview, version: int) -> SaslStep:
        if version in _API_VERSIONS.versions:
            correlation_id, body = _read(_API_VERSIONS, version, frame)
        else:
            # A newer client may send a version that this broker cannot read. It can read a response in v0 (KIP-511).
            header, _ = codec(REQUEST_HEADER, 1).decode(frame)
            correlation_id, body = header.correlation_id, None
        response, is_valid = self._answers.api_versions(version, body)
        if is_valid:
            self._state = AFTER_VERSIONS
        return SaslStep(_frame(_API_VERSIONS, 0 if body is None else version, correlation_id, response))

    # Tokens

    def _handle_authenticate(self, frame: memoryview) -> SaslStep:
        key, version = _prefix(frame)
        if key != _SASL_AUTHENTICATE.key:
            reason = f"Unexpected Kafka request of type {_name(key)} during SASL authentication."
            return SaslStep(self._answers.refusal(frame, ErrorCode.ILLEGAL_SASL_STATE, reason), reason)
        correlation_id, body = _read(_SASL_AUTHENTICATE, version, frame)
        members: dict[str, Any]
        try:
            token = self._step(bytes(body.auth_bytes))
            failure = None
            session_ms = 0 if self.login is None else self.login.session_ms or 0
            members = {"error_message": None, "auth_bytes": token, "session_lifetime_ms": session_ms}
        except AuthenticationFailed as problem:
            failure = problem.reason
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            members = {"error_code": code, "error_message": problem.answer or self._general_answer()}
        response = _SASL_AUTHENTICATE.response(**members)
        return SaslStep(_frame(_SASL_AUTHENTICATE, version, correlation_id, response), failure)

    def _handle_raw_token(self, token: bytes) -> SaslStep:
        try:
            answer = self._step(token)
        except AuthenticationFailed as problem:
            return SaslStep(None, problem.reason)
        return SaslStep(_LENGTH.pack(len(answer)) + answer)

    def _step(self, token: bytes) -> bytes:
        server = self._server
        assert server is not None
        answer = server.step(token)
        if server.user is not None:
            self._check_unchanged(server.user)
            session_ms = self._session_ms(server.expires_ms)
            self.login = Login(self._mechanism, server.user, session_ms, server.is_token_login)
            self._state, self._server = COMPLETE, None
        return answer

    def _check_unchanged(self, user: str) -> None:
        previous = self._previous
        if previous is not None and previous.user != user:
            text = f"Cannot change principals during re-authentication from User.{previous.user}: User.{user}"
            raise AuthenticationFailed(printable(text), text)

    def _session_ms(self, expires_ms: int | None) -> int | None:
        """Returns the time until the session ends: the smaller one of the config and of the credential."""
        ends = [self._mechanisms[self._mechanism].max_session_ms or None]
        if expires_ms is not None:
            ends.append(max(0, expires_ms - self._now_ms()))
        return min((end for end in ends if end is not None), default=None)

    def _general_answer(self) -> str:
        kind = "authentication" if self._previous is None else "re-authentication"
        return f"Authentication failed during {kind} due to invalid credentials with SASL mechanism {self._mechanism}"


def _prefix(frame: memoryview) -> tuple[int, int]:
    if len(frame) < _PREFIX.size:
        raise PeerError("Request is shorter than its header")
    key, version = _PREFIX.unpack_from(frame)
    return key, version


def _name(key: int) -> str:
    try:
        return api(key).name
    except KeyError:
        return str(key)


def _read(request_api: Api, version: int, frame: memoryview) -> tuple[int, Any]:
    """Returns correlation id and body of a request. Raises PeerError if it is malformed."""
    if version not in request_api.versions:
        raise PeerError(f"{request_api.name} v{version} is not supported")
    header, position = codec(REQUEST_HEADER, request_api.request_header_version(version)).decode(frame)
    body, _ = codec(request_api.request, version).decode(frame, position)
    return header.correlation_id, body


def _frame(request_api: Api, version: int, correlation_id: int, response: Any) -> bytes:
    parts: list[Any] = []
    codec(request_api.response, version).encode(response, parts)
    body = b"".join(parts)
    if request_api.response_header_version(version) == 1:
        return _FLEXIBLE_HEADER.pack(len(body) + 5, correlation_id) + body
    return _PLAIN_HEADER.pack(len(body) + 4, correlation_id) + body
