"""A Spark worker reads zip files once, not before each task, and its modules are not garbage-collected each time."""

from __future__ import annotations

import gc
import importlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipimport import zipimporter

import pytest

from kbroker.pipeline.two_phase.decision import TaskResult
from kbroker.pipeline.worker_imports import settle_worker


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Begins and ends without frozen objects, like a new worker of Spark."""
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.fixture
def zipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Puts a zip file with the package `zipped_package` on the path and imports the package."""
    target = tmp_path / "zipped.zip"
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("zipped_package/__init__.py", "")
        archive.writestr("zipped_package/first.py", "number = 1")
        archive.writestr("zipped_package/second.py", "number = 2")
    monkeypatch.syspath_prepend(str(target))
    for name in ("zipped_package", "zipped_package.first", "zipped_package.second"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert importlib.import_module("zipped_package.first").number == 1
    return str(target)


def zip_importers() -> list[str]:
    return [path for path, importer in sys.path_importer_cache.items() if isinstance(importer, zipimporter)]


def test_importers_of_zip_files_are_forgotten_and_made_again(zipped: str) -> None:
    assert {zipped, f"{zipped}/zipped_package"} <= set(zip_importers())
    settle_worker()
    assert zip_importers() == []
    assert importlib.import_module("zipped_package.second").number == 2


def test_the_first_task_of_a_worker_hides_its_modules_from_the_garbage_collector() -> None:
    earlier: list[Any] = []
    earlier.append(earlier)
    settle_worker()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    later: list[Any] = []
    settle_worker()
    assert gc.get_freeze_count() <= frozen
    assert any(found is later for found in gc.get_objects())
    assert not any(found is earlier for found in gc.get_objects())


def test_a_task_of_the_sink_forgets_them(zipped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark")
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyspark import TaskContext

    from kbroker.pipeline import exactly_once

    context = SimpleNamespace(partitionId=lambda: 0, attemptNumber=lambda: 0, taskAttemptId=lambda: 0)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    plan: Any = SimpleNamespace(write=lambda *_: TaskResult(0, 0, 0, None))
    assert zipped in zip_importers()
    (_result,) = exactly_once.task_of(plan)(iter(()))
    assert zip_importers() == []


def test_a_task_of_kbroker_log_forgets_them(zipped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark")
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    from kbroker.pipeline import segments

    monkeypatch.setattr(segments, "read_segment", lambda *_, **__: iter(["batch"]))
    reader = segments.SegmentReader("/", segments.read_selection({}), has_headers=False)
    task: Any = None
    assert list(reader.read(segments.SegmentPartition(task))) == ["batch"]
    assert zip_importers() == []
