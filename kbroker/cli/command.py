"""Building blocks of commands: help that ends with examples, and shared options.

Imports only click, so that `--help` is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TextIO, TypeVar

import click
from click.core import ParameterSource

__all__ = [
    "COMMAND_CONFIG",
    "SELECTED_PROFILE",
    "Command",
    "Example",
    "Function",
    "Group",
    "SingleValues",
    "bootstrap_option",
    "check_not_repeated",
    "check_topic_name",
    "json_option",
    "parse_key_values",
    "parse_pairs",
    "partition_option",
    "profile_option",
    "walk_commands",
    "yes_option",
]

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"

Function = TypeVar("Function", bound=Callable[..., Any])


_WHOLE_SENTENCE: Final = 200


class Example(NamedTuple):
    call: str
    """The command line as typed, beginning with "kbroker"."""
    about: str


class SingleValues(click.Command):
    """Refuses an option with one value that is given twice. Click keeps the last value, Kafka's scripts refuse too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:  # that is completion
            check_not_repeated(self, ctx, given)
        return rest


class Command(SingleValues):
    def __init__(self, *arguments: Any, examples: Sequence[tuple[str, str]] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples = [Example(*example) for example in examples]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)


class Group(SingleValues, click.Group):
    """Group of commands, listed in the order of declaration. Its help shows the first example of each command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with their whole first sentence. Click cuts it to one line."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(_WHOLE_SENTENCE)) for name, command in self.commands.items()]
            )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        write_examples(
            formatter,
            [command.examples[0] for command in commands if isinstance(command, Command) and command.examples],
        )


def check_not_repeated(command: click.Command, ctx: click.Context, arguments: list[str]) -> None:
    """Raises UsageError if an option with one value is given twice. A flag may be repeated."""
    seen: set[click.Parameter] = set()
    for option in command.make_parser(ctx).parse_args(arguments)[2]:
        if isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count):
            if option in seen:
                raise click.UsageError(f"Use {option.opts[0]} only once: it has one value", ctx)
            seen.add(option)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[Example]) -> None:
    if not examples:
        return
    with formatter.section("Examples"):
        for example in examples:
            # write, not write_text: a long call must not be wrapped, so that users can copy it.
            formatter.write(f"{'':{formatter.current_indent}}# {example.about}\n")
            formatter.write(f"{'':{formatter.current_indent}}{example.call}\n")


def walk_commands(
    command: click.Command, ctx: click.Context | None = None
) -> Iterator[tuple[click.Context, click.Command]]:
    """Yields the command and all its subcommands, in the order of the help."""
    if ctx is None:
        ctx = click.Context(command, info_name=command.name, **command.context_settings)
    yield ctx, command
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            yield from walk_commands(child, click.Context(child, info_name=name, parent=ctx))


def bootstrap_option(function: Function) -> Function:
    """Adds --bootstrap, --profile and --command-config. The command gets `bootstrap`: the addresses to connect to.

    `run_with_cluster` finds the security of the profile, or of the file, in click's context.
    """
    return click.option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        envvar="KBROKER_BOOTSTRAP",
        show_envvar=True,
        callback=_select_bootstrap,
        help="Brokers to connect to, separated by commas (kbroker or Apache Kafka).",
    )(profile_option(_command_config_option(function)))


def _command_config_option(function: Function) -> Function:
    return click.option(
        "--command-config",
        metavar="FILE",
        type=click.File("r", encoding="utf-8"),
        envvar="KBROKER_COMMAND_CONFIG",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_note_properties,
        help="Properties file of a Kafka client with the security of the cluster: security.protocol, ssl.*, sasl.*.",
    )(function)


def _note_properties(ctx: click.Context, _option: click.Parameter, file: TextIO | None) -> None:
    if file is not None:
        from kbroker.config.properties import read_properties

        with file:  # click closes it only if the command runs
            properties = read_properties(file)
        ctx.meta[COMMAND_CONFIG] = {name: text for name, text in properties.items() if name.startswith(_SECURITY)}


def profile_option(function: Function) -> Function:
    return click.option(
        "--profile",
        metavar="NAME",
        envvar="KBROKER_PROFILE",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_note_profile,
        shell_complete=_complete_profiles,
        help="Profile of the configuration file: the cluster to connect to.",
    )(function)


COMMAND_CONFIG: Final = "kbroker.command_config"
"""Key of click's `Context.meta`: the properties of --command-config about security. They win over a profile."""
_SECURITY: Final = ("security.protocol", "ssl.", "sasl.")
SELECTED_PROFILE: Final = "kbroker.selected_profile"
"""Key of click's `Context.meta`: the Profile whose addresses were selected."""
_PROFILE: Final = "kbroker.profile"
_IS_PROFILE_TYPED: Final = "kbroker.is_profile_typed"


def _note_profile(ctx: click.Context, option: click.Parameter, name: str | None) -> None:
    """Stores the profile for `_select_bootstrap`. `kbroker --profile NAME topics list` sets it for the command too."""
    is_typed = ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    if name and (is_typed or not ctx.meta.get(_IS_PROFILE_TYPED)):
        ctx.meta[_PROFILE], ctx.meta[_IS_PROFILE_TYPED] = name, is_typed


def _select_bootstrap(ctx: click.Context, option: click.Parameter, given: str) -> str:
    """Returns the addresses to connect to (click callback).

    Options win over the environment, and the environment over the file; an address wins over a profile.
    """
    from kbroker.cli.profiles import find_profile

    source = ctx.get_parameter_source(option.name or "")
    if source is ParameterSource.COMMANDLINE:
        return given
    if source is ParameterSource.ENVIRONMENT and not ctx.meta.get(_IS_PROFILE_TYPED):
        return given
    profile = find_profile(ctx.meta.get(_PROFILE))
    if profile is None:
        return given
    ctx.meta[SELECTED_PROFILE] = profile
    return profile.bootstrap


def _complete_profiles(_ctx: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    from kbroker.cli.profiles import profile_names
    from kbroker.errors import UserError

    try:
        return [name for name in profile_names() if name.startswith(incomplete)]
    except UserError:
        return []


def yes_option(function: Function) -> Function:
    return click.option(
        "--yes", "-y", is_flag=True, help="Do not ask for confirmation. Required if stdin is not a terminal."
    )(function)


def partition_option(help_text: str) -> Callable[[Function], Function]:
    """Returns the repeatable option --partition, as `partitions`."""
    return click.option("--partition", "partitions", type=click.IntRange(0), metavar="N", multiple=True, help=help_text)


def json_option(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def parse_key_values(_ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """Parses a repeatable KEY=VALUE option (click callback). Refuses a key that is given twice."""
    pairs: dict[str, str] = {}
    for name, value in parse_pairs(_ctx, _option, texts):
        if name in pairs:
            raise click.BadParameter(f"'{name}' is given twice")
        pairs[name] = value
    return pairs


def parse_pairs(_ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Parses a repeatable KEY=VALUE option whose keys may be repeated (click callback)."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"Expected KEY=VALUE, got '{text}'")
        pairs.append((name.strip(), value))
    return pairs


def check_topic_name(
    _ctx: click.Context, _argument: click.Parameter, given: str | Sequence[str]
) -> str | Sequence[str]:
    """Checks a topic name, or each of several (click callback)."""
    from kbroker.names import topic_name_problem

    for name in [given] if isinstance(given, str) else given:
        problem = topic_name_problem(name)
        if problem is not None:
            raise click.BadParameter(problem)
    return given
