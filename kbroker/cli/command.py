"""What commands are made of: help that ends with examples, and options that many of them share.

Imports nothing but click: a command's help must appear at once, whatever the command itself needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

__all__ = ["Command", "Example", "Group", "bootstrap_option", "json_option", "key_values", "walk"]

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"

Function = TypeVar("Function", bound=Callable[..., Any])


class Example(NamedTuple):
    call: str
    """As it is typed, "kbroker" in front."""
    about: str


class Command(click.Command):
    def __init__(self, *arguments: Any, examples: Sequence[tuple[str, str]] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = [Example(*each) for each in examples]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)


class Group(click.Group):
    """Its examples are the first of each of its commands, which stand in the order of their declaration."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        write_examples(
            formatter, [each.examples[0] for each in commands if isinstance(each, Command) and each.examples]
        )


def write_examples(formatter: click.HelpFormatter, examples: Sequence[Example]) -> None:
    if not examples:
        return
    with formatter.section("Examples"):
        for example in examples:
            # A long call stays on its line: it is there to be copied.
            formatter.write(f"{'':{formatter.current_indent}}# {example.about}\n")
            formatter.write(f"{'':{formatter.current_indent}}{example.call}\n")


def walk(command: click.Command, ctx: click.Context | None = None) -> Iterator[tuple[click.Context, click.Command]]:
    """The command and everything below it, in the order of the help."""
    if ctx is None:
        ctx = click.Context(command, info_name=command.name, **command.context_settings)
    yield ctx, command
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            yield from walk(child, click.Context(child, info_name=name, parent=ctx))


def bootstrap_option(function: Function) -> Function:
    return click.option(
        "--bootstrap",
        metavar="HOST:PORT",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        envvar="KBROKER_BOOTSTRAP",
        show_envvar=True,
        help="A broker of the cluster, kbroker or Apache Kafka; several with commas.",
    )(function)


def json_option(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def key_values(_ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """A callback for repeatable KEY=VALUE options."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"'{text}' is not KEY=VALUE")
        pairs[name.strip()] = value
    return pairs
