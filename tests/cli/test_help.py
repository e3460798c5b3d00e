"""Help: every command has valid examples, and docs/cli.md is up to date."""

from __future__ import annotations

import re
import shlex
from itertools import product
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from kbroker.cli.command import Command, walk_commands
from kbroker.cli.kafka_scripts import SCRIPTS, commands_for, note_for, script_names
from kbroker.cli.main import COMMANDS, kbroker, main
from tools.cli_docs import PAGE, page

ROOT = next(ctx for ctx, _ in walk_commands(kbroker))
LEAVES = {ctx.command_path: command for ctx, command in walk_commands(kbroker) if not isinstance(command, click.Group)}
EXAMPLES = [
    (path, example.call)
    for path, command in LEAVES.items()
    if isinstance(command, Command)
    for example in command.examples
]


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_has_an_example_of_itself(path: str) -> None:
    command = LEAVES[path]
    assert isinstance(command, Command)
    assert all(path in example.call for example in command.examples)
    help_text = command.get_help(click.Context(command, info_name=path))
    assert f"# {command.examples[0].about}\n  {command.examples[0].call}" in help_text


def calls_in(line: str) -> list[list[str]]:
    """Returns the arguments of each kbroker command in a shell line."""
    if line.startswith("eval"):
        line = line.partition("$(")[2].partition(")")[0]
    words = [re.sub(r" > \S+$", "", part.strip()) for part in line.split(" | ")]
    return [shlex.split(part)[1:] for part in words if part.startswith("kbroker")]


