"""PLAIN: one token, and the texts of Kafka for each failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.mechanism import AuthenticationFailed
from kbroker.security.plain import PlainClient, PlainServer

USERS = {"alice": "s3cret", "böb": "pässwörd", "empty": ""}


@pytest.mark.parametrize("user", ["alice", "böb"])
def test_the_right_password_logs_in(user: str) -> None:
    server = PlainServer(USERS)
    client = PlainClient(user, USERS[user])
    assert client.step(server.step(client.first_token())) is None
    assert server.user == user


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0s3cret", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0\0no such user", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0empty\0", "Authentication failed: password not specified"),
        (b"\0\0s3cret", "Authentication failed: username not specified"),
        (b"admin\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (
            b"admin\0alice\0s3cret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0" * 9, "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\xff\0\xff", None),
    ],
)
def test_a_failure_has_the_text_of_kafka(token: bytes, text: str | None) -> None:
    server = PlainServer(USERS)
    with pytest.raises(AuthenticationFailed) as failure:
        server.step(token)
    assert failure.value.answer == text
    assert server.user is None


def test_an_authorization_id_may_be_the_user() -> None:
    server = PlainServer(USERS)
    assert server.step(b"alice\0alice\0s3cret") == b""
    assert server.user == "alice"


def test_a_second_token_fails() -> None:
    server = PlainServer(USERS)
    with pytest.raises(AuthenticationFailed):
        server.step(b"\0alice\0wrong")
    with pytest.raises(AuthenticationFailed, match="after the exchange"):
        server.step(b"\0alice\0s3cret")


@given(st.binary(max_size=100))
def test_no_token_raises_anything_but_a_failed_login(token: bytes) -> None:
    server = PlainServer({"alice": "a password that Hypothesis does not find"})
    with pytest.raises(AuthenticationFailed):
        server.step(token)


def test_a_client_refuses_a_challenge() -> None:
    with pytest.raises(AuthenticationFailed):
        PlainClient("a", "b").step(b"more")
