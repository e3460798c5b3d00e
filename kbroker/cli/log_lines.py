"""How the log of a broker looks: lines for people on a terminal, an object on each line for programs elsewhere.

Everything goes to stderr. What a line knows beyond its words (`extra=` of the call) is a field of the object.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, TextIO

__all__ = ["FORMATS", "LEVELS", "JsonLines", "TextLines", "is_json", "set_up_logging"]

FORMATS: Final = ("auto", "text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")


class JsonLines(logging.Formatter):
    """Traceback and all on one line: whoever collects these splits at the end of lines."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def is_json(wanted: str, stream: TextIO) -> bool:
    return wanted == "json" or (wanted == "auto" and not stream.isatty())


def set_up_logging(stream: TextIO, *, level: str, as_json: bool) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
