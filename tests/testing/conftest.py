"""The sample project is run by a pytest of its own, as its users would run it."""

from __future__ import annotations

collect_ignore = ["sample_project"]
