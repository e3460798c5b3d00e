"""Questions before data is lost: asked on a terminal only."""

from __future__ import annotations

import io

import pytest

from kbroker.cli.output import confirm, format_bytes
from kbroker.errors import UserError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_answer_decides(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("y\nn\n"))
    confirm("Delete a?", yes=False)
    with pytest.raises(UserError, match=r"^Nothing was changed$"):
        confirm("Delete b?", yes=False)
    assert capsys.readouterr().err == "Delete a? [y/N]: Delete b? [y/N]: "


def test_yes_asks_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(""))
    confirm("Delete a?", yes=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.0 GiB"), (2 << 40, "2.0 TiB")],
)
def test_sizes_have_a_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text
