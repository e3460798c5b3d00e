"""The command line as a whole: fast help, errors in one line, exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import click
import pytest

from kbroker.cli.command import check_not_repeated, walk_commands
from kbroker.cli.commands import version
from kbroker.cli.main import COMMANDS, kbroker, main
from kbroker.errors import UserError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs a command; it returns exit code, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_command(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_help_of_the_command_list(run: Run, name: str) -> None:
    code, out, _ = run(name, "--help")
    assert code == 0
    assert out.startswith(f"Usage: kbroker {name}")
    first_words = COMMANDS[name].rstrip(".")
    assert first_words in out


def test_version_is_the_installed_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: {"kbroker": "1.2.3"}[name])
    for compiled, shown in ((True, "compiled"), (False, "not compiled")):
        monkeypatch.setattr(version, "is_compiled", lambda compiled=compiled: compiled)
        assert run("--version") == run("version") == (0, f"kbroker 1.2.3 ({shown})\n", "")


def test_sources_that_are_not_installed_say_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    code, out, _ = run("version")
    assert code == 0
    assert "not installed" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sreve",), "No such command 'sreve'"),
        (("--no-such-option",), "--no-such-option"),
        (("serve", "--no-such-option"), "--no-such-option"),
        (("serve", "surplus"), "surplus"),
        (("completion",), "Choose from: bash, zsh, fish."),
    ],
)
def test_a_usage_error_is_one_line_and_code_2(run: Run, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("kbroker: ")
    assert words in err
    assert "--help" in err


def test_every_command_refuses_a_repeated_option_with_one_value() -> None:
    """Without the check, click uses only b of "--topic a --topic b"."""
    options = 0
    for ctx, command in walk_commands(kbroker):
        assert type(command).parse_args not in (click.Command.parse_args, click.Group.parse_args), ctx.command_path
        for option in command.params:
            if isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count):
                options += 1
                name = option.opts[0]
                check_not_repeated(command, ctx, [f"{name}=a"])
                with pytest.raises(click.UsageError, match=f"Use {name} only once: it has one value"):
                    check_not_repeated(command, ctx, [f"{name}=a", f"{name}=b"])
    assert options > 100


@pytest.mark.parametrize(
    ("arguments", "option", "path"),
    [
        (("topics", "create", "a", "--partitions", "1", "--partitions=1"), "--partitions", "kbroker topics create"),
        (("topics", "list", "-b", "127.0.0.1:1", "--bootstrap=127.0.0.1:1"), "--bootstrap", "kbroker topics list"),
        (("acls", "list", "--topic", "a", "--topic", "b"), "--topic", "kbroker acls list"),
        (("--profile", "a", "--profile", "b", "topics", "list"), "--profile", "kbroker"),
    ],
)
def test_a_repeated_option_with_one_value_is_a_usage_error(
    run: Run, arguments: tuple[str, ...], option: str, path: str
) -> None:
    refusal = f"kbroker: Use {option} only once: it has one value. Try '{path} --help' for help.\n"
    assert run(*arguments) == (2, "", refusal)


def test_flags_and_repeatable_options_may_be_repeated(run: Run) -> None:
    code, _, err = run("topics", "delete", "a", "-y", "--yes", "--if-exists", "--if-exists", "-b", "127.0.0.1:x")
    assert (code, "only once" in err) == (1, False), err
    assert run("topics", "list", "--profile", "a", "--profile", "b", "--help")[0] == 0


def test_a_group_without_a_command_prints_its_help(run: Run) -> None:
    code, out, err = run("topics")
    assert (code, out) == (2, "")
    assert err.startswith("Usage: kbroker topics ")
    assert err.endswith("kbroker topics replicas orders 3\n")


def test_a_failure_is_one_line_and_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise UserError("Something failed. Do this.")

    from kbroker.cli.commands import version

    monkeypatch.setattr(version.command, "callback", fail)
    assert run("version") == (1, "", "kbroker: Something failed. Do this.\n")


def test_an_interrupt_is_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    from kbroker.cli.commands import version

    monkeypatch.setattr(version.command, "callback", interrupt)
    assert run("version")[0] == 130


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a device of Linux")
@pytest.mark.parametrize("arguments", [("version",), ("--help",), ("completion", "bash")])
def test_a_full_disk_is_one_line_and_code_1(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "kbroker", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (result.returncode, result.stderr) == (1, "kbroker: Could not write: No space left on device\n")


def test_help_imports_neither_trio_nor_construct() -> None:
    """`kbroker --help` is fast only without these imports."""
    script = (
        "import sys\n"
        "from kbroker.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('trio', 'construct', 'kazoo', 'rich', 'sqlite3') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_package_runs_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "kbroker", "--help"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("Usage: kbroker ")
