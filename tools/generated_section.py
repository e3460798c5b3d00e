"""Sections of documentation pages that a program writes, between a begin and an end marker."""

from __future__ import annotations

__all__ = ["END", "replace_section"]

END = "<!-- generated: end -->"


def replace_section(page: str, *, begin: str, content: str) -> str:
    """Returns the page with new content after the marker `begin`. Raises ValueError if a marker is missing."""
    before, _, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"The page lacks the markers {begin} and {END}")
    return f"{before}{begin}\n{content}\n{END}{after}"
