"""SCRAM: both sides of the exchange, the vectors of RFC 7677, and clients that cheat."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.credentials import (
    MIN_ITERATIONS,
    SCRAM_HASHES,
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramHash,
    credential_of_password,
    format_credential,
    made_up_credential,
    new_salt,
    parse_credential,
    salted_password,
)
from kbroker.security.mechanism import AuthenticationFailed
from kbroker.security.scram import ScramClient, ScramServer, TokenCredential

SHA_256 = SCRAM_MECHANISMS["SCRAM-SHA-256"]
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SECRET = b"secret of the broker"
PENCIL = credential_of_password(SHA_256, "pencil", salt=SALT)


def server_of(users: dict[str, ScramCredential] | None = None, scram: ScramHash = SHA_256) -> ScramServer:
    known = {"user": PENCIL} if users is None else users
    return ScramServer(scram, known.get, secret=SECRET, make_nonce=lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")


def client_of(user: str = "user", password: str = "pencil") -> ScramClient:
    return ScramClient(SHA_256, user, password, make_nonce=lambda: "rOprNGfwEbeRWgbNEkqO")


def log_in(server: ScramServer, client: ScramClient) -> None:
    token: bytes | None = client.first_token()
    while token is not None:
        token = client.step(server.step(token))


def test_the_messages_are_those_of_rfc_7677() -> None:
    server, client = server_of(), client_of()
    first = client.first_token()
    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server.step(first)
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert challenge == b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.step(challenge)
    assert final == b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert server.user is None
    answer = server.step(final)
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert client.step(answer) is None
    assert server.user == "user"


@pytest.mark.parametrize("scram", SCRAM_HASHES)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "ANONYMOUS", "*", "User:x", "a/b", " "])
def test_users_of_any_ascii_name_log_in(scram: ScramHash, user: str) -> None:
    password = "päss wörd,=\\"
    server = ScramServer(scram, {user: credential_of_password(scram, password)}.get, secret=SECRET)
    log_in(server, ScramClient(scram, user, password))
    assert server.user == user


def test_a_wrong_password_fails_at_the_proof() -> None:
    server, client = server_of(), client_of(password="pencils")
    final = client.step(server.step(client.first_token()))
    assert final is not None
    with pytest.raises(AuthenticationFailed, match="invalid credentials") as failure:
        server.step(final)
    assert failure.value.answer is None
    assert server.user is None


def test_an_unknown_user_cannot_be_told_from_a_wrong_password() -> None:
    """Attack: enumeration of names by step, text, salt or iterations."""
    outcomes = []
    for user in ("user", "nobody"):
        challenges = []
        for _ in range(2):
            server, client = server_of(), client_of(user=user, password="guess")
            challenges.append(server.step(client.first_token()))
            final = client.step(challenges[-1])
            assert final is not None
            with pytest.raises(AuthenticationFailed) as failure:
                server.step(final)
        assert challenges[0] == challenges[1]
        outcomes.append((str(failure.value), failure.value.answer, challenges[0].rpartition(b",i=")[2]))
    assert outcomes[0] == outcomes[1]


def test_the_proof_of_an_unknown_user_costs_as_much_as_a_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: enumeration of names by time. Counts the hashes instead of measuring."""
    done: list[str] = []
    for name in ("hmac", "hash"):
        original = getattr(ScramHash, name)

        def counted(*arguments: Any, original: Any = original, name: str = name) -> bytes:
            done.append(name)
            result: bytes = original(*arguments)
            return result

        monkeypatch.setattr(ScramHash, name, counted)
    costs = []
    for user in ("user", "nobody"):
        server, client = server_of(), client_of(user=user, password="guess")
        final = client.step(server.step(client.first_token()))
        assert final is not None
        done.clear()
        with pytest.raises(AuthenticationFailed):
            server.step(final)
        costs.append(list(done))
    assert costs[0] == costs[1] != []


def test_made_up_salts_look_like_real_ones_and_differ_by_user_and_secret() -> None:
    salts = {made_up_credential(SHA_256, user, secret).salt for user in "ab" for secret in (b"1", b"2")}
    assert len(salts) == 4
    for salt in (*salts, new_salt()):
        assert 20 <= len(salt) <= 26
        assert salt.isalnum()
    assert made_up_credential(SHA_256, "a", SECRET).salt == made_up_credential(SHA_256, "a", SECRET).salt


