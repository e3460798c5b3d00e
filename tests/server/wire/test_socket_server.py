"""Socket server over loopback TCP, with the epoll watcher and with the task watcher."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from kbroker.clock import SystemClock
from kbroker.server.wire.connection_limits import ConnectionLimits
from kbroker.server.wire.listener import Listener
from kbroker.server.wire.network import Network
from kbroker.server.wire.socket_server import SocketServer
from tests.server.toy_protocol import FrameClient, Slice, ToyHandler, frame

Client = FrameClient[trio.SocketStream]


class Running:
    def __init__(self, server: SocketServer, handler: ToyHandler, listener: Listener) -> None:
        self.server = server
        self.handler = handler
        self.listener = listener
        self.network = server.network
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        self.clients.append(Client(await trio.open_tcp_stream("127.0.0.1", self.listener.port)))
        return self.clients[-1]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Lets the loop run until the condition holds. The deadline of the fixture ends a wait without success."""
        while not condition():
            await trio.lowlevel.checkpoint()


@pytest.fixture(params=[False, True], ids=["epoll", "portable"])
def portable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@asynccontextmanager
async def running(portable: bool, **limits: int) -> AsyncIterator[Running]:
    handler = ToyHandler()
    network = Network(handler, ConnectionLimits(poison_buffers=True, **limits), SystemClock())  # type: ignore[arg-type]
    server = SocketServer(network, portable=portable)
    listener = server.listen("PLAINTEXT", host="127.0.0.1", port=0)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            shell = Running(server, handler, listener)
            try:
                yield shell
            finally:
                for client in shell.clients:
                    client.stream.socket.close()
            await server.stop(0)
    assert network.connections == set()
    assert network.budget.used == 0
    assert network.quotas.count == 0
    assert network.reports.server_errors == 0


async def test_requests_are_answered_on_many_connections(portable: bool) -> None:
    async with running(portable) as shell:
        clients = [await shell.connect() for _ in range(20)]
        for turn in range(3):
            for number, client in enumerate(clients):
                await client.send(b"e%d-%d" % (number, turn))
            for number, client in enumerate(clients):
                assert await client.receive() == b"e%d-%d" % (number, turn)
        assert shell.handler.connections[0].peer_host == "127.0.0.1"
        assert shell.handler.connections[0].peer_port == clients[0].stream.socket.getsockname()[1]


async def test_fragments_of_one_byte(portable: bool) -> None:
    async with running(portable) as shell:
        client = await shell.connect()
        for byte in frame(b"e one by one"):
            await client.stream.send_all(bytes((byte,)))
        assert await client.receive() == b"e one by one"


async def test_ten_thousand_pipelined_requests(portable: bool) -> None:
    async with running(portable) as shell:
        client = await shell.connect()
        await client.send(*(b"e%d" % number for number in range(10_000)))
        for number in range(10_000):
            assert await client.receive() == b"e%d" % number


async def test_ten_thousand_pipelined_requests_that_all_park(portable: bool) -> None:
    async with running(portable) as shell:
        client = await shell.connect()
        await client.send(*(b"p%d" % number for number in range(10_000)))
        completed = 0
        for number in range(10_000):
            if completed == number:
                await shell.wait_until(lambda known=completed: len(shell.handler.parked) > known)  # type: ignore[misc]
                parked = len(shell.handler.parked)
                assert parked - completed <= shell.network.limits.max_in_flight
                shell.network.run.begin(0.0)
                for index in range(completed, parked):
                    shell.handler.complete(index)
                shell.network.run.end()
                completed = parked
            assert await client.receive() == b"p%d" % number


async def test_a_slot_completed_by_another_task_is_sent_at_once(portable: bool) -> None:
    async with running(portable) as shell:
        client = await shell.connect()
        await client.send(b"p")
        await shell.wait_until(lambda: bool(shell.handler.parked))
        shell.handler.complete(0)
        assert await client.receive() == b"p"


async def test_a_client_that_disconnects_cancels_its_parked_requests(portable: bool) -> None:
    async with running(portable) as shell:
        client = await shell.connect()
        await client.send(b"p")
        await shell.wait_until(lambda: bool(shell.handler.parked))
        await client.stream.aclose()
        await shell.wait_until(lambda: shell.handler.cancelled == [b"p"])
        await shell.wait_until(lambda: shell.network.quotas.count == 0)


