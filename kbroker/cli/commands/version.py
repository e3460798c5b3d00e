"""`kbroker version`: prints the installed version, and whether the hot path is compiled."""

from __future__ import annotations

import click

from kbroker.cli.command import Command

__all__ = ["command", "installed_version", "is_compiled", "version_line"]


def version_line() -> str:
    """Returns the version, and whether the hot path is compiled."""
    return f"kbroker {installed_version()} ({'compiled' if is_compiled() else 'not compiled'})"


def installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, rarely needed

    try:
        return version("kbroker")
    except PackageNotFoundError:
        return "unknown (not installed)"


def is_compiled() -> bool:
    """Whether the hot path is compiled."""
    from importlib.util import find_spec

    module = find_spec("kbroker.server.wire.connection")
    return module is not None and module.origin is not None and not module.origin.endswith(".py")


@click.command("version", cls=Command, examples=[("kbroker version", "Print the installed version")])
def command() -> None:
    """Print the version."""
    click.echo(version_line())
