"""What the style page promises and a machine can check: docstrings, names, who may ask for the time."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "kbroker").rglob("*.py"))
BANNED_IN_CLASS_NAMES = re.compile(r"(Manager|Helper|Utils?|Impl)(?=[A-Z]|$)")
BANNED_FILE_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|misc|manager|impl)$")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def bad_class_names(tree: ast.Module) -> list[str]:
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [name for name in classes if BANNED_IN_CLASS_NAMES.search(name)]


def imported_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names


def calls_of_shared_randomness(tree: ast.Module) -> list[int]:
    """Lines that draw from the process-wide generator; `random.Random` objects are handed in instead."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and node.attr[0].islower()
    ]


TREES = {name_of(path): tree_of(path) for path in MODULES}


def test_every_module_opens_with_a_docstring() -> None:
    assert [name for name, tree in TREES.items() if not ast.get_docstring(tree)] == []


# What users import by name from a package. It may say where the names live, and import none of it before it is asked
# for: pytest loads kbroker.testing in every run of everybody who has kbroker installed, and kbroker.pipeline works
# without pyspark until a function of Spark is used.
LAZY_PACKAGES = ("kbroker/testing/__init__.py", "kbroker/pipeline/__init__.py")


def test_a_package_holds_just_a_docstring() -> None:
    packages = {name: tree for name, tree in TREES.items() if name.endswith("__init__.py")}
    assert [name for name, tree in packages.items() if len(tree.body) != 1 and name not in LAZY_PACKAGES] == []


def imports_on_import(tree: ast.Module) -> list[str]:
    """What a module imports by being imported; what stands under `if TYPE_CHECKING` or in a function is not."""
    return [
        node.module or "" if isinstance(node, ast.ImportFrom) else ", ".join(alias.name for alias in node.names)
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]


@pytest.mark.parametrize("name", LAZY_PACKAGES)
def test_a_lazy_package_imports_nothing_and_defines_no_class(name: str) -> None:
    tree = TREES[name]
    assert imports_on_import(tree) == ["__future__", "typing"]
    *_, lazily = tree.body
    assert isinstance(lazily, ast.If)
    assert ast.unparse(lazily.test) == "TYPE_CHECKING"
    assert [type(node) for node in tree.body] == [ast.Expr, ast.ImportFrom, ast.ImportFrom, ast.Assign, ast.If]
    assert {type(node) for node in lazily.body} == {ast.ImportFrom}
    functions = [node for node in lazily.orelse if not isinstance(node, ast.Assign)]
    assert [node.name for node in functions if isinstance(node, ast.FunctionDef)] == ["__getattr__", "__dir__"]
    assert len(functions) == 2


def test_an_import_on_import_is_seen() -> None:
    source = "import a\nfrom b import c\nif TYPE_CHECKING:\n    import d\ndef f(): import e"
    assert imports_on_import(ast.parse(source)) == ["a", "b"]


def test_no_class_has_a_name_that_says_nothing() -> None:
    assert {name: bad for name, tree in TREES.items() if (bad := bad_class_names(tree))} == {}


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [name_of(path) for path in MODULES if BANNED_FILE_NAMES.search(path.stem)] == []


def test_nobody_draws_from_the_shared_random_generator() -> None:
    assert {name: lines for name, tree in TREES.items() if (lines := calls_of_shared_randomness(tree))} == {}


def test_only_the_clock_asks_for_the_time() -> None:
    assert [name for name, tree in TREES.items() if "time" in imported_names(tree)] == ["kbroker/clock.py"]


def test_every_directory_with_modules_is_a_package() -> None:
    directories = {path.parent for path in MODULES}
    assert [name_of(d) for d in sorted(directories) if not (d / "__init__.py").exists()] == []


@pytest.mark.parametrize("name", ["GroupManager", "UtilBox", "HelperOfAll", "LogImpl", "StringUtils"])
def test_an_empty_class_name_is_seen(name: str) -> None:
    assert bad_class_names(ast.parse(f"class {name}: ...")) == [name]


@pytest.mark.parametrize("name", ["Utility", "Implicit", "Manage", "LeaderView"])
def test_a_telling_class_name_passes(name: str) -> None:
    assert bad_class_names(ast.parse(f"class {name}: ...")) == []


def test_shared_randomness_is_seen() -> None:
    assert calls_of_shared_randomness(ast.parse("random.choice(x)\nrandom.Random(1)")) == [1]
