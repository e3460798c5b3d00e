"""Settings of all unit tests: property tests have no deadline, since a busy machine must not fail them."""

from __future__ import annotations

import os

import hypothesis

hypothesis.settings.register_profile("default", deadline=None)
# In CI a failure must be the fault of the change at hand: the same examples each time, and more of them.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=200, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI", "").lower() in ("1", "true") else "default")
