"""Names that cannot be mistaken: one public type for a name, one value for a constant, plain docstrings."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "kbroker").rglob("*.py"))
}
# These modules declare what Kafka's message specs declare, under the names of the specs.
SPECS = re.compile(r"kbroker/protocol/(messages/|group_records|transaction_records|consumer_protocol)")
MAX_METHODS = 40
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# The docstring of a function begins with a verb in the third person, with Whether, with a parameter (of a constructor),
# or refers to a function that it resembles. Help texts of commands and fixtures are for users: they are exempt.
GOOD_OPENING = re.compile(
    r"(Whether|Like|See|Called|`|(?!Paths|Names|Partitions|Configs|Offsets)[A-Z][a-z]+s[,.;:]?\s)"
)
FOR_USERS = re.compile(r"\b(command|group|fixture)\b")
RAISES_ALONE = re.compile(r"\bRaises [A-Z]\w+\.(?=$|\s)", re.MULTILINE)
# A docstring says what a function does ("Returns ...", "Whether ...") or what a type is ("Client connection ...").
BAD_OPENING = re.compile(
    r"(What|Who|Whoever|Whatever|Where|How|Which|Why|Of|With|Without|In|As|For|From|By|At|To|Until|After|Before|Or|So|"
    r"If|Only|Those|All)\b"
)

Doubles = dict[str, list[str]]


def public_types(tree: ast.Module) -> Iterator[str]:
    """Yields the names of classes and of type aliases at the top of a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if re.fullmatch(r"[A-Z][a-z]\w*", name):
                yield name


def doubled_types(trees: dict[str, ast.Module]) -> Doubles:
    homes: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        if not SPECS.match(path):
            for name in public_types(tree):
                homes[name].append(path)
    return {name: paths for name, paths in homes.items() if len({package_of(path) for path in paths}) > 1}


def package_of(path: str) -> str:
    return path.split("/")[1]


def exported_names(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def exported_constants(tree: ast.Module) -> Iterator[tuple[str, object]]:
    exported = exported_names(tree)
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name, value = node.target.id, node.value
        else:
            continue
        if name in exported and isinstance(value, ast.Constant):
            yield name, value.value


def contradicting_constants(trees: dict[str, ast.Module]) -> Doubles:
    values: dict[str, dict[object, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, tree in trees.items():
        for name, value in exported_constants(tree):
            values[name][value].append(path)
    return {name: sorted(chain(*homes.values())) for name, homes in values.items() if len(homes) > 1}


def method_counts(tree: ast.Module) -> dict[str, int]:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {node.name: sum(isinstance(member, FUNCTIONS) for member in node.body) for node in classes}


def badly_opened(tree: ast.Module) -> list[str]:
    documented = [node for node in ast.walk(tree) if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module))]
    docstrings = [ast.get_docstring(node) or "" for node in documented]
    return [docstring.split("\n")[0] for docstring in docstrings if BAD_OPENING.match(docstring)]


def functions_without_verb(tree: ast.Module) -> list[str]:
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and not any(FOR_USERS.search(ast.unparse(part)) for part in node.decorator_list)
    ]
    docstrings = [ast.get_docstring(node) for node in functions]
    return [text.split("\n")[0] for text in docstrings if text is not None and not GOOD_OPENING.match(text + " ")]


def exceptions_without_condition(tree: ast.Module) -> list[str]:
    documented = [node for node in ast.walk(tree) if isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    return [found for node in documented for found in RAISES_ALONE.findall(ast.get_docstring(node) or "")]


def synchronous_waits(tree: ast.Module) -> list[str]:
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("wait_")]


def test_no_public_type_has_a_double_in_another_package() -> None:
    assert doubled_types(TREES) == {}


def test_no_public_constant_has_two_values() -> None:
    assert contradicting_constants(TREES) == {}


def test_no_class_has_too_many_methods() -> None:
    counts = {f"{path}: {name}": count for path, tree in TREES.items() for name, count in method_counts(tree).items()}
    assert {name: count for name, count in counts.items() if count > MAX_METHODS} == {}


def test_docstrings_open_with_what_is_done() -> None:
    assert {path: bad for path, tree in TREES.items() if (bad := badly_opened(tree))} == {}


def test_docstrings_of_functions_open_with_a_verb() -> None:
    assert {path: bad for path, tree in TREES.items() if (bad := functions_without_verb(tree))} == {}


def test_docstrings_say_when_an_exception_is_raised() -> None:
    assert {path: bad for path, tree in TREES.items() if (bad := exceptions_without_condition(tree))} == {}


def test_nothing_synchronous_is_called_wait() -> None:
    assert {path: names for path, tree in TREES.items() if (names := synchronous_waits(tree))} == {}


def test_a_double_is_seen_and_a_spec_is_exempt() -> None:
    tree = ast.parse("class Partition: ...\nKey = tuple[str, int]\nclass _Own: ...")
    trees = dict.fromkeys(["kbroker/log/a.py", "kbroker/log/b.py", "kbroker/protocol/messages/fetch.py"], tree)
    assert doubled_types(trees) == {}
    trees["kbroker/client/c.py"] = tree
    assert sorted(doubled_types(trees)) == ["Key", "Partition"]


def test_a_contradicting_constant_is_seen() -> None:
    trees = {
        "a": ast.parse("__all__ = ['SIZE']\nSIZE: Final = 1\nOWN = 1"),
        "b": ast.parse("__all__ = ['SIZE']\nSIZE = 2\nOWN = 2"),
    }
    assert contradicting_constants(trees) == {"SIZE": ["a", "b"]}


def test_methods_are_counted() -> None:
    assert method_counts(ast.parse("class A:\n    x = 1\n    def f(self): ...\n    async def g(self): ...")) == {"A": 2}


@pytest.mark.parametrize("opening", ["What a line is.", "Until it ends, nothing else runs.", "Whoever asks gets it."])
def test_a_riddle_is_seen(opening: str) -> None:
    assert badly_opened(ast.parse(f'def f(): """{opening}"""')) == [opening]


@pytest.mark.parametrize("opening", ["Whether it is empty.", "Returns the offset.", "Forgets idle clients."])
def test_a_plain_opening_passes(opening: str) -> None:
    assert badly_opened(ast.parse(f'def f(): """{opening}"""')) == []


@pytest.mark.parametrize("opening", ["The newest image.", "Log end offset of the copy.", "Paths of all indexes."])
def test_a_function_without_a_verb_is_seen(opening: str) -> None:
    assert functions_without_verb(ast.parse(f'def f(): """{opening}"""')) == [opening]


@pytest.mark.parametrize("opening", ["Whether it is empty.", "Returns it.", "`rack`: of this broker.", "See `f`."])
def test_a_function_with_a_verb_passes(opening: str) -> None:
    assert functions_without_verb(ast.parse(f'def f(): """{opening}"""')) == []


def test_an_exception_without_a_condition_is_seen() -> None:
    tree = ast.parse('def f(): """Returns it. Raises Refusal."""\ndef g(): """Raises Refusal if it is late."""')
    assert exceptions_without_condition(tree) == ["Raises Refusal."]


def test_a_synchronous_wait_is_seen() -> None:
    assert synchronous_waits(ast.parse("def wait_for_it(): ...\nasync def wait_long(): ...")) == ["wait_for_it"]
