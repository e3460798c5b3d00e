"""Unwraps exception groups with one exception, as trio's nurseries raise them: tests expect the exception itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["lone_exceptions"]


@contextmanager
def lone_exceptions() -> Iterator[None]:
    try:
        yield
    except BaseExceptionGroup as group:
        lone: BaseException = group
        while isinstance(lone, BaseExceptionGroup) and len(lone.exceptions) == 1:
            lone = lone.exceptions[0]
        if lone is group:
            raise
        context = lone.__context__
        try:
            raise lone from lone.__cause__
        finally:
            # Without this, the traceback would show the exception twice: alone and in its group.
            lone.__context__ = context
            del lone, group
