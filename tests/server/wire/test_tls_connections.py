"""Connections with TLS over loopback TCP, with the epoll watcher and with the task watcher."""

from __future__ import annotations

import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from kbroker.clock import SystemClock
from kbroker.errors import PeerError
from kbroker.security.key_stores import load_key_material
from kbroker.security.tls_context import client_context, server_context
from kbroker.server.wire.connection import Connection
from kbroker.server.wire.connection_limits import ConnectionLimits
from kbroker.server.wire.listener import Listener
from kbroker.server.wire.network import Network
from kbroker.server.wire.socket_server import SocketServer
from kbroker.server.wire.tls_transport import CHUNK, RECORD
from tests.security.certificates import Authority, configs
from tests.server.toy_protocol import FrameClient, Slice, ToyHandler, frame

Client = FrameClient[trio.SSLStream[trio.SocketStream]]


class Tls:
    """A ListenerTls with one context. Notes the certificates of clients."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.certificates: list[bytes | None] = []
        self.failures = 0
        self.refusal: str | None = None
        self.is_slow = False

    def new_session(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        return self.context.wrap_bio(incoming, outgoing, server_side=True)

    def on_handshake(self, connection: Connection, certificate: bytes | None) -> None:
        if self.refusal is not None:
            raise PeerError(self.refusal)
        self.certificates.append(certificate)

    def on_failed_handshake(self) -> None:
        self.failures += 1


class Shell:
    def __init__(self, listener: Listener, handler: ToyHandler, network: Network, tls: Tls) -> None:
        self.listener = listener
        self.handler = handler
        self.network = network
        self.tls = tls
        self.streams: list[trio.SocketStream] = []

    async def connect_plain(self) -> trio.SocketStream:
        self.streams.append(await trio.open_tcp_stream("127.0.0.1", self.listener.port))
        return self.streams[-1]

    async def connect(self, context: ssl.SSLContext) -> Client:
        stream = trio.SSLStream(await self.connect_plain(), context, server_hostname="127.0.0.1", https_compatible=True)
        await stream.do_handshake()
        return Client(stream)

    async def connect_and_receive(self, context: ssl.SSLContext) -> None:
        """With TLS 1.3, the alert about a client's certificate arrives after the client's end of the handshake."""
        await (await self.connect(context)).receive()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await trio.lowlevel.checkpoint()


@pytest.fixture(params=[False, True], ids=["epoll", "portable"])
def portable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    return client_context(configs(ssl_truststore_location=authority.file))


@asynccontextmanager
async def running(
    authority: Authority, portable: bool, *, texts: dict[str, str] | None = None, **limits: int
) -> AsyncIterator[Shell]:
    config = configs(
        ssl_keystore_location=authority.pem("broker"), ssl_truststore_location=authority.file, **(texts or {})
    )
    keys = load_key_material(config)
    assert keys is not None
    tls = Tls(server_context(config, keys))
    handler = ToyHandler()
    network = Network(handler, ConnectionLimits(poison_buffers=True, **limits), SystemClock())  # type: ignore[arg-type]
    server = SocketServer(network, portable=portable)
    listener = server.listen("SSL", host="127.0.0.1", port=0, tls=tls)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            shell = Shell(listener, handler, network, tls)
            try:
                yield shell
            finally:
                for stream in shell.streams:
                    stream.socket.close()
            await server.stop(0)
    assert network.connections == set()
    assert len(network.logins) == 0
    assert network.budget.used == 0
    assert network.quotas.count == 0
    assert network.reports.server_errors == 0


async def test_requests_are_answered_on_many_connections(
    authority: Authority, trusting: ssl.SSLContext, portable: bool
) -> None:
    async with running(authority, portable) as shell:
        clients = [await shell.connect(trusting) for _ in range(10)]
        for turn in range(3):
            for number, client in enumerate(clients):
                await client.send(b"e%d-%d" % (number, turn))
            for number, client in enumerate(clients):
                assert await client.receive() == b"e%d-%d" % (number, turn)
        assert shell.tls.certificates == [None] * 10
        assert len(shell.network.logins) == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_frames_of_all_sizes_arrive_and_return(
    authority: Authority, trusting: ssl.SSLContext, portable: bool, version: ssl.TLSVersion
) -> None:
    trusting.minimum_version = trusting.maximum_version = version
    randomness = random.Random(5)
    edges = [size + shift for size in (RECORD, CHUNK, 4 * CHUNK, 16 * 1024) for shift in (-6, -5, -4, -1, 0, 1)]
    sizes = [1, 2, *edges, *(randomness.randrange(1, 700_000) for _ in range(10))]
    async with running(authority, portable) as shell:
        client = await shell.connect(trusting)
        for size in sizes:
            body = b"e" + randomness.randbytes(size)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, body)
                assert await client.receive() == body


async def test_many_frames_in_one_record_are_all_handled(
    authority: Authority, trusting: ssl.SSLContext, portable: bool
) -> None:
    """No event of the socket reports bytes that are decrypted and not yet taken."""
    async with running(authority, portable) as shell:
        client = await shell.connect(trusting)
        for count in (2000, 1, 300):
            await client.send(*(b"e%d" % number for number in range(count)))
            for number in range(count):
                assert await client.receive() == b"e%d" % number


async def test_a_frame_arrives_in_records_of_one_byte(
    authority: Authority, trusting: ssl.SSLContext, portable: bool
) -> None:
    async with running(authority, portable) as shell:
        client = await shell.connect(trusting)
        for byte in frame(b"e one by one"):
            await client.stream.send_all(bytes((byte,)))
        assert await client.receive() == b"e one by one"


async def test_a_client_that_reads_slowly_gets_every_byte_once(
    authority: Authority, trusting: ssl.SSLContext, portable: bool
) -> None:
    """Ciphertext that the socket did not take is kept, and counts as sent only when it has left."""
    async with running(authority, portable, send_buffer_bytes=4096) as shell:
        client = await shell.connect(trusting)
        await client.send(b"b1000000", b"e1", b"b300000", b"e2")
        assert await client.receive() == b"B" * 1_000_000
        assert await client.receive() == b"e1"
        assert await client.receive() == b"B" * 300_000
        assert await client.receive() == b"e2"


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK, 300_000, 3_000_000])
async def test_ranges_of_files_are_sent(
    authority: Authority, trusting: ssl.SSLContext, portable: bool, tmp_path: Path, size: int
) -> None:
    content = random.Random(size).randbytes(size + 10)
    path = tmp_path / "segment"
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        async with running(authority, portable, send_buffer_bytes=4096) as shell:
            slices = [Slice(descriptor, 10, size), Slice(-1, 10, size, content=content)]
            shell.handler.make_slice = lambda body: slices[int(body[1:])]
            client = await shell.connect(trusting)
            await client.send(b"s0", b"e between", b"s1", b"e after")
            assert await client.receive() == content[10:]
            assert await client.receive() == b"e between"
            assert await client.receive() == content[10:]
            assert await client.receive() == b"e after"
            assert [file_slice.released for file_slice in slices] == [1, 1]
    finally:
        os.close(descriptor)


async def test_the_end_of_a_client_ends_its_connection(
    authority: Authority, trusting: ssl.SSLContext, portable: bool
) -> None:
    async with running(authority, portable) as shell:
        client = await shell.connect(trusting)
        await client.send(b"p parked")
        await shell.wait_until(lambda: shell.handler.handled == 1)
        await client.stream.aclose()
        await shell.wait_until(lambda: not shell.network.connections)
        assert shell.handler.cancelled == [b"p parked"]
        assert shell.network.reports.peer_errors == 0


async def test_the_broker_says_goodbye(authority: Authority, trusting: ssl.SSLContext, portable: bool) -> None:
    """Without close_notify a client could not tell the end of the stream from an attack."""
    async with running(authority, portable) as shell:
        stream = trio.SSLStream(
            await shell.connect_plain(), trusting, server_hostname="127.0.0.1", https_compatible=False
        )
        await stream.do_handshake()
        await stream.send_all(frame(b"c"))
        assert await stream.receive_some() == b""


async def test_a_plaintext_client_gets_an_alert_and_one_line_is_logged(
    authority: Authority, portable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running(authority, portable) as shell:
        stream = await shell.connect_plain()
        await stream.send_all(frame(b"e hello"))
        received = b""
        while chunk := await stream.receive_some():
            received += chunk
        assert received[:1] == b"\x15"  # as Apache Kafka: an alert, of seven bytes
        assert len(received) == 7
        assert shell.handler.handled == 0
        assert shell.tls.failures == 1
    (line,) = [record.message for record in caplog.records if "Closing" in record.message]
    assert line.endswith("on SSL: SSL handshake failed: the client does not use TLS")


def connect_in_thread(context: ssl.SSLContext, port: int) -> None:
    """Unlike trio's stream, this one tells the broker why it leaves."""
    with socket.create_connection(("127.0.0.1", port)) as sock, context.wrap_socket(sock, server_hostname="127.0.0.1"):
        pass