Change = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    "first",
    [
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=user,n=admin,r=abc",
        b"n,,n=user,r=abc,n=admin",
        b"n,,n=us\0er,r=abc",
        b"n,,n=us\xc3\xa9r,r=abc",
        b"n,,n=us=2Der,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user",
        b"",
        b"\0",
    ],
)
def test_an_invalid_first_message_fails(first: bytes) -> None:
    server = server_of()
    with pytest.raises(AuthenticationFailed) as failure:
        server.step(first)
    assert failure.value.answer is None


def test_an_authorization_id_must_be_the_user() -> None:
    with pytest.raises(AuthenticationFailed) as failure:
        server_of().step(b"n,a=admin,n=user,r=abc")
    text = "Authentication failed: Client requested an authorization id that is different from username"
    assert failure.value.answer == text
    assert server_of().step(b"n,a=user,n=user,r=abc").startswith(b"r=abc")


def replace(old: bytes, new: bytes) -> Change:
    return lambda message: message.replace(old, new)


@pytest.mark.parametrize(
    "change",
    [
        replace(b"c=biws", b"c=eSws"),
        replace(b"c=biws", b"c=cD10bHMtdW5pcXVlLCw="),
        replace(b"c=biws,", b""),
        replace(b"r=rOprNGfwEbeRWgbNEkqO", b"r="),  # ends with the nonce of the server (CVE-2024-56128)
        replace(b"$k0,p", b"$k,p"),
        replace(b"r=rOpr", b"r=xrOpr"),
        replace(b"r=rOpr", b"r=rOprNGfwEbeRWgbNEkqOrOprNGfwEbeRWgbNEkqOrOpr"),
        replace(b"p=dHzb", b"p="),
        replace(b"p=dHzb", b"p=dHzbdHzb"),
        replace(b"p=dHzb", b"p=eHzb"),
        lambda message: message.partition(b",p=")[0] + b",p=AAAA",
        lambda message: message.partition(b",p=")[0],
        lambda message: b"",
    ],
)
def test_a_changed_final_message_fails(change: Change) -> None:
    server, client = server_of(), client_of()
    final = client.step(server.step(client.first_token()))
    assert final is not None
    with pytest.raises(AuthenticationFailed):
        server.step(change(final))
    with pytest.raises(AuthenticationFailed, match="after the exchange"):
        server.step(final)  # a second attempt needs a new exchange
    assert server.user is None


def test_the_nonce_of_old_librdkafka_is_accepted() -> None:
    """It sends the nonce of the client twice, and signs that."""
    server, client = server_of(), client_of()
    challenge = server.step(client.first_token()).decode()
    scram, nonce = SHA_256, challenge.partition(",")[0].removeprefix("r=")
    salted = salted_password(scram, "pencil", salt=SALT, iterations=4096)
    unsigned = f"c=biws,r=rOprNGfwEbeRWgbNEkqO{nonce}"
    signed = f"n=user,r=rOprNGfwEbeRWgbNEkqO,{challenge},{unsigned}".encode()
    key = scram.hmac(salted, b"Client Key")
    proof = bytes(a ^ b for a, b in zip(key, scram.hmac(scram.hash(key), signed), strict=True))
    assert server.step(f"{unsigned},p={base64.b64encode(proof).decode()}".encode()).startswith(b"v=")
    assert server.user == "user"


def test_a_proof_of_an_earlier_login_is_useless() -> None:
    client = client_of()
    server = server_of()
    final = client.step(server.step(client.first_token()))
    assert final is not None
    server.step(final)
    later = ScramServer(SHA_256, {"user": PENCIL}.get, secret=SECRET)
    later.step(client.first_token())
    with pytest.raises(AuthenticationFailed, match="nonce"):
        later.step(final)


def test_a_credential_with_too_few_iterations_is_refused_by_both_sides() -> None:
    weak = credential_of_password(SHA_256, "pencil", salt=SALT, iterations=MIN_ITERATIONS - 1)
    with pytest.raises(AuthenticationFailed):
        server_of({"user": weak}).step(client_of().first_token())
    client = client_of()
    client.first_token()
    with pytest.raises(AuthenticationFailed, match="iterations"):
        client.step(b"r=rOprNGfwEbeRWgbNEkqOabc,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1")


@pytest.mark.parametrize("challenge", [b"r=other,s=W22Z,i=4096", b"r=rOprNGfwEbeRWgbNEkqO,s=W22Z,i=4096", b"e=no", b""])
def test_a_client_refuses_a_wrong_challenge(challenge: bytes) -> None:
    client = client_of()
    client.first_token()
    with pytest.raises(AuthenticationFailed):
        client.step(challenge)


