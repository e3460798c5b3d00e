"""Comparison of a page's console block with real output."""

from __future__ import annotations

import pytest

from tests.docs.pages import Block, commands_in
from tests.docs.screen import matches


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ([], ""),
        (["3 records"], "12 records\n"),
        (["NAME   PARTITIONS", "orders          3"], "NAME PARTITIONS\norders 12\n"),
        (["cluster Hg3ZkWmVTbCvJ1cCqVXo0A"], "cluster AAAAAAAAAAAAAAAAAAAA-_\n"),
        (["..."], "a\nb\nc\n"),
        (["...", "c"], "a\nb\nc\n"),
        (["...", "c"], "c\n"),
        (["a (b)", "..."], "a (b)\nrest\n"),
    ],
)
def test_the_same(shown: list[str], printed: str) -> None:
    assert matches(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ([], "something\n"),
        (["hello"], ""),
        (["hello"], "hallo\n"),
        (["hello"], "hello\nmore\n"),
        (["...", "c"], "a\nb\n"),
        (["1 record"], "1 records\n"),
    ],
)
def test_another(shown: list[str], printed: str) -> None:
    assert not matches(shown, printed)


def test_commands_are_separated_from_their_output() -> None:
    screen = Block("console", "$ cat > a <<END\nx\nEND\n$ cat a\nx\n", "")
    assert [(command.line, command.shown) for command in commands_in(screen)] == [
        ("cat > a <<END\nx\nEND", []),
        ("cat a", ["x"]),
    ]
    script = Block("sh", "# about it\nmake a    # why\n\nmake b\n", "")
    assert [command.line for command in commands_in(script)] == ["make a", "make b"]
