"""The command `kbroker`: finds a command's module when it is asked for, and turns failures into one line and a code.

Exit codes: 0 done, 1 it failed, 2 it was called wrongly, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

import click

from kbroker.cli.version import installed_version
from kbroker.errors import UserError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["COMMANDS", "kbroker", "main"]

# Name -> what --help says of it; the module of that name holds `command`.
COMMANDS: Final = {
    "serve": "Run a broker.",
    "topics": "Make, list, describe, alter and delete topics.",
    "produce": "Write records to a topic.",
    "consume": "Read the records of a topic.",
    "groups": "List and describe consumer groups, move their offsets, delete them.",
    "offsets": "Show the offsets of topics.",
    "transactions": "List and describe transactions, abort one that hangs.",
    "configs": "Show and change the configs of topics and brokers.",
    "cluster": "Show what the cluster is made of.",
    "dump-log": "Show what the files of a partition hold.",
    "metadata": "Export and import the metadata of a broker that is stopped.",
    "completion": "Print the script that lets a shell complete commands.",
    "version": "Say which release of kbroker this is.",
}

FAILED: Final = 1
CALLED_WRONGLY: Final = 2
INTERRUPTED: Final = 130


class _Commands(click.Group):
    """Imports only the one command that is called: `kbroker --help` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"kbroker.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names alone: click would import every command for its help."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=about) for name, about in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        click.echo(f"kbroker {installed_version()}")
        ctx.exit()


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@click.pass_context
def kbroker(ctx: click.Context) -> None:
    """A Kafka broker in Python that stock clients cannot tell from Apache Kafka."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process."""
    try:
        code = kbroker.main(arguments, prog_name="kbroker", standalone_mode=False)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "kbroker"
        _say(f"{error.format_message()} ('{path} --help' shows how to call it)")
        code = CALLED_WRONGLY
    except (UserError, click.ClickException) as error:
        _say(error.format_message() if isinstance(error, click.ClickException) else str(error))
        code = FAILED
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str) -> None:
    click.echo(f"kbroker: {message}", err=True)