@pytest.mark.parametrize(("path", "line"), EXAMPLES)
def test_every_example_is_a_call_that_parses(
    path: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    segment = tmp_path / "kbroker-data" / "orders-0" / "00000000000000000000.log"
    segment.parent.mkdir(parents=True)
    properties, tables = ("server.properties", "broker.properties"), ("metadata.json", "offsets.json", "plan.json")
    named = map(Path, ("orders.txt", "billing.csv", *properties, *tables))
    for file in (segment, segment.with_suffix(".timeindex"), *named):
        file.touch()
    calls = calls_in(line)
    assert calls
    for arguments in calls:
        command: click.Command = kbroker
        ctx = ROOT
        while isinstance(command, click.Group):
            name, found, arguments = command.resolve_command(ctx, arguments)
            assert found is not None
            assert name is not None
            command = found
            if isinstance(command, click.Group):
                ctx = click.Context(command, info_name=name, parent=ctx)
        with command.make_context(name, list(arguments), parent=ctx):
            pass


def test_an_invalid_example_would_be_detected() -> None:
    command = LEAVES["kbroker topics create"]
    with pytest.raises(click.UsageError):
        command.make_context("create", ["orders", "--partition", "3"])


def test_every_command_that_talks_to_a_broker_takes_bootstrap_and_its_variable() -> None:
    local = {"serve", "certs", "dump-log", "metadata", "pipeline", "completion", "version"}  # pipelines: in their files
    for path, command in LEAVES.items():
        options = [
            option for option in command.params if isinstance(option, click.Option) and "--bootstrap" in option.opts
        ]
        assert bool(options) == (path.split()[1] not in local), path
        assert all("-b" in option.opts for option in options)
        assert all((option.envvar, option.default) == ("KBROKER_BOOTSTRAP", "127.0.0.1:9092") for option in options)


def test_no_two_options_of_a_command_share_a_name() -> None:
    for ctx, command in walk_commands(kbroker):
        names = [name for option in command.get_params(ctx) for name in (*option.opts, *option.secondary_opts)]
        assert sorted(names) == sorted(set(names)), ctx.command_path


def test_the_command_list_equals_the_help_of_the_commands() -> None:
    for name, about in COMMANDS.items():
        command = kbroker.get_command(ROOT, name)
        assert command is not None
        assert command.get_short_help_str(200).startswith(about.rstrip(".")), name


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.cli_docs"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    kbroker.main(["completion", shell], prog_name="kbroker", standalone_mode=False)
    assert "_KBROKER_COMPLETE" in capsys.readouterr().out


def test_names_of_commands_are_completed() -> None:
    assert [item.value for item in kbroker.shell_complete(ROOT, "to")] == ["topics", "tokens"]


def test_a_shell_completes_commands_of_groups_and_choices() -> None:
    complete = ShellComplete(kbroker, {}, "kbroker", "_KBROKER_COMPLETE")
    assert [item.value for item in complete.get_completions(["groups"], "re")] == ["reset-offsets"]
    assert [item.value for item in complete.get_completions(["groups", "list", "--state"], "s")] == ["stable"]


SCRIPT_CALLS = [call for _, _, commands in SCRIPTS if commands is not None for call in commands.split(", ")]


def alternatives(words: list[str]) -> list[list[str]]:
    """Returns one list for each alternative of a word like `list|set|delete`."""
    return [list(choice) for choice in product(*(word.split("|") for word in words))]


@pytest.mark.parametrize("line", SCRIPT_CALLS)
def test_the_command_for_each_of_kafkas_scripts_exists(line: str) -> None:
    for words in alternatives(line.split()[1:]):
        command: click.Command = kbroker
        while isinstance(command, click.Group):
            found = command.get_command(ROOT, words.pop(0))
            assert found is not None
            command = found
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("script", script_names())
def test_the_main_help_and_an_error_name_the_commands_for_each_script(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = commands_for(script)
    assert commands
    for words in (words for command in commands for words in alternatives(command.split())):
        assert kbroker.get_command(ROOT, words[0]) is not None
    assert f"  {script} " in f"{ROOT.get_help()} ".replace("\n", " \n")
    with pytest.raises(SystemExit) as ended:
        main([f"{script}.sh", "--list"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"kbroker: {script}.sh is a script of Apache Kafka. Use: kbroker {commands[0]}")


def test_commands_of_one_group_are_joined() -> None:
    assert commands_for("kafka-topics") == ["topics"]
    assert commands_for("kafka-configs") == [
        "configs describe|alter",
        "quotas list|set|delete",
        "users add|list|remove",
    ]
    assert commands_for("kafka-features") == ["cluster describe --features"]
    assert commands_for("kafka-server-start") == ["serve --config"]
    assert commands_for("kafka-storage") == ["users add"]
    assert commands_for("kafka-metadata-quorum") == []


def test_the_help_of_a_group_shows_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    kbroker.main(["topics", "--help"], prog_name="kbroker", standalone_mode=False)
    help_text = " ".join(capsys.readouterr().out.split())
    assert "Copy the records of a topic up to its current end, with keys, headers and timestamps." in help_text


# bin/ of Apache Kafka 3.9 and 4.1.
KAFKA_SCRIPTS = (
    "connect-distributed",
    "connect-mirror-maker",
    "connect-plugin-path",
    "connect-standalone",
    "kafka-acls",
    "kafka-broker-api-versions",
    "kafka-client-metrics",
    "kafka-cluster",
    "kafka-configs",
    "kafka-console-consumer",
    "kafka-console-producer",
    "kafka-console-share-consumer",
    "kafka-consumer-groups",
    "kafka-consumer-perf-test",
    "kafka-delegation-tokens",
    "kafka-delete-records",
    "kafka-dump-log",
    "kafka-e2e-latency",
    "kafka-features",
    "kafka-get-offsets",
    "kafka-groups",
    "kafka-jmx",
    "kafka-leader-election",
    "kafka-log-dirs",
    "kafka-metadata-quorum",
    "kafka-metadata-shell",
    "kafka-producer-perf-test",
    "kafka-reassign-partitions",
    "kafka-replica-verification",
    "kafka-run-class",
    "kafka-server-start",
    "kafka-server-stop",
    "kafka-share-consumer-perf-test",
    "kafka-share-groups",
    "kafka-storage",
    "kafka-streams-application-reset",
    "kafka-streams-groups",
    "kafka-topics",
    "kafka-transactions",
    "kafka-verifiable-consumer",
    "kafka-verifiable-producer",
    "kafka-verifiable-share-consumer",
    "trogdor",
    "zookeeper-security-migration",
    "zookeeper-server-start",
    "zookeeper-server-stop",
    "zookeeper-shell",
)


def test_the_help_lists_only_scripts_of_kafka() -> None:
    assert set(script_names()) <= set(KAFKA_SCRIPTS)


@pytest.mark.parametrize("script", KAFKA_SCRIPTS)
def test_each_of_kafkas_scripts_has_a_command_or_says_what_to_do_instead(script: str) -> None:
    is_unsupported = "share" in script or script in (
        "kafka-streams-groups",
        "kafka-metadata-quorum",
        "kafka-metadata-shell",
        "kafka-delegation-tokens",
    )
    assert commands_for(script) or note_for(script) or is_unsupported
    assert f"`{script}" in page() or f", {script}" in page()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("topic", "No such command 'topic'. Did you mean 'topics'? Try 'kbroker --help' for help."),
        ("xyz", "No such command 'xyz'. Try 'kbroker --help' for help."),
        (
            "kafka-storage",
            (
                "kafka-storage is a script of Apache Kafka. Use: kbroker users add. Not needed: the first start of a "
                "broker prepares an empty data directory. Try 'kbroker --help' for help."
            ),
        ),
        (
            "kafka-server-stop.sh",
            (
                "kafka-server-stop.sh is a script of Apache Kafka. Press Ctrl-C, or send SIGTERM to the process of the "
                "broker: systemctl stop kbroker. Try 'kbroker --help' for help."
            ),
        ),
    ],
)
def test_a_name_that_is_no_command_gets_advice(name: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name])
    assert (ended.value.code, capsys.readouterr().err) == (2, f"kbroker: {advice}\n")
