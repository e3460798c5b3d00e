"""`kbroker serve` as a process: listens, answers, stops on signals, prints one line if it cannot start."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.messages import metadata

Start = Callable[..., "Process"]


class Process:
    def __init__(self, arguments: tuple[str, ...]) -> None:
        level = () if "--log-level" in arguments else ("--log-level", "warning")
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "kbroker", "serve", *level, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> tuple[str, int]:
        """Reads the next ready line; returns host and port."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            pytest.fail(f"it did not start: {self.wait()}")
        words, _, address = line.rstrip("\n").rpartition(" ")
        assert words == "kbroker is ready on"
        host, _, port = address.rpartition(":")
        return host.strip("[]"), int(port)

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def wait(self) -> tuple[int, str, str]:
        """Returns exit code, the rest of stdout, and stderr."""
        out, err = self._popen.communicate(timeout=60)
        return self._popen.returncode, out, err

    def end(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.communicate()


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[Process] = []

    def begin(*arguments: str) -> Process:
        processes.append(Process(arguments))
        return processes[-1]

    yield begin
    for process in processes:
        process.end()


def ask_metadata(address: tuple[str, int]) -> Any:
    """Requests the metadata of all topics in v12."""
    header = REQUEST_HEADER(request_api_key=3, request_api_version=12, correlation_id=1, client_id="test")
    frame = codec(REQUEST_HEADER, 2).to_bytes(header)
    frame += codec(metadata.REQUEST, 12).to_bytes(metadata.REQUEST(topics=None))
    with closing(socket.create_connection(address)) as connection, connection.makefile("rb") as incoming:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(incoming.read(4), "big")
        response, _ = codec(metadata.RESPONSE, 12).decode(incoming.read(size), 5)
    return response


def test_a_broker_serves_stops_cleanly_and_restarts_with_its_data(start: Start, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    first = start("--listen", "127.0.0.1:0", "--data-dir", data, "--topic", "orders:3")
    host, port = first.wait_ready()
    assert host == "127.0.0.1"
    before = ask_metadata((host, port))
    assert [(broker.host, broker.port) for broker in before.brokers] == [("127.0.0.1", port)]
    assert [(topic.name, len(topic.partitions)) for topic in before.topics] == [("orders", 3)]
    first.send(signal.SIGTERM)
    assert first.wait() == (0, "", "")

    second = start("--listen", "127.0.0.1:0", "--data-dir", data, "--topic", "orders:3")
    after = ask_metadata(second.wait_ready())
    assert after.cluster_id == before.cluster_id
    assert after.topics[0].topic_id == before.topics[0].topic_id
    second.send(signal.SIGINT)
    assert second.wait() == (0, "", "")


def test_a_data_directory_in_use_is_refused_in_one_line(start: Start, tmp_path: Path) -> None:
    first = start("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    first.wait_ready()
    code, out, err = start("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)).wait()
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert str(tmp_path) in err


def test_a_port_in_use_is_refused_in_one_line(start: Start, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        code, out, err = start("--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path)).wait()
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert str(port) in err


def test_a_directory_that_cannot_be_created_is_one_line(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "data")
    code, out, err = start("--listen", "127.0.0.1:0", "--data-dir", path).wait()
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert path in err


def test_a_colliding_topic_name_is_refused_in_one_line(start: Start, tmp_path: Path) -> None:
    topics = ("--topic", "a.b:1", "--topic", "a_b:1")
    code, out, err = start("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path), *topics).wait()
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "a_b" in err


def test_each_listener_is_printed_and_answers_with_its_own_address(start: Start, tmp_path: Path) -> None:
    process = start(
        *("--data-dir", str(tmp_path)),
        *("--set", "listeners=ONE://127.0.0.1:0,TWO://127.0.0.1:0"),
        *("--set", "listener.security.protocol.map=ONE:PLAINTEXT,TWO:PLAINTEXT"),
        *("--set", "inter.broker.listener.name=ONE"),
    )
    for address in [process.wait_ready(), process.wait_ready()]:
        assert [(broker.host, broker.port) for broker in ask_metadata(address).brokers] == [address]


def test_it_listens_on_ipv6(start: Start, tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6 on the loopback")
    process = start("--listen", "[::1]:0", "--data-dir", str(tmp_path))
    address = process.wait_ready()
    assert address[0] == "::1"
    assert [(broker.host, broker.port) for broker in ask_metadata(address).brokers] == [address]


def test_outside_a_terminal_each_event_is_one_json_object(start: Start, tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path), "--log-level", "info", "--set", "num.partition=3")
    process = start("--listen", "127.0.0.1:0", "--topic", "orders:2", "--metrics-listen", "127.0.0.1:0", *arguments)
    host, port = process.wait_ready()
    ask_metadata((host, port))
    process.send(signal.SIGTERM)
    code, _, err = process.wait()
    assert code == 0
    events = [json.loads(line) for line in err.splitlines()]
    assert [re.sub(r"\d+(\.\d+)?", "N", event["message"].split(":")[0]) for event in events] == [
        "num.partition is not a known config; did you mean num.partitions?",
        "Serving metrics on http",
        f"Starting kbroker N.N ({'compiled' if events[2]['compiled'] else 'not compiled'})",
        "Created topic orders with N partitions",
        "Started in N s, listening on PLAINTEXT",
        "Stopping",
        "Stopped",
    ]
    assert events[2]["log_dirs"] == [str(tmp_path)]
    assert events[4]["listeners"] == [f"PLAINTEXT://{host}:{port}"]


def test_the_log_is_text_with_log_format_text(start: Start, tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path), "--log-level", "info", "--log-format", "text")
    process = start("--listen", "127.0.0.1:0", *arguments)
    process.wait_ready()
    process.send(signal.SIGTERM)
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO    Stopped$", process.wait()[2], re.MULTILINE)


def test_a_metrics_port_in_use_is_refused_in_one_line(start: Start, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = start("--data-dir", str(tmp_path), "--metrics-listen", where).wait()
    assert (code, out) == (1, "")
    reason = "the port is in use. Stop the process that uses it, or choose another port."
    assert err == f"kbroker: Could not listen on {where}: {reason}\n"
