"""`kbroker completion`: the script that teaches a shell our commands; click writes it."""

from __future__ import annotations

import click

from kbroker.cli.command import Command

__all__ = ["command"]


@click.command(
    "completion",
    cls=Command,
    examples=[
        ('eval "$(kbroker completion bash)"', "for this shell; in ~/.bashrc for all to come"),
        ("kbroker completion fish > ~/.config/fish/completions/kbroker.fish", "for good, in fish"),
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete commands and options."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.find_root().command, {}, "kbroker", "_KBROKER_COMPLETE").source())
