"""`kbroker serve`: builds the configuration from options, file and --set; prints errors and warnings."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from kbroker.cli.main import main
from kbroker.config.broker import BrokerConfig
from kbroker.errors import UserError
from kbroker.server import broker


class Started:
    """Fake broker: records its arguments, calls `on_ready`, and ends as the test wants."""

    def __init__(self) -> None:
        self.config: BrokerConfig = BrokerConfig.from_properties({})
        self.data_dir: str | None = None
        self.topics: Sequence[tuple[str, int]] = ()
        self.addresses = [("127.0.0.1", 9092)]
        self.until: Callable[[trio.Event], Any] | None = None
        self.failure: BaseException | None = None

    async def run_broker(
        self,
        config: BrokerConfig,
        *,
        data_dir: str | None,
        topics: Sequence[tuple[str, int]],
        on_ready: Callable[[list[tuple[str, int]]], None],
        stop: trio.Event,
        **_: Any,
    ) -> None:
        self.config, self.data_dir, self.topics = config, data_dir, topics
        if self.failure is not None:
            raise self.failure
        on_ready(self.addresses)
        if self.until is not None:
            await self.until(stop)

    @property
    def endpoints(self) -> list[str]:
        return [str(endpoint) for endpoint in self.config.endpoints]

    @property
    def advertised(self) -> list[str]:
        return [str(endpoint) for endpoint in self.config.advertised_endpoints]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    stand_in = Started()
    monkeypatch.setattr(broker, "run_broker", stand_in.run_broker)
    return stand_in


Serve = Callable[..., tuple[int, str, str]]


@pytest.fixture
def serve(started: Started, capsys: pytest.CaptureFixture[str]) -> Serve:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["serve", "--log-format", "text", *arguments])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call


def test_without_options_it_listens_on_this_machine_only(serve: Serve, started: Started) -> None:
    assert serve() == (0, "kbroker is ready on 127.0.0.1:9092\n", "")
    assert started.endpoints == ["PLAINTEXT://127.0.0.1:9092"]
    assert (started.data_dir, list(started.topics)) == (None, [])


def test_every_address_is_printed_ipv6_in_brackets(serve: Serve, started: Started) -> None:
    started.addresses = [("127.0.0.1", 1234), ("::1", 5678)]
    assert serve()[1] == "kbroker is ready on 127.0.0.1:1234\nkbroker is ready on [::1]:5678\n"


@pytest.mark.parametrize(
    ("listen", "endpoint"),
    [
        ("127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        ("localhost:9", "PLAINTEXT://localhost:9"),
        ("[::1]:9092", "PLAINTEXT://[::1]:9092"),
    ],
)
def test_listen_takes_names_addresses_and_port_0(serve: Serve, started: Started, listen: str, endpoint: str) -> None:
    assert serve("--listen", listen)[0] == 0
    assert started.endpoints == started.advertised == [endpoint]


@pytest.mark.parametrize("listen", ["9092", "localhost", "localhost:x", "localhost:65536", "::1:9092", "localhost:-1"])
def test_an_invalid_address_is_a_usage_error(serve: Serve, listen: str) -> None:
    for option in ("--listen", "--advertise"):
        code, _, err = serve(option, listen)
        assert code == 2
        assert listen in err
        assert err.count("\n") == 1


def test_an_ipv6_address_without_brackets_is_explained(serve: Serve) -> None:
    assert "IPv6 address in brackets: [::1]:9092" in serve("--listen", "::1:9092")[2]


def test_clients_get_the_advertised_address(serve: Serve, started: Started) -> None:
    assert serve("--listen", "0.0.0.0:9092", "--advertise", "kafka.example:19092")[0] == 0
    assert started.endpoints == ["PLAINTEXT://0.0.0.0:9092"]
    assert started.advertised == ["PLAINTEXT://kafka.example:19092"]


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "[::]:9092"])
def test_a_wildcard_address_cannot_be_advertised(serve: Serve, listen: str) -> None:
    code, out, err = serve("--listen", listen)
    assert (code, out) == (1, "")
    assert "--advertise HOST:PORT" in err
    assert err.count("\n") == 1


def test_advertise_takes_the_name_of_the_one_listener(serve: Serve, started: Started) -> None:
    serve(
        *("--set", "listeners=CLIENTS://127.0.0.1:1,CONTROLLER://127.0.0.1:2"),
        *("--set", "listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT"),
        *("--set", "controller.listener.names=CONTROLLER"),
        *("--advertise", "kafka.example:3"),
    )
    assert started.advertised == ["CLIENTS://kafka.example:3"]


def test_advertise_is_refused_for_several_listeners(serve: Serve) -> None:
    listeners = "listeners=PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2"
    code, _, err = serve("--set", listeners, "--advertise", "kafka.example:3")
    assert code == 2
    assert "advertised.listeners" in err


def test_set_overrides_the_file_and_options_override_both(serve: Serve, started: Started, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "# a broker\nnum.partitions=3\nmessage.max.bytes = 2000000\n"
        "listeners=PLAINTEXT://127.0.0.1:1\nadvertised.listeners=PLAINTEXT://old.example:1\n"
    )
    assert serve("--config", str(file), "--set", "num.partitions=5")[0] == 0
    assert (started.config.num_partitions, started.config.message_max_bytes) == (5, 2_000_000)
    assert started.endpoints == ["PLAINTEXT://127.0.0.1:1"]
    assert started.advertised == ["PLAINTEXT://old.example:1"]
    serve("--config", str(file), "--listen", "127.0.0.1:2")
    assert started.endpoints == started.advertised == ["PLAINTEXT://127.0.0.1:2"]


def test_several_named_listeners_are_configured_with_set(serve: Serve, started: Started) -> None:
    code, _, _ = serve(
        *("--set", "listeners=INSIDE://127.0.0.1:1,OUTSIDE://127.0.0.1:2"),
        *("--set", "advertised.listeners=INSIDE://127.0.0.1:1,OUTSIDE://kafka.example:2"),
        *("--set", "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"),
    )
    assert code == 0
    assert started.advertised == ["INSIDE://127.0.0.1:1", "OUTSIDE://kafka.example:2"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--listen", "127.0.0.1:1", "--set", "listeners=PLAINTEXT://127.0.0.1:2"),
        ("--advertise", "a:1", "--set", "advertised.listeners=PLAINTEXT://b:2"),
        ("--data-dir", "here", "--set", "log.dirs=there"),
    ],
)
def test_an_option_and_set_of_the_same_property_are_a_usage_error(serve: Serve, arguments: tuple[str, ...]) -> None:
    code, _, err = serve(*arguments)
    assert code == 2
    assert arguments[0] in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["num.partitions", "=3", ""])
def test_a_property_without_name_or_value_is_a_usage_error(serve: Serve, text: str) -> None:
    assert serve("--set", text)[0] == 2


def test_an_invalid_value_is_one_line(serve: Serve) -> None:
    code, _, err = serve("--set", "num.partitions=many")
    assert code == 1
    assert err == "kbroker: num.partitions=many must be a 32-bit integer\n"


def test_an_unknown_property_gets_a_warning_with_the_nearest_name(serve: Serve) -> None:
    code, _, err = serve("--set", "num.partition=3")
    assert code == 0
    assert err == "kbroker: warning: num.partition is not a known config; did you mean num.partitions?\n"


@pytest.mark.parametrize(
    ("name", "text", "is_secret"),
    [
        ("ssl.key.password", "s3cret", True),
        ("listener.name.inside.ssl.keystore.password", "s3cret", True),
        ("listener.name.inside.plain.sasl.jaas.config", 'a.PlainLoginModule required user_a="s3cret";', True),
        ("listener.name.inside.scram-sha-512.sasl.jaas.config", "a.ScramLoginModule required;", False),
        ("ssl.keystore.location", "broker.pem", False),
    ],
)
def test_a_secret_on_the_command_line_gets_a_warning(serve: Serve, name: str, text: str, is_secret: bool) -> None:
    _, _, err = serve("--set", f"{name}={text}")
    assert (f"kbroker: warning: every user of this machine can read {name} in the list of" in err) is is_secret
    assert "s3cret" not in err


@pytest.mark.parametrize(("mode", "is_visible"), [(0o644, True), (0o600, False)])
def test_a_secret_in_a_file_that_others_can_read_gets_a_warning(
    serve: Serve, tmp_path: Path, mode: int, is_visible: bool
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("ssl.key.password=s3cret\n")
    file.chmod(mode)
    _, _, err = serve("--config", str(file))
    warning = (
        f"kbroker: warning: every user of this machine can read ssl.key.password in {file}: run chmod 600 {file}\n"
    )
    assert (warning in err) is is_visible
    assert "s3cret" not in err


def test_a_missing_or_binary_file_is_one_line(serve: Serve, tmp_path: Path) -> None:
    code, _, err = serve("--config", str(tmp_path / "absent"))
    assert code == 2
    assert err.count("\n") == 1
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    code, _, err = serve("--config", str(file))
    assert code == 1
    assert "UTF-8" in err


def test_topics_have_a_count_or_the_default(serve: Serve, started: Started, tmp_path: Path) -> None:
    serve("--topic", "orders:3", "--topic", "events", "--data-dir", str(tmp_path))
    assert list(started.topics) == [("orders", 3), ("events", -1)]
    assert started.data_dir == str(tmp_path)


@pytest.mark.parametrize("text", ["orders:0", "orders:x", "orders:", "a/b:1", ":1", ""])
def test_an_invalid_topic_is_a_usage_error(serve: Serve, text: str) -> None:
    code, _, err = serve("--topic", text)
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize("host", ["", "192.0.2.1", "[2001:db8::1]", "kafka.example"])
def test_a_listener_for_other_machines_without_authentication_gets_a_warning(serve: Serve, host: str) -> None:
    code, _, err = serve("--listen", f"{host}:9092")
    assert code == 0
    assert err.count("\n") == 1
    assert err.startswith(f"kbroker: warning: PLAINTEXT://{host}:9092 ")
    assert "without authentication" in err


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "[::1]", "localhost"])
def test_a_listener_for_this_machine_gets_no_warning(serve: Serve, host: str) -> None:
    assert serve("--listen", f"{host}:9092")[2] == ""


@pytest.mark.parametrize(
    "failure",
    [
        UserError("the directory is in use"),
        ExceptionGroup("a nursery", [ExceptionGroup("another", [UserError("the directory is in use")])]),
    ],
)
def test_a_refused_start_is_one_line_and_code_1(serve: Serve, started: Started, failure: Exception) -> None:
    started.failure = failure
    assert serve() == (1, "", "kbroker: the directory is in use\n")


def test_an_unexpected_error_keeps_its_traceback(started: Started) -> None:
    started.failure = ZeroDivisionError("oops")
    with pytest.raises(ExceptionGroup):
        main(["serve"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_the_broker_to_stop(serve: Serve, started: Started, number: signal.Signals) -> None:
    was_asked = False

    async def until(stop: trio.Event) -> None:
        nonlocal was_asked
        os.kill(os.getpid(), number)
        await stop.wait()
        was_asked = True

    started.until = until
    assert serve()[0] == 0
    assert was_asked


def test_after_the_first_ctrl_c_the_default_handler_is_restored(serve: Serve, started: Started) -> None:
    handlers = []

    async def until(stop: trio.Event) -> None:
        handlers.append(signal.getsignal(signal.SIGINT))
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        await trio.testing.wait_all_tasks_blocked()
        handlers.append(signal.getsignal(signal.SIGINT))

    started.until = until
    before = signal.getsignal(signal.SIGINT)
    serve()
    assert handlers[0] not in (before, signal.SIG_DFL)
    assert handlers[1] == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before
