"""States of a login: which request is answered how, and that nothing is served before the login."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import PeerError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.security.credentials import SCRAM_MECHANISMS, credential_of_password
from kbroker.security.mechanism import ServerMechanism
from kbroker.security.plain import PlainServer
from kbroker.security.scram import ScramClient, ScramServer
from kbroker.server.authentication.sasl_exchange import EnabledMechanism, Login, SaslExchange, SaslStep
from kbroker.server.handlers.api_versions import early_response
from tests.broker.wire import decode_response, encode_request

NOW_MS = 1_700_000_000_000
SHA_512 = SCRAM_MECHANISMS["SCRAM-SHA-512"]
CREDENTIAL = credential_of_password(SHA_512, "pencil", salt=b"salt")
SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}
REFUSAL = b"refusal"


class FakeAnswers:
    """Answers ApiVersions as the broker does, and refuses other requests with fixed bytes."""

    def __init__(self) -> None:
        self.refused: list[tuple[int, str]] = []

    def api_versions(self, version: int, body: Any) -> tuple[Any, bool]:
        response = early_response(False, version, body)
        return response, response.error_code == 0

    def refusal(self, frame: memoryview, code: int, message: str) -> bytes | None:
        if frame[0] == 0x7F:
            raise PeerError("unknown API")
        self.refused.append((code, message))
        return REFUSAL


class ExpiringServer(PlainServer):
    def step(self, token: bytes) -> bytes:
        self.expires_ms = NOW_MS + 5000
        return super().step(token)


def plain_server() -> ServerMechanism:
    return PlainServer({"alice": "s3cret", "bob": "b"})


def exchange_of(previous: Login | None = None, *, max_session_ms: int = 0, expires: bool = False) -> SaslExchange:
    def expiring() -> ServerMechanism:
        return ExpiringServer({"alice": "s3cret"})

    def scram() -> ServerMechanism:
        return ScramServer(SHA_512, {"alice": CREDENTIAL}.get, secret=b"secret")

    mechanisms = {
        "PLAIN": EnabledMechanism(expiring if expires else plain_server, max_session_ms),
        "SCRAM-SHA-512": EnabledMechanism(scram, max_session_ms),
    }
    return SaslExchange(mechanisms, FakeAnswers(), lambda: NOW_MS, previous)


def send(exchange: SaslExchange, name: str, version: int, /, **members: Any) -> SaslStep:
    return exchange.handle(memoryview(encode_request(name, version, 7, **members)[4:]))


def ask(exchange: SaslExchange, name: str, version: int, /, **members: Any) -> Any:
    return response_of(send(exchange, name, version, **members), name, version)


def response_of(step: SaslStep, name: str, version: int) -> Any:
    assert step.response is not None
    (size,) = struct.unpack_from(">i", step.response)
    assert size == len(step.response) - 4
    correlation_id, response = decode_response(name, version, step.response[4:])
    assert correlation_id == 7
    return response


def shake_hands(exchange: SaslExchange, mechanism: str = "PLAIN", version: int = 1) -> None:
    assert ask(exchange, "SaslHandshake", version, mechanism=mechanism).error_code == 0


def authenticate(exchange: SaslExchange, token: bytes = b"\0alice\0s3cret", version: int = 2) -> Any:
    return ask(exchange, "SaslAuthenticate", version, auth_bytes=token)


# The way to a login


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("asks_versions", [True, False])
def test_a_client_logs_in(version: int, asks_versions: bool) -> None:
    exchange = exchange_of()
    if asks_versions:
        response = ask(exchange, "ApiVersions", version, **SOFTWARE)
        served = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        assert served[17] == (0, 1)
        assert served[36] == (0, 2)
    shake_hands(exchange)
    assert exchange.login is None
    response = authenticate(exchange)
    assert (response.error_code, response.error_message, response.auth_bytes) == (0, None, b"")
    assert response.session_lifetime_ms == 0
    assert exchange.login == Login("PLAIN", "alice", None)


@pytest.mark.parametrize("version", range(3))
def test_scram_takes_two_tokens(version: int) -> None:
    exchange = exchange_of()
    shake_hands(exchange, "SCRAM-SHA-512")
    client = ScramClient(SHA_512, "alice", "pencil")
    token: bytes | None = client.first_token()
    while token is not None:
        assert exchange.login is None
        token = client.step(bytes(authenticate(exchange, token, version).auth_bytes))
    assert exchange.login == Login("SCRAM-SHA-512", "alice", None)


def test_after_handshake_v0_tokens_have_no_header() -> None:
    exchange = exchange_of()
    shake_hands(exchange, version=0)
    assert exchange.handle(memoryview(b"\0alice\0s3cret")) == SaslStep(b"\0\0\0\0")
    assert exchange.login == Login("PLAIN", "alice", None)


def test_a_raw_token_that_fails_is_not_answered() -> None:
    exchange = exchange_of()
    shake_hands(exchange, version=0)
    step = exchange.handle(memoryview(b"\0alice\0wrong"))
    assert step == SaslStep(None, "Authentication failed: Invalid username or password")
    assert exchange.login is None


# Requests that do not belong there


def test_a_failed_api_versions_may_be_tried_again_and_a_good_one_not() -> None:
    exchange = exchange_of()
    frame = struct.pack(">hhih", 18, 99, 7, -1)
    unknown = response_of(exchange.handle(memoryview(frame)), "ApiVersions", 0)
    assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION
    bad_name = ask(exchange, "ApiVersions", 3, client_software_name="", client_software_version="")
    assert bad_name.error_code == ErrorCode.INVALID_REQUEST
    assert ask(exchange, "ApiVersions", 3, **SOFTWARE).error_code == 0
    step = send(exchange, "ApiVersions", 3, **SOFTWARE)
    assert step == SaslStep(None, "Unexpected Kafka request of type ApiVersions during SASL handshake.")


@pytest.mark.parametrize("is_after_versions", [True, False])
@pytest.mark.parametrize("name", ["Metadata", "SaslAuthenticate", "Produce", "Fetch", "ListGroups"])
def test_other_requests_before_the_handshake_are_not_answered(name: str, is_after_versions: bool) -> None:
    exchange = exchange_of()
    if is_after_versions:
        ask(exchange, "ApiVersions", 0)
    step = send(exchange, name, 0)
    assert step == SaslStep(None, f"Unexpected Kafka request of type {name} during SASL handshake.")
    assert send(exchange, "SaslHandshake", 1, mechanism="PLAIN").failure is not None


@pytest.mark.parametrize("name", ["Metadata", "SaslHandshake", "ApiVersions", "Produce"])
def test_other_requests_after_the_handshake_get_illegal_sasl_state(name: str) -> None:
    exchange = exchange_of()
    shake_hands(exchange)
    reason = f"Unexpected Kafka request of type {name} during SASL authentication."
    assert send(exchange, name, 0) == SaslStep(REFUSAL, reason)
    answers: Any = exchange._answers
    assert answers.refused == [(ErrorCode.ILLEGAL_SASL_STATE, reason)]


def test_an_unknown_mechanism_is_answered_with_the_enabled_ones() -> None:
    exchange = exchange_of()
    step = send(exchange, "SaslHandshake", 1, mechanism="GSSAPI\r\n")
    response = response_of(step, "SaslHandshake", 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert response.mechanisms == ["PLAIN", "SCRAM-SHA-512"]
    assert step.failure == "Unsupported SASL mechanism GSSAPI\\r\\n"


def test_a_raw_token_in_the_framing_of_v1_is_no_request() -> None:
    exchange = exchange_of()
    shake_hands(exchange)
    step = exchange.handle(memoryview(b"\0alice\0s3cret"))
    assert step.failure is not None
    assert exchange.login is None


def test_a_request_in_place_of_a_raw_token_is_a_wrong_token() -> None:
    exchange = exchange_of()
    shake_hands(exchange, version=0)
    step = send(exchange, "SaslAuthenticate", 1, auth_bytes=b"\0alice\0s3cret")
    assert step.response is None
    assert step.failure is not None


@pytest.mark.parametrize(("name", "version"), [("SaslHandshake", 2), ("SaslHandshake", -1)])
def test_an_unknown_version_is_not_answered(name: str, version: int) -> None:
    exchange = exchange_of()
    frame = struct.pack(">hhih", 17, version, 7, -1)
    assert exchange.handle(memoryview(frame)) == SaslStep(None, f"{name} v{version} is not supported")


# Failed logins


def test_a_wrong_password_has_the_text_of_the_mechanism() -> None:
    exchange = exchange_of()
    shake_hands(exchange)
    response = authenticate(exchange, b"\0alice\0wrong")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == "Authentication failed: Invalid username or password"
    assert exchange.login is None
    step = send(exchange, "SaslAuthenticate", 2, auth_bytes=b"\0alice\0s3cret")
    assert step == SaslStep(None, "Request after the end of the authentication")


def test_a_wrong_scram_message_has_the_general_text() -> None:
    exchange = exchange_of()
    shake_hands(exchange, "SCRAM-SHA-512")
    response = authenticate(exchange, b"y,,n=alice,r=abc")
    expected = (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512"
    )
    assert (response.error_code, response.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, expected)


# Sessions


@pytest.mark.parametrize(
    ("max_session_ms", "expires", "session_ms"),
    [(0, False, None), (60_000, False, 60_000), (0, True, 5000), (60_000, True, 5000), (1000, True, 1000)],
)
def test_a_session_ends_with_the_config_or_the_credential(
    max_session_ms: int, expires: bool, session_ms: int | None
) -> None:
    exchange = exchange_of(max_session_ms=max_session_ms, expires=expires)
    shake_hands(exchange)
    assert authenticate(exchange).session_lifetime_ms == (session_ms or 0)
    assert exchange.login == Login("PLAIN", "alice", session_ms)


def test_a_client_may_authenticate_again() -> None:
    exchange = exchange_of(Login("PLAIN", "alice", 60_000), max_session_ms=60_000)
    shake_hands(exchange)
    assert authenticate(exchange).session_lifetime_ms == 60_000
    assert exchange.login == Login("PLAIN", "alice", 60_000)


def test_a_client_cannot_become_another_principal() -> None:
    exchange = exchange_of(Login("PLAIN", "alice", 60_000))
    shake_hands(exchange)
    response = authenticate(exchange, b"\0bob\0b")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == "Cannot change principals during re-authentication from User.alice: User.bob"
    assert exchange.login is None


def test_a_client_cannot_change_its_mechanism() -> None:
    exchange = exchange_of(Login("PLAIN", "alice", 60_000))
    shake_hands(exchange, "SCRAM-SHA-512")
    step = send(exchange, "SaslAuthenticate", 2, auth_bytes=b"\0alice\0s3cret")
    assert step.response is None
    assert step.failure == "SASL mechanism SCRAM-SHA-512 is not the one of the first login"


def test_re_authentication_has_its_own_text() -> None:
    exchange = exchange_of(Login("SCRAM-SHA-512", "alice", 60_000))
    shake_hands(exchange, "SCRAM-SHA-512")
    assert "during re-authentication due to" in authenticate(exchange, b"").error_message


# Any bytes

FRAMES = st.one_of(
    st.binary(max_size=64),
    st.builds(
        lambda key, version, rest: struct.pack(">hh", key, version) + rest,
        st.sampled_from([0, 1, 3, 17, 18, 36, 99]),
        st.integers(-1, 5),
        st.binary(max_size=40),
    ),
    st.sampled_from(["PLAIN", "SCRAM-SHA-512", "NONE"]).flatmap(
        lambda mechanism: st.sampled_from(
            [encode_request("SaslHandshake", version, 1, mechanism=mechanism)[4:] for version in (0, 1)]
        )
    ),
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from(
            [b"n,,n=alice,r=abc", b"n,,n=alice,r=abc,tokenauth=true", b"n,a=bob,n=alice,r=abc", b"c=biws,r=abc,p=AAAA"]
        ),
    ).map(lambda token: encode_request("SaslAuthenticate", 1, 1, auth_bytes=token)[4:]),
    st.just(encode_request("ApiVersions", 3, 1, **SOFTWARE)[4:]),
)


@given(st.lists(FRAMES, max_size=6))
def test_no_frame_raises_or_logs_in_without_a_password(frames: list[bytes]) -> None:
    exchange = exchange_of()
    has_failed = False
    for frame in frames:
        step = exchange.handle(memoryview(frame))
        assert not has_failed or step.failure is not None
        has_failed = has_failed or step.failure is not None
    assert exchange.login is None