async def test_a_client_that_trusts_another_authority_leaves(
    authority: Authority, portable: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stranger = client_context(configs(ssl_truststore_location=Authority(tmp_path / "other", "another authority").file))
    async with running(authority, portable) as shell:
        with pytest.raises(ssl.SSLCertVerificationError):
            await trio.to_thread.run_sync(connect_in_thread, stranger, shell.listener.port)
        await shell.wait_until(lambda: shell.tls.failures == 1)
    assert "the peer refused it with the alert unknown ca" in caplog.text


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_client_certificates_are_demanded(
    authority: Authority, portable: bool, tmp_path: Path, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    other = Authority(tmp_path / "other")
    trust = {"ssl_truststore_location": authority.file}
    known = client_context(configs(**trust, ssl_keystore_location=authority.pem("client", hosts=())))
    without = client_context(configs(**trust))
    expired_file = authority.pem("expired", hosts=(), age_days=20, days=10)
    expired = client_context(configs(**trust, ssl_keystore_location=expired_file))
    unknown = client_context(configs(**trust, ssl_keystore_location=other.pem("client", hosts=())))
    async with running(authority, portable, texts={"ssl_client_auth": "required"}) as shell:
        for context in (known, without, expired, unknown):
            context.minimum_version = context.maximum_version = version
        client = await shell.connect(known)
        await client.send(b"e known")
        assert await client.receive() == b"e known"
        for context in (without, expired, unknown):
            with pytest.raises(trio.BrokenResourceError):
                await shell.connect_and_receive(context)
        assert shell.tls.failures == 3
        assert shell.handler.handled == 1
        assert [certificate is not None for certificate in shell.tls.certificates] == [True]
    assert "the client sent no certificate, which ssl.client.auth=required demands" in caplog.text
    assert "certificate has expired" in caplog.text


async def test_a_requested_certificate_may_be_missing_but_not_wrong(
    authority: Authority, trusting: ssl.SSLContext, portable: bool, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other").pem("client", hosts=())
    wrong = client_context(configs(ssl_truststore_location=authority.file, ssl_keystore_location=other))
    async with running(authority, portable, texts={"ssl_client_auth": "requested"}) as shell:
        client = await shell.connect(trusting)
        await client.send(b"e none")
        assert await client.receive() == b"e none"
        with pytest.raises(trio.BrokenResourceError):
            await shell.connect_and_receive(wrong)
        assert shell.tls.certificates == [None]


async def test_a_client_whose_name_is_refused_is_closed(
    authority: Authority, trusting: ssl.SSLContext, portable: bool
) -> None:
    async with running(authority, portable) as shell:
        shell.tls.refusal = "No rules apply"
        client = await shell.connect(trusting)
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await client.receive()
        assert shell.handler.handled == 0


async def test_slow_handshakes_are_ended(authority: Authority, trusting: ssl.SSLContext, portable: bool) -> None:
    """Clients that connect and send nothing, or a part of a hello, must not stay."""
    async with running(authority, portable, max_login_ms=0) as shell:
        silent = await shell.connect_plain()
        partial = await shell.connect_plain()
        await partial.send_all(b"\x16\x03\x01\x02\x00\x01\x00")
        await shell.wait_until(lambda: len(shell.network.connections) == 2)
        shell.network.sweep()
        for stream in (silent, partial):
            await shell.wait_until(lambda: not shell.network.connections)
            with suppress(trio.BrokenResourceError):
                assert await stream.receive_some() == b""
    async with running(authority, portable) as shell:
        await shell.connect_plain()
        client = await shell.connect(trusting)
        await client.send(b"e quick")
        assert await client.receive() == b"e quick"
        assert len(shell.network.logins) == 1
        shell.network.sweep()
        assert len(shell.network.connections) == 2


async def test_a_connection_that_ends_in_its_handshake_is_not_reported(
    authority: Authority, portable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(authority, portable) as shell:
        stream = await shell.connect_plain()
        await shell.wait_until(lambda: len(shell.network.connections) == 1)
        await stream.aclose()
        await shell.wait_until(lambda: not shell.network.connections)
        assert shell.network.reports.peer_errors == 0


async def test_garbage_after_the_handshake_closes_the_connection(
    authority: Authority, trusting: ssl.SSLContext, portable: bool
) -> None:
    async with running(authority, portable) as shell:
        client = await shell.connect(trusting)
        await client.send(b"e before")
        assert await client.receive() == b"e before"
        await client.stream.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await client.receive()
        assert shell.network.reports.peer_errors == 1


async def test_old_versions_and_renegotiation_are_refused(authority: Authority, portable: bool) -> None:
    async with running(authority, portable) as shell:
        stream = await shell.connect_plain()
        hello = bytes.fromhex("160301002f0100002b0301") + bytes(32) + bytes.fromhex("0000040035002f0100")
        await stream.send_all(hello[:5] + hello[5:])
        received = b""
        while chunk := await stream.receive_some():
            received += chunk
        assert received[:1] in (b"\x15", b"")
        assert shell.tls.failures == 1
        assert shell.tls.context.options & ssl.OP_NO_RENEGOTIATION


async def test_handshakes_of_a_flood_leave_time_for_other_requests(
    authority: Authority, trusting: ssl.SSLContext
) -> None:
    """In one round of the poll, handshakes take about a millisecond: the rest waits for the next rounds."""
    async with running(authority, False) as shell:
        state = shell.listener.tls_state
        assert state is not None
        client = await shell.connect(trusting)
        flood = [socket.create_connection(("127.0.0.1", shell.listener.port)) for _ in range(30)]
        try:
            for sock in flood:
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                session = trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
                with pytest.raises(ssl.SSLWantReadError):
                    session.do_handshake()
                sock.sendall(outgoing.read())
            await client.send(b"e meanwhile")
            assert await client.receive() == b"e meanwhile"
            for sock in flood:
                sock.settimeout(10)
                assert (await trio.to_thread.run_sync(sock.recv, 5))[:1] == b"\x16"
        finally:
            for sock in flood:
                sock.close()


async def test_handshakes_with_a_large_key_run_in_threads(
    authority: Authority, trusting: ssl.SSLContext, portable: bool
) -> None:
    async with running(authority, portable) as shell:
        shell.tls.is_slow = True
        for number in range(3):
            client = await shell.connect(trusting)
            await client.send(b"e%d" % number)
            assert await client.receive() == b"e%d" % number
        stream = await shell.connect_plain()
        await stream.send_all(frame(b"e hello"))
        received = b""
        while chunk := await stream.receive_some():
            received += chunk
        assert received[:1] == b"\x15"
        leaving = await shell.connect_plain()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            session.do_handshake()
        await leaving.send_all(outgoing.read())
        await leaving.aclose()  # perhaps while the thread works
        await shell.wait_until(lambda: len(shell.network.connections) == 3)
        assert shell.tls.failures == 1
