"""The command `kbroker`: imports the module of the command that is called, and prints errors as one line.

Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted, 141 the reader of the output has ended (`| head`).
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from kbroker.cli.command import SingleValues, profile_option
from kbroker.cli.commands.version import version_line
from kbroker.errors import UserError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["COMMANDS", "kbroker", "main"]

# Name -> short help. Repeated here so that `kbroker --help` imports no command; a test keeps both equal.
COMMANDS: Final = {
    "serve": "Run a broker.",
    "topics": "Create, list, describe, alter, copy and delete topics.",
    "produce": "Write records to a topic.",
    "consume": "Read records from a topic.",
    "records": "Delete the records of a topic up to an offset or timestamp.",
    "groups": "Manage consumer groups and their offsets.",
    "offsets": "Show earliest and latest offsets, or offsets by timestamp.",
    "transactions": "List, describe and abort transactions, and find hanging transactions.",
    "configs": "Describe and alter configs of topics, brokers and groups.",
    "users": "Add, list and remove SCRAM users.",
    "tokens": "Create, renew, expire and list delegation tokens.",
    "quotas": "List, set and delete client quotas.",
    "acls": "Allow and deny operations, list and remove ACLs, and explain decisions.",
    "certs": "Make certificates for development.",
    "cluster": "Describe the cluster, and move replicas between its brokers.",
    "leaders": "Elect partition leaders.",
    "log-dirs": "Show the data directories of brokers and the size of their partitions.",
    "perf": "Measure throughput and latency of producing and consuming.",
    "dump-log": "Print the contents of partition files.",
    "pipeline": "Run data pipelines on Spark: archive, replay, transform, mirror, audit.",
    "metadata": "Export and import the metadata of a stopped broker.",
    "completion": "Print a shell completion script.",
    "version": "Print the version.",
}

FAILED: Final = 1
USAGE_ERROR: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Commands(SingleValues, click.Group):
    """Imports a command only when it is called, so that `kbroker --help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"kbroker.cli.commands.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds a command by its name. The error for another name says which command may be meant."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(_advice_for(args[0]))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of the output has ended
            _discard_output()
            ctx.exit(BROKEN_PIPE)
        return result

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes command names from the table: click's own method would import every command."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=about) for name, about in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands for each of Kafka's scripts: people search by these names."""
        from kbroker.cli.kafka_scripts import commands_for, script_names

        with formatter.section("Kafka's scripts"):
            formatter.write_dl([(name, ", ".join(commands_for(name))) for name in script_names()])


def _discard_output() -> None:
    """Sends the rest of the buffer to /dev/null: Python would fail again on its way out, to write it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _advice_for(name: str) -> str:
    """Returns the error for a name that is no command: the commands for a Kafka script, or commands like it."""
    from difflib import get_close_matches

    from kbroker.cli.kafka_scripts import commands_for, note_for

    advice = [f"{name} is a script of Apache Kafka"]
    if commands := commands_for(name):
        advice.append("Use: " + ", ".join(f"kbroker {command}" for command in commands))
    if note := note_for(name):
        advice.append(note)
    if len(advice) > 1:
        return ". ".join(advice)
    similar = get_close_matches(name, COMMANDS)
    return f"No such command '{name}'." + (f" Did you mean '{similar[0]}'?" if similar else "")


def _print_version(ctx: click.Context, _option: click.Parameter, is_requested: bool) -> None:
    if is_requested:
        click.echo(version_line())
        ctx.exit()


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@profile_option
@click.pass_context
def kbroker(ctx: click.Context) -> None:
    """Run a Kafka broker, and manage Kafka clusters.

    Commands that connect to a broker also work with Apache Kafka. 'kbroker COMMAND --help' shows options and examples.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process."""
    try:
        code = kbroker.main(arguments, prog_name="kbroker", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = USAGE_ERROR
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "kbroker"
        message = " ".join(error.format_message().split())  # click lists choices in lines of their own
        _print_error(f"{message}{'' if message.endswith(('.', '?')) else '.'} Try '{path} --help' for help.")
        code = USAGE_ERROR
    except (UserError, click.ClickException) as error:
        _print_error(error.format_message() if isinstance(error, click.ClickException) else str(error))
        code = FAILED
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except OSError as problem:
        if problem.errno not in _FULL:
            raise
        _discard_output()
        _print_error(f"Could not write: {problem.strerror}")
        code = FAILED
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(message: str) -> None:
    click.echo(f"kbroker: {message}", err=True)
