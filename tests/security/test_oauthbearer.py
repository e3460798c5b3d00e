"""OAUTHBEARER: messages of RFC 7628, tokens with right and wrong signatures and claims, key sets."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.json_web_keys import parse_jwks
from kbroker.security.json_web_token import InvalidToken, TokenRules, validate_signed, validate_unsigned
from kbroker.security.mechanism import AuthenticationFailed
from kbroker.security.oauthbearer import OAuthBearerClient, OAuthBearerServer
from tests.security.tokens import NOW_MS, claims, encode, key_set, rsa_key, token, unsigned

RULES = TokenRules(issuer="https://issuer", audiences=("kafka", "other"))
KEYS = parse_jwks(key_set())


def validate(text: str) -> Any:
    return validate_signed(text, RULES, KEYS, now_ms=NOW_MS)


def accept_unsigned(text: str) -> Any:
    return validate_unsigned(text, TokenRules(), now_ms=NOW_MS)


# Messages


def test_a_valid_token_logs_in_and_ends_the_session() -> None:
    server, client = OAuthBearerServer(validate), OAuthBearerClient(token(), {"traceId": "7"})
    assert client.step(server.step(client.first_token())) is None
    assert server.user == "alice"
    assert server.expires_ms == NOW_MS + 3_600_000


def test_an_invalid_token_is_answered_and_fails_after_the_acknowledgement() -> None:
    server, client = OAuthBearerServer(validate), OAuthBearerClient(token(rsa_key(2)))
    answer = server.step(client.first_token())
    assert answer == b'{"status":"invalid_token"}'
    acknowledgement = client.step(answer)
    assert acknowledgement == b"\x01"
    with pytest.raises(AuthenticationFailed, match="signature") as failure:
        server.step(acknowledgement)
    assert failure.value.answer == '{"status":"invalid_token"}'
    assert server.user is None


def test_a_second_token_after_an_invalid_one_fails() -> None:
    server = OAuthBearerServer(validate)
    server.step(OAuthBearerClient(token(rsa_key(2))).first_token())
    with pytest.raises(AuthenticationFailed):
        server.step(OAuthBearerClient(token()).first_token())
    assert server.user is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer d.e.f\x01\x01",
        b"n,,\x01x1=y\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a\x00b\x01\x01",
    ],
)
def test_an_invalid_message_fails(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed) as failure:
        OAuthBearerServer(accept_unsigned).step(message)
    assert failure.value.answer is None


def test_an_authorization_id_must_be_the_principal() -> None:
    message = OAuthBearerClient(token()).first_token()
    with pytest.raises(AuthenticationFailed) as failure:
        OAuthBearerServer(validate).step(message.replace(b"n,,", b"n,a=admin,"))
    assert "(admin) that is different from the token's principal name (alice)" in (failure.value.answer or "")
    assert OAuthBearerServer(validate).step(message.replace(b"n,,", b"n,a=alice,")) == b""


@given(st.binary(max_size=200))
def test_no_message_raises_anything_but_a_failed_login(message: bytes) -> None:
    server = OAuthBearerServer(validate)
    with pytest.raises(AuthenticationFailed):
        server.step(message)


# Signatures


@pytest.mark.parametrize("algorithm", ["RS256", "PS256"])
def test_rsa_signatures_are_verified(algorithm: str) -> None:
    assert validate(token(alg=algorithm)).user == "alice"
    with pytest.raises(InvalidToken, match="signature"):
        validate(token(rsa_key(2), alg=algorithm))
    text = token(alg=algorithm)
    with pytest.raises(InvalidToken, match="signature"):
        validate(text[:-8] + ("AAAAAAAA" if text[-8:] != "AAAAAAAA" else "BBBBBBBB"))


def test_changed_claims_do_not_fit_the_signature() -> None:
    header, _, signature = token().split(".")
    with pytest.raises(InvalidToken, match="signature"):
        validate(f"{header}.{encode(json.dumps(claims(sub='admin')).encode())}.{signature}")


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "HS256", "ES256", "RS1", "", None, 7, ["RS256"]])
def test_a_token_cannot_choose_a_weaker_algorithm(algorithm: Any) -> None:
    """Attack: alg none, and HS256 with the public key as secret."""
    text = unsigned({"alg": algorithm, "kid": "k1"}, claims())
    secret = key_set()
    for signature in ("", encode(hmac.digest(secret, text.encode(), hashlib.sha256))):
        with pytest.raises(InvalidToken):
            validate(f"{text}.{signature}")


@pytest.mark.parametrize("kid", ["k2", "../../etc/passwd", "https://evil.example/keys", ""])
def test_an_unknown_key_id_is_reported_and_never_used_as_an_address(kid: str) -> None:
    with pytest.raises(InvalidToken, match="no key") as failure:
        validate(token(kid=kid))
    assert failure.value.unknown_key_id == kid


def test_a_token_without_key_id_fits_if_there_is_one_key() -> None:
    assert validate(token(kid=None)).user == "alice"
    several = parse_jwks(key_set(rsa_key().jwk(kid="k1"), rsa_key(2).jwk(kid="k2")))
    with pytest.raises(InvalidToken, match="no key"):
        validate_signed(token(kid=None), RULES, several, now_ms=NOW_MS)


def test_a_key_is_used_for_its_algorithm_only() -> None:
    keys = parse_jwks(key_set(rsa_key().jwk(kid="k1", alg="RS512")))
    with pytest.raises(InvalidToken, match="no key"):
        validate_signed(token(), RULES, keys, now_ms=NOW_MS)


# Claims


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"exp": None}, "exp is missing"),
        ({"exp": str(NOW_MS // 1000 + 3600)}, "exp is not a number"),
        ({"exp": True}, "exp is not a number"),
        ({"exp": NOW_MS // 1000 - 30}, "expired"),
        ({"exp": 1e300}, "exp is not a number"),
        ({"iat": None}, "iat is missing"),
        ({"iat": NOW_MS // 1000 + 31}, "iat is in the future"),
        ({"nbf": NOW_MS // 1000 + 31}, "nbf is in the future"),
        ({"iss": "https://other"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "somebody"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": {"a": 1}}, "aud is not"),
        ({"sub": None}, "sub is missing"),
        ({"sub": ""}, "sub is missing"),
        ({"sub": 7}, "sub is missing"),
    ],
)
def test_wrong_claims_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidToken, match=problem):
        validate(token(**changes))


@pytest.mark.parametrize(
    "changes", [{"aud": ["x", "other"]}, {"exp": NOW_MS // 1000 - 29}, {"nbf": NOW_MS // 1000 + 29}]
)
def test_claims_within_the_rules_are_accepted(changes: dict[str, Any]) -> None:
    assert validate(token(**changes)).user == "alice"


def test_the_subject_may_be_another_claim() -> None:
    rules = TokenRules(subject_claim="client_id")
    found = validate_signed(token(client_id="app"), rules, KEYS, now_ms=NOW_MS)
    assert found.user == "app"


@pytest.mark.parametrize(
    "text", ["", "a.b", "a.b.c.d", "....", "e30.e30.", "bnVsbA.bnVsbA.", "W10.W10.AAAA", "{}.{}.{}"]
)
def test_garbage_is_no_token(text: str) -> None:
    with pytest.raises(InvalidToken):
        validate(text)
    with pytest.raises(InvalidToken):
        accept_unsigned(text)


def test_deeply_nested_json_is_no_token() -> None:
    body = encode(b"[" * 30_000)
    with pytest.raises(InvalidToken):
        validate(f"{body}.{body}.AAAA")


def test_unsigned_tokens_need_their_own_validator() -> None:
    text = unsigned({"alg": "none"}, claims()) + "."
    assert accept_unsigned(text).user == "alice"
    with pytest.raises(InvalidToken):
        validate(text)
    with pytest.raises(InvalidToken, match="only unsigned"):
        accept_unsigned(token())


# Key sets


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b'{"keys": 1}',
        b'{"keys": []}',
        b'{"keys": [1, null, {"kty": "oct", "k": "AAAA"}]}',
        b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}',
        b'{"keys": [{"kty": "RSA", "n": 7, "e": "AQAB"}]}',
        b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}',
        b"[" * 100_000,
        b" " * ((1 << 20) + 1),
    ],
)
def test_an_unusable_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_jwks(data)


def test_unusable_keys_are_skipped() -> None:
    keys = parse_jwks(key_set({"kty": "oct", "k": "AA"}, rsa_key(2).jwk(kid="k1", use="enc"), rsa_key().jwk(kid="k1")))
    assert len(keys) == 1
