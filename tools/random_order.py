"""A pytest plugin: `--shuffle SEED` runs the tests in a random order, so that no test depends on another.

Modules are shuffled, and the tests of each module; a module stays together, since its fixtures may be costly. The place
of a test follows from the seed and its name alone: all workers of pytest-xdist agree, and a part of the suite keeps the
order that it has in the whole.
"""

from __future__ import annotations

from hashlib import sha256

import pytest

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_report_header"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="run the tests in the random order of this seed")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = _seed_of(config)
    return None if seed is None else f"random order: --shuffle {seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle before pytest itself brings together the tests that share a parameter of their module or session."""
    seed = _seed_of(config)
    if seed is not None:
        items.sort(key=lambda item: (_place(seed, item.nodeid.partition("::")[0]), _place(seed, item.nodeid)))


def _seed_of(config: pytest.Config) -> str | None:
    seed: str | None = config.getoption("--shuffle")
    return seed


def _place(seed: str, name: str) -> bytes:
    return sha256(f"{seed} {name}".encode()).digest()
