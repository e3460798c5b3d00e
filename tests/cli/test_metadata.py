"""`kbroker metadata`: export and import between data directories; refused while a broker runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from kbroker.cli.commands.metadata import _data_from_json, _data_to_json
from kbroker.cli.main import main
from kbroker.testing.running_broker import running_broker
from tests.cli.conftest import Call

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["metadata", *map(str, arguments)])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Returns the data directory of a stopped broker with one topic."""

    async def make() -> None:
        async with running_broker(tmp_path / "data", topics=[("orders", 2)]):
            pass

    trio.run(make)
    return tmp_path / "data"


def test_an_import_equals_its_export(run: Run, data_dir: Path, tmp_path: Path) -> None:
    file, copy = tmp_path / "metadata.json", tmp_path / "copy"
    code, out, err = run("export", file, "--data-dir", data_dir)
    assert (code, out) == (0, "")
    assert re.fullmatch(r"Exported \d+ nodes\.\n", err)
    nodes = {node["path"]: node["data"] for node in json.loads(file.read_text())["nodes"]}
    assert set(nodes["/brokers/topics/orders"]["partitions"]) == {"0", "1"}
    assert run("import", file, "--data-dir", copy)[0] == 0
    assert run("export", "--data-dir", copy)[1] == file.read_text()


def test_a_broker_starts_from_imported_metadata(run: Run, data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    run("export", file, "--data-dir", data_dir)
    copy = tmp_path / "copy"
    run("import", file, "--data-dir", copy)

    async def names() -> list[str]:
        from kbroker.client.address import Address
        from kbroker.client.cluster import open_cluster

        async with running_broker(copy) as broker, open_cluster([Address(broker.host, broker.port)]) as cluster:
            return [topic.name for topic in await cluster.topics()]

    assert trio.run(names) == ["orders"]


def test_metadata_is_replaced_only_with_replace(run: Run, data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    file.write_text(json.dumps({"format": 1, "nodes": [{"path": "/only", "data": "x"}]}))
    code, _, err = run("import", file, "--data-dir", data_dir)
    assert (code, err.count("\n"), "--replace" in err) == (1, 1, True)
    assert "orders" in run("export", "--data-dir", data_dir)[1]
    assert run("import", file, "--data-dir", data_dir, "--replace")[0] == 0
    assert json.loads(run("export", "--data-dir", data_dir)[1])["nodes"] == [{"path": "/only", "data": "x"}]


async def test_the_metadata_of_a_running_broker_is_refused(call: Call, tmp_path: Path) -> None:
    for command in ("export", "import"):
        file = tmp_path / "file.json"
        file.write_text('{"format": 1, "nodes": []}')
        code, out, err = await call("metadata", command, str(file), "--data-dir", str(tmp_path / "data"))
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "Stop the broker first" in err
        assert file.read_text() == '{"format": 1, "nodes": []}'


def test_a_directory_without_metadata_is_one_line_and_is_not_changed(run: Run, tmp_path: Path) -> None:
    code, out, err = run("export", "--data-dir", tmp_path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 2, "nodes": []}',
        '{"format": 1}',
        '{"format": 1, "nodes": [{"path": "/a"}]}',
        '{"format": 1, "nodes": [{"path": "/a", "data": {"base64": "?"}}]}',
        '{"format": 1, "nodes": [{"path": "no-slash", "data": ""}]}',
        '{"format": 1, "nodes": [{"path": "/a/b", "data": ""}]}',
    ],
)
def test_an_invalid_export_is_one_line_and_changes_nothing(run: Run, data_dir: Path, tmp_path: Path, text: str) -> None:
    before = run("export", "--data-dir", data_dir)[1]
    file = tmp_path / "metadata.json"
    file.write_text(text)
    code, out, err = run("import", file, "--data-dir", data_dir, "--replace")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert run("export", "--data-dir", data_dir)[1] == before


@pytest.mark.parametrize(
    "data", [b"", b"text", b"\xff\x00", b'{"a":1}', b'{"a": 1}', b'{"base64":"AA=="}', b"[1]", b"null", b'"x"']
)
def test_data_survives_json_byte_for_byte(data: bytes) -> None:
    assert _data_from_json(json.loads(json.dumps(_data_to_json(data)))) == data
