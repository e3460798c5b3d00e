"""`kbroker serve` as a process of its own, for tests in which it has to die."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

__all__ = ["ChildBroker", "child_broker", "spawn"]

PATIENCE_SECONDS = 90.0
READY = b"kbroker is ready on "


class ChildBroker:
    def __init__(self, process: trio.Process, errors: Path) -> None:
        self.process = process
        self.port = 0
        self._errors = errors

    @property
    def stderr(self) -> str:
        return self._errors.read_text(errors="replace")

    async def wait_ready(self) -> None:
        """Waits until the broker says on stdout that it is ready."""
        assert self.process.stdout is not None
        said = b""
        with trio.fail_after(PATIENCE_SECONDS):
            while b"\n" not in said:
                data = await self.process.stdout.receive_some()
                assert data, f"it ended before it was ready:\n{self.stderr}"
                said += data
        assert said.startswith(READY), said
        self.port = int(said.split(b"\n")[0].rpartition(b":")[2])

    async def kill(self) -> None:
        """kill -9: nothing more is written."""
        self.process.kill()
        await self.process.wait()

    async def terminate(self) -> int:
        """The exit code of a stop that was asked for."""
        self.process.terminate()
        with trio.fail_after(PATIENCE_SECONDS):
            return await self.process.wait()


async def spawn(
    data_dir: Path,
    *arguments: str,
    more_dirs: Sequence[Path] = (),
    within: Sequence[str] = (),
    listeners: str | None = None,
) -> ChildBroker:
    """`within`: command that runs the broker, for example in a namespace. `listeners`: instead of a plaintext port."""
    listen = ["--listen", "127.0.0.1:0"] if listeners is None else ["--set", f"listeners={listeners}"]
    command = [*within, sys.executable, "-m", "kbroker", "serve", *listen]
    if more_dirs:
        command += ["--set", f"log.dirs={','.join(map(str, (data_dir, *more_dirs)))}"]
    else:
        command += ["--data-dir", str(data_dir)]
    root = Path(__file__).parents[2]
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    errors = data_dir.with_name(data_dir.name + ".stderr")
    with errors.open("wb") as stderr:
        process = await trio.lowlevel.open_process(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr.fileno(),
            cwd=root,
        )
    return ChildBroker(process, errors)


@asynccontextmanager
async def child_broker(
    data_dir: Path, *arguments: str, more_dirs: Sequence[Path] = (), within: Sequence[str] = ()
) -> AsyncIterator[ChildBroker]:
    """Ready on entering; gone on leaving, however it went."""
    child = await spawn(data_dir, *arguments, more_dirs=more_dirs, within=within)
    try:
        await child.wait_ready()
        yield child
    finally:
        with trio.CancelScope(shield=True):
            await child.kill()
