"""`kbroker version`: the release that is installed."""

from __future__ import annotations

import click

from kbroker.cli.command import Command

__all__ = ["command", "installed_version", "is_compiled"]


def installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and rarely asked for

    try:
        return version("kbroker")
    except PackageNotFoundError:
        return "unknown (run from its sources, not installed)"


def is_compiled() -> bool:
    """Whether the hot path was compiled when this was built."""
    from importlib.util import find_spec

    module = find_spec("kbroker.server.connection")
    return module is not None and module.origin is not None and not module.origin.endswith(".py")


@click.command("version", cls=Command, examples=[("kbroker version", "the release that is installed")])
def command() -> None:
    """Say which release of kbroker this is."""
    click.echo(f"kbroker {installed_version()}" + (" (compiled)" if is_compiled() else ""))
