"""An exception alone in its group, as trio's nurseries wrap them, is raised as itself: it is what tests expect."""

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
            lone.__context__ = context  # not the group: it would show everything twice
            del lone, group
