"""The file of the embedded tree; see test_tree_contract.py for the contract."""

from __future__ import annotations

import errno
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from kbroker.controller.trees.embedded_tree import open_embedded_tree
from kbroker.controller.trees.metadata_file import storage_failure
from kbroker.controller.trees.tree import Create, NodeExists, SetData
from kbroker.errors import StorageFailure, UserError


async def test_nodes_zxids_and_counters_outlive_the_process_but_ephemeral_nodes_do_not(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with open_embedded_tree(path) as tree:
        await tree.multi([Create("/a", b"1"), Create("/a/n_", sequential=True), Create("/e", ephemeral=True)])
        stat = await tree.set("/a", b"2")
        first_session = tree.session_id
    async with open_embedded_tree(path) as tree:
        assert await tree.get("/a") == (b"2", stat)
        assert await tree.children("/") == ["a"]
        assert tree.session_id > stat.mzxid > first_session
        assert await tree.create("/a/n_", sequential=True) == "/a/n_0000000001"
        assert (await tree.get("/a/n_0000000001")).stat.czxid > tree.session_id


WRITER = """
import sys, trio
from kbroker.controller.trees.embedded_tree import open_embedded_tree

async def main():
    async with open_embedded_tree(sys.argv[1]) as tree:
        await tree.create("/n", b"0")
        await tree.create("/e", ephemeral=True)
        for number in range(1, 1_000_000):
            await tree.set("/n", str(number).encode())
            print(number, flush=True)

trio.run(main)
"""


def write_until_killed(path: Path) -> int:
    """Returns the last number whose write was answered."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        return [20, *(int(line) for line in writer.stdout.read().split(b"\n")[:-1])][-1]


async def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    answered = write_until_killed(path)
    async with open_embedded_tree(path) as tree:
        data, stat = await tree.get("/n")
        # The process may be killed between the commit and the print.
        assert int(data) - answered in (0, 1)
        assert stat.version == int(data)
        assert await tree.children("/") == ["n"]


async def test_one_file_has_one_opener(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with open_embedded_tree(path) as tree:
        with pytest.raises(UserError, match="in use by another process"):
            async with open_embedded_tree(path):
                pass
        await tree.create("/still-works")
    async with open_embedded_tree(path) as tree:
        assert await tree.children("/") == ["still-works"]


def modes_in(directory: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in directory.iterdir()}


async def test_others_cannot_read_a_new_file_or_its_log(tmp_path: Path) -> None:
    async with open_embedded_tree(tmp_path / "metadata.db") as tree:
        await tree.create("/a", b"hash of a password")
        modes = modes_in(tmp_path)
    assert modes == {"metadata.db": 0o600, "metadata.db-wal": 0o600}


async def test_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with open_embedded_tree(path) as tree:
        await tree.create("/e", ephemeral=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(UserError, match="format 99"):
        async with open_embedded_tree(path):
            pass
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM node WHERE owner != 0").fetchone() == (1,)
    connection.close()


async def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"not a database, but long enough to look into" * 50)
    with pytest.raises(UserError, match="is not a metadata file"):
        async with open_embedded_tree(path):
            pass


async def test_a_missing_directory_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot open the metadata file"):
        async with open_embedded_tree(tmp_path / "missing" / "metadata.db"):
            pass


async def test_a_full_disk_refuses_the_write_and_keeps_what_was_there(tmp_path: Path) -> None:
    async with open_embedded_tree(tmp_path / "metadata.db") as tree:
        await tree.create("/a", b"kept")
        # SQLite's limit of pages causes the same error as a full disk.
        tree._store._connection.execute("PRAGMA max_page_count = 12")
        with pytest.raises(StorageFailure) as failure:
            await tree.multi([SetData("/a", b"lost"), Create("/b", bytes(500_000))])
        assert failure.value.is_full
        assert (await tree.get("/a")).data == b"kept"
        tree._store._connection.execute("PRAGMA max_page_count = 100000")
        await tree.create("/b", bytes(500_000))
        with pytest.raises(NodeExists):
            await tree.create("/b")


@pytest.mark.parametrize(("number", "is_full"), [(errno.EDQUOT, True), (errno.ENOSPC, True), (errno.EIO, False)])
def test_a_failed_write_of_sqlite_is_a_full_disk_if_another_file_finds_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_full: bool
) -> None:
    def fail(*_arguments: object) -> NoReturn:
        raise OSError(number, "no")

    failure = sqlite3.OperationalError("disk I/O error")
    failure.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    path = str(tmp_path / "metadata.db")
    assert not storage_failure(failure, path).is_full  # the trial write succeeds
    monkeypatch.setattr("os.write", fail)
    assert storage_failure(failure, path).is_full is is_full
    assert list(tmp_path.iterdir()) == []


def test_a_failed_fsync_of_sqlite_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = sqlite3.OperationalError("disk I/O error")
    failure.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    monkeypatch.delattr("os.write")  # nothing is tried: the data may be lost
    assert not storage_failure(failure, str(tmp_path / "metadata.db")).is_full