def test_a_client_refuses_a_broker_that_does_not_know_the_password() -> None:
    server, client = server_of(), client_of()
    final = client.step(server.step(client.first_token()))
    assert final is not None
    with pytest.raises(AuthenticationFailed, match="could not prove"):
        client.step(b"v=" + base64.b64encode(bytes(32)))


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_message_raises_anything_but_a_failed_login(first: bytes, second: bytes) -> None:
    server = server_of()
    for message in (first, second):
        with pytest.raises(AuthenticationFailed):
            server.step(message)
    assert server.user is None


@given(st.binary(max_size=200))
def test_no_final_message_without_the_password_is_accepted(final: bytes) -> None:
    server = server_of()
    server.step(client_of().first_token())
    with pytest.raises(AuthenticationFailed):
        server.step(final)


# Credentials


def test_a_credential_has_the_text_of_kafka() -> None:
    text = format_credential(PENCIL)
    assert text.startswith("salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key=")
    assert text.endswith(",iterations=4096")
    assert parse_credential(text) == PENCIL


def test_a_credential_hides_its_keys() -> None:
    assert repr(PENCIL) == "ScramCredential(iterations=4096, [hidden])"


@pytest.mark.parametrize(
    "text", ["", "salt=W22Z", "salt=!,stored_key=,server_key=,iterations=1", format_credential(PENCIL) + ",x=1", "a=b"]
)
def test_an_invalid_credential_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="invalid SCRAM credential"):
        parse_credential(text)


# Delegation tokens


def server_with_token(password: str = "hmac==") -> ScramServer:
    token = TokenCredential(credential_of_password(SHA_256, password, salt=SALT), "owner", 123)
    users = {"user": PENCIL, "id": PENCIL}
    return ScramServer(SHA_256, users.get, find_token={"id": token, "user": token}.get, secret=SECRET)


def token_client(token_id: str = "id", password: str = "hmac==") -> ScramClient:
    return ScramClient(SHA_256, token_id, password, is_token=True)


def test_a_client_with_a_token_is_its_owner_until_the_token_expires() -> None:
    server = server_with_token()
    log_in(server, token_client())
    assert (server.user, server.expires_ms, server.is_token_login) == ("owner", 123, True)


def test_a_token_is_no_user_and_a_user_no_token() -> None:
    server = server_with_token()
    log_in(server, client_of())
    assert (server.user, server.expires_ms, server.is_token_login) == ("user", None, False)
    for client in (client_of(user="id", password="hmac=="), token_client("user", "pencil"), token_client("owner")):
        server = server_with_token()
        with pytest.raises(AuthenticationFailed, match="invalid credentials") as failure:
            log_in(server, client)
        assert failure.value.answer is None
        assert server.user is None


@pytest.mark.parametrize(
    ("extensions", "is_token"),
    [
        (b",tokenauth=true", True),
        (b",tokenauth=TRUE", True),
        (b",other=1,tokenauth=true", True),
        (b",tokenauth=false", False),
        (b",tokenauth=yes", False),
        (b",other=true", False),
    ],
)
def test_the_extension_says_whether_the_name_is_a_token(extensions: bytes, is_token: bool) -> None:
    server = server_with_token()
    server.step(b"n,,n=id,r=abc" + extensions)
    assert server.is_token_login is is_token


def test_salts_of_unknown_tokens_do_not_reveal_which_users_exist() -> None:
    """Attack: a made-up salt for the token `user` would equal that of the user `user` only if there is no such user."""
    as_user, as_token = (server_of({}).step(b"n,,n=nobody,r=abc" + more) for more in (b"", b",tokenauth=true"))
    assert as_user != as_token
    assert as_token == server_of({}).step(b"n,,n=nobody,r=abc,tokenauth=true")


@given(
    st.sampled_from(["id", "user", "owner", "x", "=2C"]),
    st.lists(st.sampled_from([",tokenauth=true", ",tokenauth=false", ",tokenauth=", ",other=a", ",m=b"]), max_size=3),
    st.binary(max_size=100),
)
def test_no_extension_logs_in_without_the_secret(name: str, extensions: list[str], final: bytes) -> None:
    server = server_with_token()
    with suppress(AuthenticationFailed):
        for message in (f"n,,n={name},r=abc{''.join(extensions)}".encode(), final):
            server.step(message)
    assert server.user is None
    assert server.expires_ms is None


def test_an_authorization_id_must_be_the_id_of_the_token() -> None:
    with pytest.raises(AuthenticationFailed, match="different from username"):
        server_with_token().step(b"n,a=owner,n=id,r=abc,tokenauth=true")
