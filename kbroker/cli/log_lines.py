"""Formats of the broker's log on stderr: text for people, or one JSON object per line for programs.

The `extra=` of a logging call becomes fields of the JSON object; text leaves them out.
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
    """One JSON object per line, including a traceback: log collectors split at line ends."""

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


def is_json(log_format: str, stream: TextIO) -> bool:
    """Whether to log JSON; `auto` means JSON unless the stream is a terminal."""
    return log_format == "json" or (log_format == "auto" and not stream.isatty())


def set_up_logging(stream: TextIO, *, level: str, as_json: bool) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
