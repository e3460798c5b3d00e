"""`kbroker completion`: prints the shell completion script that click generates."""

from __future__ import annotations

import click

from kbroker.cli.command import Command

__all__ = ["command"]


@click.command(
    "completion",
    cls=Command,
    examples=[
        (
            'eval "$(kbroker completion bash)"',
            "Enable completion in this shell; add the line to ~/.bashrc for all shells",
        ),
        ("kbroker completion fish > ~/.config/fish/completions/kbroker.fish", "Install completion for fish"),
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(ctx.find_root().command, {}, "kbroker", "_KBROKER_COMPLETE").source())
