"""Runs the command line in a thread of the test process, with a broker in the test's event loop."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from kbroker.cli.main import main
from kbroker.testing.running_broker import RunningBroker, running_broker


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Awaitable[Outcome]]


@pytest.fixture(autouse=True)
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hides the profiles of the person who runs the tests. Returns the directory for those of a test."""
    path = tmp_path / "config-home"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path))
    for name in ("KBROKER_PROFILE", "KBROKER_BOOTSTRAP", "KBROKER_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def call(broker: RunningBroker, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Returns `call`: `await call("topics", "list")` runs a command against the broker, with `stdin` as a pipe."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP", f"{broker.host}:{broker.port}")

    async def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        with io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))) as source:
            monkeypatch.setattr("sys.stdin", source)
            code = await trio.to_thread.run_sync(_exit_code, arguments)
        out, err = capfdbinary.readouterr()
        return Outcome(code, os.fsdecode(out), os.fsdecode(err))

    return run


def _exit_code(arguments: tuple[str, ...]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code
