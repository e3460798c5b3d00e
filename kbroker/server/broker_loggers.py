"""The broker's loggers as config resources (KIP-412): levels under Kafka's names. They last until the broker stops."""

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
    """The level that counts for each logger, be it its own or inherited."""
    return {name: _name_of(logger.getEffectiveLevel()) for name, logger in _loggers().items()}


def check_change(name: str, level: str | None) -> None:
    """Refuses what cannot be done; None stands for taking the level away."""
    if name not in _loggers():
        raise Refusal(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist.")
    if level is None and name == ROOT:
        raise Refusal(ErrorCode.INVALID_REQUEST, "The root logger must keep a level.")
    if level is not None and level not in _LEVELS:
        raise Refusal(
            ErrorCode.INVALID_CONFIG, f"{level} is not a log level of {name}: use one of {', '.join(_LEVELS)}."
        )


def set_level(name: str, level: str) -> None:
    _loggers()[name].setLevel(_LEVELS[level])


def unset_level(name: str) -> None:
    _loggers()[name].setLevel(logging.NOTSET)


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict
    named = {name: logger for name, logger in sorted(known.items()) if isinstance(logger, logging.Logger)}
    return {ROOT: logging.root, **named}


def _name_of(level: int) -> str:
    """The finest of Kafka's levels that lets all of these through."""
    return max((each for each in _LEVELS if _LEVELS[each] <= max(level, _TRACE)), key=_LEVELS.__getitem__)
