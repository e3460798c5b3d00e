"""Fenced blocks of the pages: commands with their output, and source files. A comment before a block is a remark.

<!-- not run: REASON -->     the block is skipped
<!-- stops the broker -->    the broker is stopped for this block and restarted after it
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
    """Output below the command in a console block; empty in other blocks."""


def page_names() -> list[str]:
    paths = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md"))
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(match["kind"], match["text"], match["remark"] or "") for match in _BLOCK.finditer(text)]


def commands_in(block: Block) -> list[Command]:
    """Returns the commands of a block. In a console block they begin with `$`. <<END continues to the line END."""
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
