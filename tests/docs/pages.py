"""Fenced blocks of the pages: commands with what the screen shows, and sources. A comment before one says more of it.

<!-- not run: REASON -->     the block is passed over
<!-- stops the broker -->    its commands want a broker that is stopped; it comes back afterwards
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ROOT", "Block", "Command", "blocks_of", "commands_in", "page_names"]

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(
    r"^(?:<!-- (?P<remark>[^\n]*) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_FILE_NAME = re.compile(r"# (\w+\.py)\n")


@dataclass
class Block:
    kind: str
    text: str
    remark: str

    @property
    def is_run(self) -> bool:
        return not self.remark.startswith("not run: ")

    @property
    def file_name(self) -> str | None:
        match = _FILE_NAME.match(self.text)
        return match[1] if match is not None else None


@dataclass
class Command:
    line: str
    shown: list[str] = field(default_factory=list)
    """What the page shows under it; None of it in a block that is no picture of a screen."""


def page_names() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(each["kind"], each["text"], each["remark"] or "") for each in _BLOCK.finditer(text)]


def commands_in(block: Block) -> list[Command]:
    """A screen has `$` before what is typed; a script is commands alone. <<END goes on to its end."""
    commands: list[Command] = []
    is_open = False
    for line in block.text.splitlines():
        if is_open:
            commands[-1].line += f"\n{line}"
            is_open = line != "END"
        elif block.kind == "console" and line.startswith("$ "):
            commands.append(Command(line[2:]))
            is_open = line.endswith("<<END")
        elif block.kind == "console":
            commands[-1].shown.append(line)
        elif line and not line.startswith("#"):
            commands.append(Command(line.partition("  #")[0].rstrip()))
    return commands