async def test_a_reset_ends_only_itself(portable: bool) -> None:
    async with running(portable) as shell:
        other = await shell.connect()
        client = await shell.connect()
        await client.send(b"p")
        await shell.wait_until(lambda: bool(shell.handler.parked))
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.stream.aclose()
        await shell.wait_until(lambda: shell.handler.cancelled == [b"p"])
        await other.send(b"e")
        assert await other.receive() == b"e"


async def test_half_closed_clients_get_their_answers(portable: bool) -> None:
    async with running(portable) as shell:
        client = await shell.connect()
        await client.send(*(b"e%d" % number for number in range(200)), b"b2000000")
        await client.stream.send_eof()
        for number in range(200):
            assert await client.receive() == b"e%d" % number
        assert await client.receive() == b"B" * 2_000_000
        assert await client.is_ended()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\x80" * 4, b"\x7f" * 4])
async def test_garbage_is_closed_and_others_do_not_notice(portable: bool, garbage: bytes) -> None:
    async with running(portable) as shell:
        other = await shell.connect()
        client = await shell.connect()
        await client.stream.send_all(garbage)
        assert await client.is_ended()
        assert shell.network.reports.peer_errors == 1
        await other.send(b"e")
        assert await other.receive() == b"e"


async def test_a_client_that_never_reads_does_not_stop_others_and_memory_stays_bounded(portable: bool) -> None:
    async with running(portable, max_unsent_bytes=200_000) as shell:
        client, other = await shell.connect(), await shell.connect()

        async def ask() -> None:
            while True:
                await client.send(b"b100000")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await shell.wait_until(lambda: bool(shell.handler.connections))
            (connection,) = shell.handler.connections
            while connection.is_reading:
                await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        handled = shell.handler.handled
        assert shell.network.budget.used <= 400_000
        await other.send(b"e")
        assert await other.receive() == b"e"
        assert shell.handler.handled == handled + 1


async def test_a_slow_reader_gets_everything(portable: bool, tmp_path: Path) -> None:
    path = tmp_path / "log"
    content = os.urandom(6_000_000)
    path.write_bytes(content)
    with path.open("rb") as file:
        async with running(portable) as shell:
            shell.handler.make_slice = lambda body: Slice(file.fileno(), 0, len(content), is_hot_tail=False)
            client = await shell.connect()
            await client.send(b"s", b"e after", b"s", b"b1500000", b"e last")
            assert await client.receive() == content
            assert await client.receive() == b"e after"
            assert await client.receive() == content
            assert await client.receive() == b"B" * 1_500_000
            assert await client.receive() == b"e last"


