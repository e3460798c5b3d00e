"""`kbroker serve --secure`: a process that newcomers can use, its second start, and what it makes in the directory."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.apache_kafka import JavaTools
from kbroker.cli.main import main
from kbroker.cli.secure_node import SecureNode, prepare_secure_node
from kbroker.clock import SystemClock
from kbroker.errors import UserError
from kbroker.security.certificate import read_certificate
from kbroker.security.cryptography_library import new_authority
from kbroker.security.pem import read_certificates

NOW_MS = int(datetime(2026, 1, 31, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000


class Secured:
    """A process of `kbroker serve --secure` on a free port."""

    def __init__(self, *arguments: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "kbroker", "serve", "--secure", "--listen", "127.0.0.1:0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._popen.stdout is not None
        self.lines: list[str] = []
        """What it has printed, until the ready line."""
        while not self.lines or not self.lines[-1].startswith("kbroker is ready on "):
            line = self._popen.stdout.readline()
            if not line:
                pytest.fail(f"it did not start: {self._popen.communicate()}")
            self.lines.append(line.rstrip("\n"))
        self.bootstrap = self.lines[-1].split()[-1]

    def stop(self) -> str:
        """Returns the rest of what it has printed."""
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self._popen.send_signal(signal.SIGTERM)
        # Not with communicate(): it would miss what readline() has taken into its buffer.
        out, err = self._popen.stdout.read(), self._popen.stderr.read()
        assert self._popen.wait(timeout=60) == 0, err
        return out + err

    def kill(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Secured]]:
    started: list[Secured] = []

    def begin(*arguments: str) -> Secured:
        started.append(Secured("--data-dir", str(tmp_path / "data"), *arguments))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def prepare(data_dir: Path, *hosts: str, now_ms: int = NOW_MS) -> SecureNode:
    return prepare_secure_node(data_dir, hosts=hosts, now_ms=now_ms)


def contents(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in directory.iterdir()}


def test_admin_and_a_user_with_acls_use_a_secured_broker(
    start: Callable[..., Secured],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = start()
    secure = tmp_path / "data" / "secure"
    password = broker.lines[0].partition("with the password ")[2].partition(",")[0]
    assert f'password="{password}"' in (secure / "client.properties").read_text()
    assert f"sasl.password={password}\n" in (secure / "librdkafka.properties").read_text()
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap)
    admin = ("--command-config", str(secure / "client.properties"))
    assert run("topics", "create", "orders", "--partitions", "1", *admin) == 0
    monkeypatch.setenv("KBROKER_USER_PASSWORD", "a-secret")
    assert run("users", "add", "alice", *admin) == 0
    alice = tmp_path / "alice.properties"
    text = (secure / "client.properties").read_text()
    alice.write_text(text.replace(password, "a-secret").replace('"admin"', '"alice"'))
    capsys.readouterr()
    assert run("topics", "list", "--command-config", str(alice)) == 0
    assert "orders" not in capsys.readouterr().out  # ACLs are on
    assert run("acls", "allow", "User:alice", "read", "--topic", "orders", *admin) == 0
    capsys.readouterr()
    assert run("topics", "list", "--command-config", str(alice)) == 0
    assert "orders" in capsys.readouterr().out
    assert run("topics", "list") == 1  # without TLS
    before = contents(secure)
    printed = broker.stop()
    assert f"kbroker topics list -b {broker.bootstrap} --command-config {secure / 'client.properties'}" in printed
    assert password not in printed

    again = start()
    assert again.lines == [f"kbroker is ready on {again.bootstrap}"]
    assert contents(secure) == before
    monkeypatch.setenv("KBROKER_BOOTSTRAP", again.bootstrap)
    capsys.readouterr()
    assert run("topics", "list", *admin) == 0
    assert "orders" in capsys.readouterr().out
    assert password not in again.stop()


def test_librdkafka_uses_its_file(start: Callable[..., Secured], tmp_path: Path) -> None:
    broker = start("--topic", "orders:1")
    file = tmp_path / "data" / "secure" / "librdkafka.properties"
    settings = dict(line.split("=", 1) for line in file.read_text().splitlines())
    admin = AdminClient({**settings, "bootstrap.servers": broker.bootstrap})
    assert list(admin.list_topics(timeout=30).topics) == ["orders"]


@pytest.mark.jvm
@pytest.mark.slow
def test_the_tools_of_kafka_use_their_file(
    start: Callable[..., Secured], java: str, judge_classpath: str, tmp_path: Path
) -> None:
    broker = start("--topic", "orders:1")
    tools = JavaTools(java, judge_classpath, tmp_path)
    file = str(tmp_path / "data" / "secure" / "client.properties")
    command = ("--bootstrap-server", broker.bootstrap, "--command-config", file, "--list")
    assert tools.run("org.apache.kafka.tools.TopicCommand", *command).split() == ["orders"]


def test_only_the_owner_can_read_what_is_made(tmp_path: Path) -> None:
    data = tmp_path / "data"
    prepare(data)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (data, *(data / "secure").iterdir())}
    assert modes == {
        "data": 0o700,
        "ca.pem": 0o644,
        "ca.key": 0o600,
        "broker.pem": 0o600,
        "client.properties": 0o600,
        "librdkafka.properties": 0o600,
        "metrics.token": 0o600,
    }


def test_the_password_is_never_in_a_repr(tmp_path: Path) -> None:
    node = prepare(tmp_path / "data")
    assert node.new_password
    assert node.new_password not in repr(node)


def test_a_crash_before_the_user_was_stored_makes_another_password(tmp_path: Path) -> None:
    first = prepare(tmp_path / "data")
    for file in (tmp_path / "data").glob("kbroker-metadata.db*"):
        file.unlink()
    second = prepare(tmp_path / "data")
    assert second.new_password not in (None, first.new_password)
    assert f'password="{second.new_password}"' in second.client_file.read_text()
    assert prepare(tmp_path / "data").new_password is None


@pytest.mark.parametrize(
    ("hosts", "days", "is_new"),
    [((), 1, False), ((), 336, True), (("kafka.example.com",), 1, True), (("192.0.2.1",), 1, True)],
)
def test_the_broker_gets_a_new_certificate_when_it_needs_one(
    tmp_path: Path, hosts: tuple[str, ...], days: int, is_new: bool
) -> None:
    prepare(tmp_path / "data")
    secure = tmp_path / "data" / "secure"
    before = contents(secure)
    prepare(tmp_path / "data", *hosts, now_ms=NOW_MS + days * DAY_MS)
    after = contents(secure)
    assert (after.pop("broker.pem") != before.pop("broker.pem")) == is_new
    assert after == before
    certificate = read_certificate(read_certificates((secure / "broker.pem").read_text())[0])
    ends = datetime.fromtimestamp(NOW_MS / 1000, UTC) + timedelta(days=days + 30)
    assert certificate.not_after > ends
    names = {content for _, content in certificate.alternative_names}
    assert set(hosts) & {"kafka.example.com"} <= {name.decode("latin-1") for name in names}
    assert prepare(tmp_path / "data", *hosts, now_ms=NOW_MS + days * DAY_MS).new_password is None


def test_a_certificate_of_another_authority_is_left_alone(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    file = tmp_path / "data" / "secure" / "broker.pem"
    foreign = new_authority("our organization", not_before=datetime.fromtimestamp(NOW_MS / 1000, UTC), days=1)
    file.write_text(foreign.key + foreign.certificate)
    prepare(tmp_path / "data", "kafka.example.com")
    assert file.read_text() == foreign.key + foreign.certificate


def test_a_damaged_certificate_is_one_line(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    file = tmp_path / "data" / "secure" / "broker.pem"
    file.write_text("nothing")
    with pytest.raises(UserError, match=f"{file} has no certificate. Remove the file"):
        prepare(tmp_path / "data")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "authorizer.class.name=kafka.security.authorizer.AclAuthorizer"), "--secure sets authorizer.class"),
        (("--set", "listeners=PLAINTEXT://127.0.0.1:0"), "--secure sets listeners"),
        (("--set", "ssl.keystore.location=mine.pem"), "--secure sets ssl.keystore.location"),
        (("--set", "zookeeper.connect=127.0.0.1:2181"), "--secure is for a single node"),
    ],
)
def test_properties_that_contradict_it_are_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert run("serve", "--secure", "--data-dir", str(tmp_path / "data"), *arguments) == 1
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_directory_in_use_is_refused(start: Callable[..., Secured], tmp_path: Path) -> None:
    start()
    with pytest.raises(UserError, match="is in use by a broker"):
        prepare_secure_node(tmp_path / "data", hosts=(), now_ms=SystemClock().now_ms())
