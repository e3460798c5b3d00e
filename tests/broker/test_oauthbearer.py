"""OAUTHBEARER of a whole broker: keys from a file and from a URL, new keys, the end of a token, unsigned tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.clock import SystemClock
from kbroker.errors import UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.security.oauthbearer import OAuthBearerClient
from tests.broker.conftest import Connect, StartBroker
from tests.broker.wire import Client
from tests.security.tokens import key_set, rsa_key, token, unsigned

PREFIX = "listener.name.sasl_plaintext.oauthbearer"
PACKAGE = "org.apache.kafka.common.security.oauthbearer"
INVALID = b'{"status":"invalid_token"}'


def properties_of(url: str, **more: str) -> dict[str, str]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{PREFIX}.sasl.server.callback.handler.class": f"{PACKAGE}.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "kafka",
        "connection.failed.authentication.delay.ms": "10",
        **{name.replace("_", "."): text for name, text in more.items()},
    }


def fresh(lifetime_s: float = 3600, **changes: Any) -> dict[str, Any]:
    now = SystemClock().now_ms() / 1000
    return {"iat": now - 1, "exp": now + lifetime_s, **changes}


async def log_in(client: Client, text: str) -> Any:
    assert (await client.ask("SaslHandshake", 1, mechanism="OAUTHBEARER")).error_code == 0
    return await client.ask("SaslAuthenticate", 2, auth_bytes=OAuthBearerClient(text).first_token())


async def test_a_signed_token_logs_in_and_ends_the_session_with_it(
    start_broker: StartBroker, connect_to: Connect, tmp_path: Path
) -> None:
    (tmp_path / "keys.json").write_bytes(key_set())
    broker = await start_broker(properties_of(f"file://{tmp_path}/keys.json"))
    client = await connect_to(broker)
    response = await log_in(client, token(**fresh()))
    assert (response.error_code, response.auth_bytes) == (0, b"")
    assert 3_500_000 < response.session_lifetime_ms <= 3_600_000
    await client.expect_service()
    late = await connect_to(broker)
    # Accepted because clocks may differ by 30 seconds, but the session has ended already.
    assert (await log_in(late, token(**fresh(-1)))).session_lifetime_ms == 0
    await late.send("ApiVersions", 0)
    assert await late.wait_closed() == b""


@pytest.mark.parametrize(
    "text",
    [
        token(rsa_key(2), **fresh()),
        token(**fresh(-3600)),
        token(**fresh(iss="https://other")),
        token(**fresh(aud="other")),
        unsigned({"alg": "none"}, {"sub": "alice", **fresh()}) + ".",
    ],
    ids=["signature", "expired", "issuer", "audience", "unsigned"],
)
async def test_an_invalid_token_fails_in_two_steps(
    start_broker: StartBroker, connect_to: Connect, tmp_path: Path, text: str
) -> None:
    (tmp_path / "keys.json").write_bytes(key_set())
    client = await connect_to(await start_broker(properties_of(f"file://{tmp_path}/keys.json")))
    response = await log_in(client, text)
    assert (response.error_code, response.auth_bytes) == (0, INVALID)
    response = await client.ask("SaslAuthenticate", 2, auth_bytes=b"\x01")
    assert (response.error_code, response.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, INVALID.decode())
    assert await client.wait_closed() == b""


class KeyServer(HTTPServer):
    keys = key_set()
    path = "/keys"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{self.path}"


class KeyHandler(BaseHTTPRequestHandler):
    server: KeyServer

    def do_GET(self) -> None:
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.keys)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def key_server() -> Iterator[KeyServer]:
    server = KeyServer(("127.0.0.1", 0), KeyHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_new_key_of_the_issuer_is_found(
    start_broker: StartBroker, connect_to: Connect, key_server: KeyServer
) -> None:
    broker = await start_broker(properties_of(key_server.url))
    assert (await log_in(await connect_to(broker), token(**fresh()))).auth_bytes == b""
    key_server.keys = key_set(rsa_key(2).jwk(kid="k2"))
    text = token(rsa_key(2), kid="k2", **fresh())
    assert (await log_in(await connect_to(broker), text)).auth_bytes == INVALID  # and lets the keys be loaded
    with trio.fail_after(10):
        while (await log_in(await connect_to(broker), text)).auth_bytes == INVALID:
            pass


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://127.0.0.1/keys", "must be a URL that begins with https://"),
        ("/etc/keys", "must be a URL that begins with https://"),
        ("file:///does/not/exist", "Could not load the keys of file:///does/not/exist"),
        ("http://user:s3cret@127.0.0.1:1/keys", "Could not load the keys of http://127.0.0.1:1/keys"),
    ],
)
async def test_keys_that_cannot_be_loaded_stop_the_start(start_broker: StartBroker, url: str, problem: str) -> None:
    expected = pytest.RaisesExc(UserError, match=problem, check=lambda error: "s3cret" not in str(error))
    with pytest.RaisesGroup(expected, flatten_subgroups=True, allow_unwrapped=True):
        await start_broker(properties_of(url))


async def test_a_redirect_to_another_address_is_not_followed(start_broker: StartBroker, key_server: KeyServer) -> None:
    expected = pytest.RaisesExc(UserError, match="HTTP Error 302")
    with pytest.RaisesGroup(expected, flatten_subgroups=True, allow_unwrapped=True):
        await start_broker(properties_of(key_server.url.replace("/keys", "/redirect")))


async def test_a_huge_key_set_stops_the_start(start_broker: StartBroker, key_server: KeyServer) -> None:
    key_server.keys = b" " * (2 << 20)
    expected = pytest.RaisesExc(UserError, match="larger than 1048576 bytes")
    with pytest.RaisesGroup(expected, flatten_subgroups=True, allow_unwrapped=True):
        await start_broker(properties_of(key_server.url))


async def test_unsigned_tokens_are_accepted_if_their_validator_is_named(
    start_broker: StartBroker, connect_to: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    handler = f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
    properties = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{PREFIX}.sasl.server.callback.handler.class": handler,
    }
    broker = await start_broker(properties)
    assert "accepts unsigned tokens: any client can log in as any user" in caplog.text
    client = await connect_to(broker)
    assert (await log_in(client, unsigned({"alg": "none"}, {"sub": "alice", **fresh()}) + ".")).auth_bytes == b""
    await client.expect_service()