async def test_cold_data_is_read_ahead_in_a_thread(
    portable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.server.wire.send_queue.is_in_page_cache", lambda *_: False)
    path = tmp_path / "log"
    content = os.urandom(2_500_000)
    path.write_bytes(content)
    with path.open("rb") as file:
        async with running(portable) as shell:
            file_slice = Slice(file.fileno(), 0, len(content), is_hot_tail=False)
            shell.handler.make_slice = lambda body: file_slice
            client = await shell.connect()
            await client.send(b"s", b"e")
            assert await client.receive() == content
            assert await client.receive() == b"e"
            assert file_slice.released == 1


async def test_large_requests_wait_for_memory_and_all_arrive(portable: bool) -> None:
    async with running(portable, queued_max_request_bytes=3_000_000) as shell:

        async def ask(number: int) -> None:
            client = await shell.connect()
            await client.send(b"n%d" % number + bytes(2_000_000))
            await client.send(b"e%d" % number)
            assert await client.receive() == b"e%d" % number

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(ask, number)
        assert shell.handler.handled == 12


async def test_idle_connections_are_closed(portable: bool) -> None:
    async with running(portable, max_idle_ms=50) as shell:
        client = await shell.connect()
        await client.stream.send_all(struct.pack(">i", 100) + b"never complete")
        assert await client.is_ended()


async def test_an_address_may_have_so_many_connections(portable: bool) -> None:
    async with running(portable, max_connections_per_ip=2) as shell:
        first, second = await shell.connect(), await shell.connect()
        for client in (first, second):
            await client.send(b"e")
            assert await client.receive() == b"e"
        assert await (await shell.connect()).is_ended()
        await first.stream.aclose()
        await shell.wait_until(lambda: shell.network.quotas.count == 1)
        third = await shell.connect()
        await third.send(b"e")
        assert await third.receive() == b"e"


async def test_over_the_limit_of_all_connections_new_ones_wait(portable: bool) -> None:
    async with running(portable, max_connections=1) as shell:
        first = await shell.connect()
        await first.send(b"e")
        assert await first.receive() == b"e"
        second = await shell.connect()
        await second.send(b"e waited")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert shell.handler.handled == 1
        await first.stream.aclose()
        assert await second.receive() == b"e waited"


async def test_accepting_survives_a_lack_of_descriptors_and_aborted_connections(
    portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [errno.EMFILE, errno.ECONNABORTED, errno.ENFILE]
    accept = socket.socket.accept

    def failing(sock: socket.socket) -> object:
        if failures:
            code = failures.pop(0)
            raise OSError(code, os.strerror(code))
        return accept(sock)

    async with running(portable) as shell:
        monkeypatch.setattr(socket.socket, "accept", failing)
        client = await shell.connect()
        await client.send(b"e")
        assert await client.receive() == b"e"
        assert failures == []


async def test_accepting_may_end_between_two_connections(portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(portable) as shell:

        def stopping(*_: object) -> bool:
            shell.server.stop_accepting()
            return True

        monkeypatch.setattr(shell.listener, "on_acceptable", stopping)
        with suppress(OSError):  # the system may end it before the connection is seen to be made
            await shell.connect()
        await shell.wait_until(lambda: shell.listener.sockets[0].fileno() < 0)


async def test_stopping_answers_open_requests_and_accepts_nothing_new(portable: bool) -> None:
    async with running(portable) as shell:
        client, idle = await shell.connect(), await shell.connect()
        await client.send(b"p")
        await shell.wait_until(lambda: bool(shell.handler.parked) and shell.network.quotas.count == 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shell.server.stop, 20.0)
            assert await idle.is_ended()
            with pytest.raises(OSError):
                await shell.connect()
            shell.handler.complete(0)
            assert await client.receive() == b"p"
            assert await client.is_ended()


async def test_stopping_does_not_wait_longer_than_its_grace(portable: bool) -> None:
    async with running(portable) as shell:
        client = await shell.connect()
        await client.send(b"p")
        await shell.wait_until(lambda: bool(shell.handler.parked))
        await shell.server.stop(0.01)
        assert await client.is_ended()
        assert shell.handler.cancelled == [b"p"]


async def test_one_busy_connection_does_not_starve_others_or_other_tasks(portable: bool) -> None:
    async with running(portable) as shell:
        busy, other = await shell.connect(), await shell.connect()

        async def pour() -> None:
            while True:
                await busy.send(*[b"n"] * 5000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pour)
            await shell.wait_until(lambda: shell.handler.handled > 20_000)
            for _ in range(5):
                await other.send(b"e")
                assert await other.receive() == b"e"
            nursery.cancel_scope.cancel()


async def test_sockets_of_other_tasks_are_watched_beside_connections() -> None:
    async with running(False) as shell:
        watch = shell.server.socket_watch
        assert watch is not None
        client = await shell.connect()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            received = []
            is_in_run = []

            def on_readable() -> None:
                is_in_run.append(shell.handler.run.is_open)
                received.append(ours.recv(100))

            watch.add(ours.fileno(), on_readable)
            theirs.send(b"one")
            await shell.wait_until(lambda: received == [b"one"])
            await client.send(b"ehello")
            assert await client.receive() == b"ehello"
            theirs.send(b"two")
            await shell.wait_until(lambda: received == [b"one", b"two"])
            watch.remove(ours.fileno())
            watch.remove(ours.fileno())
            theirs.send(b"three")
            await client.send(b"ehello")
            assert await client.receive() == b"ehello"
            assert received == [b"one", b"two"]
            assert all(is_in_run)
    watch.add(0, on_readable)  # the server has stopped: nothing is watched any more
    watch.remove(0)


async def test_without_epoll_there_is_no_watch_for_others() -> None:
    async with running(True) as shell:
        assert shell.server.socket_watch is None


async def test_the_environment_forces_the_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(ToyHandler(), ConnectionLimits(), SystemClock())
    monkeypatch.setenv("KBROKER_PORTABLE", "1")
    assert SocketServer(network).is_portable
    monkeypatch.setenv("KBROKER_PORTABLE", "0")
    assert SocketServer(network).is_portable != hasattr(__import__("select"), "epoll")
    monkeypatch.delattr("select.epoll", raising=False)
    assert SocketServer(network).is_portable
