"""Loggers of the broker as config resources (KIP-412), with Kafka's names of levels. Levels last until a restart."""

from __future__ import annotations

import logging
from typing import Final

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["ROOT", "check_change", "level_of_each_logger", "set_level", "unset_level"]

ROOT: Final = "root"

_TRACE: Final = 5
_LEVELS: Final = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": _TRACE,
    "WARN": logging.WARNING,
}


def level_of_each_logger() -> dict[str, str]:
    """Returns the effective level of each logger, own or inherited."""
    return {name: _name_of(logger.getEffectiveLevel()) for name, logger in _loggers().items()}


def check_change(name: str, level: str | None) -> None:
    """Raises Refusal if the level cannot be set; None removes the level."""
    if name not in _loggers():
        raise Refusal(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if level is None and name == ROOT:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed")
    if level is not None and level not in _LEVELS:
        message = f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
        raise Refusal(ErrorCode.INVALID_CONFIG, message + f"Valid log levels are {', '.join(_LEVELS)}")


def set_level(name: str, level: str) -> None:
    _loggers()[name].setLevel(_LEVELS[level])


def unset_level(name: str) -> None:
    _loggers()[name].setLevel(logging.NOTSET)


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict
    named = {name: logger for name, logger in sorted(known.items()) if isinstance(logger, logging.Logger)}
    return {ROOT: logging.root, **named}


def _name_of(level: int) -> str:
    """Returns Kafka's highest level that is not above `level`."""
    names = (name for name in _LEVELS if _LEVELS[name] <= max(level, _TRACE))
    return max(names, key=_LEVELS.__getitem__)
