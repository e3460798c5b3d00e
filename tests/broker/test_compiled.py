"""The whole of these tests also runs with the hot path compiled: this one sees that it is."""

from __future__ import annotations

import os

from kbroker.cli.commands.version import is_compiled


def test_the_hot_path_is_compiled_where_that_is_asked_for() -> None:
    assert is_compiled() == (os.environ.get("KBROKER_COMPILED") == "1")
