"""Access to the HTTP endpoints of a whole broker: tokens, TLS, client certificates, and what stays open."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kbroker.clock import SystemClock
from kbroker.config.broker import BrokerConfig
from kbroker.config.describe import describe_broker_configs
from kbroker.errors import UserError
from kbroker.server.status import BrokerStatus
from kbroker.testing.running_broker import running_broker
from kbroker.testing.tls_files import TlsFiles, make_tls_files
from kbroker.web.http_access import TOKEN_VARIABLE, HttpAccess, HttpToken, http_access
from kbroker.web.http_request import BadRequest, HttpRequest, parse_head
from kbroker.web.http_server import HttpServer
from kbroker.web.pages import monitoring_server
from tests.web.http_client import exchange, read_all

TOKEN = "0123456789abcdef-secret"
HTTP = {"kbroker.metrics.listeners": "127.0.0.1:0", "offsets.topic.num.partitions": "1"}
Port = Callable[[], int]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "metrics.token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return make_tls_files(str(tmp_path / "certs"))


@asynccontextmanager
async def serving(data: Path, caplog: pytest.LogCaptureFixture, properties: Mapping[str, str]) -> AsyncIterator[int]:
    """Yields the port of the HTTP endpoints of a broker."""
    caplog.set_level("DEBUG", logger="kbroker")
    async with running_broker(data, {**HTTP, **properties}):
        addresses = [vars(record)["monitor"][0] for record in caplog.records if "monitor" in vars(record)]
        yield int(addresses[-1].rpartition(":")[2])


def serve(nursery: trio.Nursery, server: HttpServer) -> int:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    nursery.start_soon(server.run, [sock])
    port: int = sock.getsockname()[1]
    return port


def request(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: a", *headers, "", ""]).encode()


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


async def test_metrics_need_the_token_and_health_does_not(
    tmp_path: Path, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path / "data", caplog, {"kbroker.metrics.token.file": str(token_file)}) as port:
        for headers in (
            (),
            (bearer("wrong"),),
            (bearer(TOKEN[:-1]),),
            (bearer(""),),
            (f"Authorization: Basic {TOKEN}",),
        ):
            refused = await exchange(port, request("/metrics", *headers))
            assert refused.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
            assert b'WWW-Authenticate: Bearer realm="kbroker"\r\n' in refused
            assert b"kafka_" not in refused
        page = await exchange(port, request("/metrics", bearer(TOKEN)))
        assert status_of(page) == 200
        assert TOKEN.encode() not in page
        assert status_of(await exchange(port, request("/metrics", f"AUTHORIZATION: bearer   {TOKEN}"))) == 200
        for path in ("/healthz", "/readyz"):
            assert status_of(await exchange(port, request(path))) == 200
    assert TOKEN not in caplog.text


async def test_the_environment_can_hold_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    async with serving(tmp_path / "data", caplog, {}) as port:
        assert status_of(await exchange(port, request("/metrics"))) == 401
        assert status_of(await exchange(port, request("/metrics", bearer(TOKEN)))) == 200


async def test_the_reason_of_not_ready_needs_access(nursery: trio.Nursery) -> None:
    server = monitoring_server(BrokerStatus(), SystemClock(), HttpAccess(HttpToken(TOKEN, "test")))
    port = serve(nursery, server)
    assert (await exchange(port, request("/readyz"))).endswith(b"\r\n\r\nnot ready\n")
    assert b"not ready: " in await exchange(port, request("/readyz", bearer(TOKEN)))


def tls_client(files: TlsFiles, *, with_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default since Python 3.13
    if with_certificate:
        context.load_cert_chain(files.client)
    return context


async def exchange_tls(port: int, context: ssl.SSLContext, data: bytes) -> bytes:
    stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=context, https_compatible=True)
    async with stream:
        await stream.send_all(data)
        answer = bytearray()
        while b"\r\n\r\n" not in answer:
            if not (received := await stream.receive_some()):
                break
            answer += received
        return bytes(answer)


async def test_tls_encrypts_and_plain_clients_get_nothing(
    tmp_path: Path, files: TlsFiles, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    properties = {
        "kbroker.metrics.security.protocol": "SSL",
        "listener.name.metrics.ssl.keystore.location": files.broker,
        "kbroker.metrics.token.file": str(token_file),
    }
    async with serving(tmp_path / "data", caplog, properties) as port:
        client = tls_client(files)
        assert status_of(await exchange_tls(port, client, request("/metrics", bearer(TOKEN)))) == 200
        assert status_of(await exchange_tls(port, client, request("/metrics"))) == 401
        assert b"HTTP" not in await exchange(port, request("/healthz"))
        assert status_of(await exchange_tls(port, client, request("/healthz"))) == 200


@pytest.mark.parametrize("has_token", [False, True])
async def test_a_certificate_replaces_the_token(
    tmp_path: Path, files: TlsFiles, token_file: Path, caplog: pytest.LogCaptureFixture, has_token: bool
) -> None:
    properties = {
        "kbroker.metrics.security.protocol": "SSL",
        "listener.name.metrics.ssl.keystore.location": files.broker,
        "listener.name.metrics.ssl.truststore.location": files.ca,
        "listener.name.metrics.ssl.client.auth": "requested",
    }
    if has_token:
        properties["kbroker.metrics.token.file"] = str(token_file)
    async with serving(tmp_path / "data", caplog, properties) as port:
        known, unknown = tls_client(files, with_certificate=True), tls_client(files)
        assert status_of(await exchange_tls(port, known, request("/metrics"))) == 200
        assert status_of(await exchange_tls(port, unknown, request("/metrics"))) == 401
        assert status_of(await exchange_tls(port, unknown, request("/metrics", bearer(TOKEN)))) == (
            200 if has_token else 401
        )
        assert status_of(await exchange_tls(port, unknown, request("/healthz"))) == 200


async def test_a_required_certificate_is_needed_for_every_page_and_must_be_trusted(
    tmp_path: Path, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    properties = {
        "kbroker.metrics.security.protocol": "SSL",
        "ssl.keystore.location": files.broker,
        "ssl.truststore.location": files.ca,
        "listener.name.metrics.ssl.client.auth": "required",
    }
    foreign = make_tls_files(str(tmp_path / "foreign"))
    wrong = tls_client(files)
    wrong.load_cert_chain(foreign.client)
    async with serving(tmp_path / "data", caplog, properties) as port:
        assert status_of(await exchange_tls(port, tls_client(files, with_certificate=True), request("/metrics"))) == 200
        for client in (tls_client(files), wrong):
            answer = b""
            with suppress(trio.BrokenResourceError):
                answer = await exchange_tls(port, client, request("/healthz"))
            assert answer == b""


async def test_a_silent_tls_client_is_closed(files: TlsFiles, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    properties = {"kbroker.metrics.security.protocol": "SSL", "ssl.keystore.location": files.broker}
    access = http_access(BrokerConfig.from_properties(properties))
    port = serve(nursery, HttpServer({}, access=access))
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"\x16\x03\x01")  # the beginning of a handshake
        assert await read_all(stream) == b""


@pytest.mark.parametrize(
    ("properties", "environment", "words"),
    [
        ({"kbroker.metrics.token.file": "missing"}, None, "Could not read kbroker.metrics.token.file=missing"),
        ({"kbroker.metrics.token.file": "metrics.token"}, TOKEN, "Set either kbroker.metrics.token.file or KBROKER_"),
        ({}, "short", "The token in KBROKER_METRICS_TOKEN must have at least 16 printable ASCII"),
        ({}, "", "The token in KBROKER_METRICS_TOKEN must have at least 16 printable ASCII"),
        ({}, "with a blank in the middle", "no blanks"),
        ({"kbroker.metrics.security.protocol": "SSL"}, None, "kbroker.metrics.security.protocol=SSL needs a key"),
        ({"listener.name.metrics.ssl.client.auth": "required"}, None, "kbroker.metrics.security.protocol is not SSL"),
    ],
)
def test_bad_settings_refuse_the_start_without_showing_the_token(
    tmp_path: Path,
    token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, str],
    environment: str | None,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if environment is not None:
        monkeypatch.setenv(TOKEN_VARIABLE, environment)
    with pytest.raises(UserError) as refused:
        http_access(BrokerConfig.from_properties(properties))
    assert words in str(refused.value)
    assert not environment or environment not in str(refused.value)


def test_a_token_file_that_others_can_read_is_refused(token_file: Path) -> None:
    token_file.chmod(0o644)
    with pytest.raises(UserError, match=r"can read the token .*Run: chmod 600"):
        http_access(BrokerConfig.from_properties({"kbroker.metrics.token.file": str(token_file)}))


def test_the_token_is_in_no_repr_and_no_config(token_file: Path) -> None:
    config = BrokerConfig.from_properties({"kbroker.metrics.token.file": str(token_file)})
    access = http_access(config)
    asked = parse_head(request("/metrics", bearer(TOKEN))[:-4])
    assert asked.token == TOKEN.encode()
    assert TOKEN not in f"{access!r} {access.token!r} {vars(access.token)!r} {asked!r}"
    assert all(TOKEN not in (entry.value or "") for entry in describe_broker_configs(config, {}))


def test_two_authorization_headers_are_refused() -> None:
    with pytest.raises(BadRequest, match="More than one Authorization"):
        parse_head(request("/metrics", bearer(TOKEN), bearer("other"))[:-4])
    assert parse_head(request("/metrics")[:-4]) == HttpRequest("GET", "/metrics")
