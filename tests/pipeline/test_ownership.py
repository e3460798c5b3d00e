"""A checkpoint belongs to one pipeline and one process, a Parquet table to one checkpoint. A conflict is one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.errors import UserError
from kbroker.pipeline.ownership import PipelineCheckpoint, claim_checkpoint, claim_table

HOLD_LOCK = """
import sys
from kbroker.pipeline.ownership import claim_checkpoint
claim_checkpoint(sys.argv[1], name="orders", kind="archive", destination="lake")
print("locked", flush=True)
sys.stdin.read()
"""


def claim(
    directory: Path, *, name: str = "orders", kind: str = "archive", destination: str = "lake"
) -> PipelineCheckpoint:
    return claim_checkpoint(str(directory), name=name, kind=kind, destination=destination)


def test_the_same_pipeline_gets_its_checkpoint_again(tmp_path: Path) -> None:
    first = claim(tmp_path / "state")
    assert claim(tmp_path / "state").owner == first.owner


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": "refunds"}, "its name is orders, not refunds"),
        ({"kind": "transform"}, "its kind is archive, not transform"),
        ({"destination": "pond"}, "its destination is lake, not pond"),
    ],
)
def test_a_checkpoint_of_another_pipeline_is_refused(tmp_path: Path, changed: dict[str, str], reason: str) -> None:
    claim(tmp_path)
    with pytest.raises(UserError, match=f"belongs to another pipeline: {reason}. Choose a new checkpoint"):
        claim(tmp_path, **changed)


def test_a_directory_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(UserError, match=r"is not empty \(photo.jpg\) and does not belong to a pipeline of kbroker"):
        claim(tmp_path)


def test_a_checkpoint_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be used: "):
        claim(tmp_path / "file" / "state")


def test_a_running_pipeline_is_not_started_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD_LOCK, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match=r"Another process runs the pipeline of checkpoint .*Stop it first"):
            claim(tmp_path)
        other.communicate()
    claim(tmp_path)


def test_offsets_of_another_cluster_are_refused(tmp_path: Path) -> None:
    claim(tmp_path).check_cluster("first")
    claim(tmp_path).check_cluster("first")
    claim(tmp_path).check_cluster(None)
    with pytest.raises(
        UserError, match=r"holds offsets of cluster first, but source.bootstrap leads to cluster second"
    ):
        claim(tmp_path).check_cluster("second")


def test_columns_may_be_added_but_not_change_their_type(tmp_path: Path) -> None:
    claim(tmp_path).check_columns({"id": "bigint"}, table="lake")
    claim(tmp_path).check_columns({"id": "bigint", "amount": "double"}, table="lake")
    claim(tmp_path).check_columns({"id": "bigint"}, table="lake")
    with pytest.raises(UserError, match=r"Column amount is double in lake and would become string. Keep its type"):
        claim(tmp_path).check_columns({"id": "bigint", "amount": "string"}, table="lake")


def test_a_table_belongs_to_one_checkpoint(tmp_path: Path) -> None:
    table = tmp_path / "lake"
    claim_table(str(table), claim(tmp_path / "one"))
    claim_table(str(table), claim(tmp_path / "one"))
    with pytest.raises(UserError, match=r"belongs to pipeline orders with checkpoint .*one\. Use this checkpoint, or"):
        claim_table(str(table), claim(tmp_path / "two"))


def test_a_directory_with_other_files_is_no_table(tmp_path: Path) -> None:
    table = tmp_path / "lake"
    table.mkdir()
    (table / "photo.jpg").touch()
    with pytest.raises(UserError, match=r"is not empty, and no pipeline of kbroker wrote it\. Choose a new directory"):
        claim_table(str(table), claim(tmp_path / "state"))


def test_a_table_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Table .* cannot be written: Not a directory"):
        claim_table(str(tmp_path / "file" / "lake"), claim(tmp_path / "state"))
