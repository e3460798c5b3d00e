"""Refuses files with secrets that other users of the machine can read."""

from __future__ import annotations

import os
import stat

from kbroker.errors import UserError

__all__ = ["check_private"]


def check_private(location: str, what: str) -> None:
    """Raises UserError if users outside the file's group can read or change the file. `what`: its content, in words."""
    try:
        mode = os.stat(location).st_mode
    except OSError:
        return  # reading it reports why
    if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
        raise UserError(f"Every user of this machine can read {what} {location}. Run: chmod 600 {location}")
