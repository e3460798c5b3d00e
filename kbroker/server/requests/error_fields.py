"""Error fields of a result in a response: `error_code` and `error_message`."""

from __future__ import annotations

from typing import Any

from kbroker.errors import Refusal

__all__ = ["error_fields"]


def error_fields(refusal: Refusal | None) -> dict[str, Any]:
    """Returns the fields for an item that was refused; None if it succeeded."""
    if refusal is None:
        return {"error_code": 0, "error_message": None}
    return {"error_code": refusal.code, "error_message": refusal.message}
