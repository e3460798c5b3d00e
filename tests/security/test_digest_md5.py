"""SASL DIGEST-MD5, with the example of RFC 2831 and its edges."""

from __future__ import annotations

import hashlib

import pytest

from kbroker.security.digest_md5 import DigestMd5Client
from kbroker.security.mechanism import AuthenticationFailed

CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'


def client(user: str = "chris", password: str = "secret") -> DigestMd5Client:
    return DigestMd5Client(
        user, password, service="imap", host="elwood.innosoft.com", make_nonce=lambda: "OA6MHXh6VqTrRk"
    )


def test_the_example_of_the_rfc() -> None:
    chris = client()
    assert chris.first_token() == b""
    assert chris.step(CHALLENGE) == (
        b'charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",nc=00000001,'
        b'cnonce="OA6MHXh6VqTrRk",digest-uri="imap/elwood.innosoft.com",'
        b"response=d388dad90d4bbd760a152321f2143af7,qop=auth"
    )
    assert chris.step(b"rspauth=ea40f60335c427b5527b84dbabcdfffd") is None


@pytest.mark.parametrize("answer", [b"", b"rspauth=ea40f60335c427b5527b84dbabcdfffe", b'rspauth="\xff"'])
def test_a_server_that_does_not_know_the_password_is_refused(answer: bytes) -> None:
    chris = client()
    chris.step(CHALLENGE)
    with pytest.raises(AuthenticationFailed, match="could not prove that it knows the password"):
        chris.step(answer)


@pytest.mark.parametrize(
    ("challenge", "problem"),
    [
        (b"", "invalid DIGEST-MD5 challenge"),
        (b'nonce="a",algorithm=md5', "invalid DIGEST-MD5 challenge"),
        (b'algorithm=md5-sess,realm="a"', "invalid DIGEST-MD5 challenge"),
        (b'nonce="a', "invalid DIGEST-MD5 message"),
        (b'nonce="a",algorithm=md5-sess,qop="auth-int,auth-conf"', "wants to protect each message"),
    ],
)
def test_a_challenge_that_has_no_answer_is_refused(challenge: bytes, problem: str) -> None:
    with pytest.raises(AuthenticationFailed, match=problem):
        client().step(challenge)


def test_quotes_and_backslashes_are_escaped_and_the_first_realm_counts() -> None:
    answer = client('a"b\\c').step(b'realm="r\\"1", realm="r2", nonce="n", algorithm=md5-sess, qop="auth-int, auth"')
    assert answer is not None
    assert answer.startswith(b'username="a\\"b\\\\c",realm="r\\"1",nonce="n",')


@pytest.mark.parametrize(("password", "hashed"), [("ä", b"\xe4"), ("€", b"\xe2\x82\xac")])
def test_the_password_is_hashed_in_latin_1_if_it_can_be(password: str, hashed: bytes) -> None:
    secret = hashlib.md5(b"chris:elwood.innosoft.com:" + hashed).digest()
    session = hashlib.md5(secret + b":OA6MG9tEQGm2hh:OA6MHXh6VqTrRk").hexdigest()
    target = hashlib.md5(b"AUTHENTICATE:imap/elwood.innosoft.com").hexdigest()
    expected = hashlib.md5(f"{session}:OA6MG9tEQGm2hh:00000001:OA6MHXh6VqTrRk:auth:{target}".encode()).hexdigest()
    answer = client(password=password).step(CHALLENGE)
    assert answer is not None
    assert f"response={expected}".encode() in answer


def test_a_password_that_a_server_without_utf_8_cannot_know_is_refused() -> None:
    with pytest.raises(AuthenticationFailed, match="must be ISO 8859-1"):
        client(password="€").step(CHALLENGE.replace(b",charset=utf-8", b""))
