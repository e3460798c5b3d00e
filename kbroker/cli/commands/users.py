"""`kbroker users`: adds, lists and removes users that log in with SCRAM. A password is never an argument."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from kbroker.cli.command import Command, Function, Group, bootstrap_option, json_option, yes_option
from kbroker.cli.output import confirm, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.errors import UserError
from kbroker.security.credentials import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_MECHANISMS

if TYPE_CHECKING:
    from kbroker.client.admin.scram_users import ScramUser
    from kbroker.client.cluster import Cluster
    from kbroker.controller.trees.tree import Tree

__all__ = ["command"]

PASSWORD_VARIABLE: Final = "KBROKER_USER_PASSWORD"


@click.group("users", cls=Group)
def command() -> None:
    """Add, list and remove SCRAM users."""


def _mechanism_option(function: Function) -> Function:
    return click.option(
        "--mechanism",
        "mechanisms",
        type=click.Choice(list(SCRAM_MECHANISMS), case_sensitive=False),
        multiple=True,
        help="SCRAM mechanism; repeatable. Default: all.",
    )(function)


def _check_user(_ctx: click.Context, _argument: click.Parameter, name: str) -> str:
    if not name or not name.isascii() or not name.isprintable():
        raise click.BadParameter("User names of SCRAM consist of printable ASCII characters.")
    return name


@command.command(
    "add",
    cls=Command,
    examples=[
        ("kbroker users add alice", "Add a user or change its password; asks for the password"),
        ("kbroker users add alice --password-file alice.password", "Read the password from a file"),
        ("kbroker users add admin --data-dir kbroker-data", "Add the first user before a broker starts"),
        ("kbroker users add admin --zookeeper 127.0.0.1:2181", "The same for a ZooKeeper cluster"),
        (
            "kbroker users add admin --zookeeper zk:2182 --zookeeper-config server.properties",
            "The same with the broker's TLS, login and access rights at ZooKeeper",
        ),
    ],
)
@click.argument("user", callback=_check_user)
@_mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=MIN_ITERATIONS,
    show_default=True,
    help="Iterations of the password hash.",
)
@click.option(
    "--password-file",
    type=click.Path(allow_dash=True, dir_okay=False),
    metavar="FILE",
    help=f"File with the password, - for stdin. Default: {PASSWORD_VARIABLE}, or a prompt.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory of a stopped broker: add the user there.",
)
@click.option("--zookeeper", metavar="HOST:PORT", help="ZooKeeper of a cluster: add the user there.")
@click.option(
    "--zookeeper-config",
    metavar="FILE",
    type=click.File("r", encoding="utf-8"),
    help="Properties with zookeeper.ssl.*, zookeeper.set.acl and kbroker.zookeeper.jaas.file: those of a broker.",
)
@bootstrap_option
def add(
    user: str,
    mechanisms: Sequence[str],
    iterations: int,
    password_file: str | None,
    data_dir: Path | None,
    zookeeper: str | None,
    zookeeper_config: TextIO | None,
    bootstrap: str,
) -> None:
    """Add a user, or change its password.

    The broker gets a hash of the password, never the password itself. Without --data-dir and --zookeeper, a broker must
    be running.
    """
    if data_dir is not None and zookeeper is not None:
        raise click.UsageError("Use either --data-dir or --zookeeper")
    if zookeeper_config is not None and zookeeper is None:
        raise click.UsageError("--zookeeper-config needs --zookeeper")
    password = _read_password(password_file)
    wanted = list(mechanisms) or list(SCRAM_MECHANISMS)
    if data_dir is None and zookeeper is None:

        async def call(cluster: Cluster) -> None:
            from kbroker.client.admin.scram_users import set_scram_password

            await set_scram_password(cluster, user, password=password, mechanisms=wanted, iterations=iterations)

        run_with_cluster(bootstrap, call)
    else:
        credentials = _credentials(password, wanted, iterations)

        async def add_offline(tree: Tree) -> None:
            from kbroker.controller.config_entities import entity_path
            from kbroker.controller.offline_configs import update_offline

            await update_offline(tree, entity_path("users", user), lambda current: {**current, **credentials})

        _run_offline(add_offline, data_dir, zookeeper, zookeeper_config)
    click.echo(f"Added credentials of user {user}: {', '.join(wanted)}.")


def _credentials(password: str, mechanisms: Sequence[str], iterations: int) -> dict[str, str]:
    from kbroker.security.credentials import credential_of_password, format_credential

    return {
        name: format_credential(credential_of_password(SCRAM_MECHANISMS[name], password, iterations=iterations))
        for name in mechanisms
    }


def _run_offline(
    call: Callable[[Tree], Awaitable[None]],
    data_dir: Path | None,
    zookeeper: str | None,
    zookeeper_config: TextIO | None,
) -> None:
    from kbroker.cli.stopped_broker import run_in_data_dir, run_in_zookeeper
    from kbroker.config.properties import read_properties

    if zookeeper is not None:
        properties = {} if zookeeper_config is None else read_properties(zookeeper_config)
        run_in_zookeeper(zookeeper, properties, call)
    else:
        assert data_dir is not None
        run_in_data_dir(data_dir, call)


def _read_password(path: str | None) -> str:
    password: str
    if path is not None:
        password = _first_line(path)
    elif PASSWORD_VARIABLE in os.environ:
        password = os.environ[PASSWORD_VARIABLE]
    elif not sys.stdin.isatty():
        raise UserError(f"No password. Set {PASSWORD_VARIABLE}, or use --password-file.")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    if not password:
        raise UserError("The password is empty.")
    return password


def _first_line(path: str) -> str:
    try:
        with click.open_file(path, encoding="utf-8") as file:
            line: str = file.readline()
            return line.rstrip("\r\n")
    except OSError as problem:
        raise UserError(f"Could not read {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8") from None


@command.command(
    "list",
    cls=Command,
    examples=[
        ("kbroker users list", "List all users with SCRAM credentials"),
        ("kbroker users list --json", "The same as JSON"),
    ],
)
@json_option
@bootstrap_option
def list_users(as_json: bool, bootstrap: str) -> None:
    """List users with SCRAM credentials, their mechanisms and iterations."""

    async def call(cluster: Cluster) -> list[ScramUser]:
        from kbroker.client.admin.scram_users import describe_scram_users

        return await describe_scram_users(cluster)

    found = run_with_cluster(bootstrap, call)
    if as_json:
        print_json([{"user": user.name, "iterations": user.iterations} for user in found])
    elif found:
        rows: list[list[str | int | None]] = [
            [user.name, mechanism, iterations] for user in found for mechanism, iterations in user.iterations.items()
        ]
        print_table(["user", "mechanism", "iterations"], rows)
    else:
        click.echo("No users with SCRAM credentials.", err=True)


@command.command(
    "remove",
    cls=Command,
    examples=[
        ("kbroker users remove alice --yes", "Remove a user"),
        ("kbroker users remove alice --mechanism SCRAM-SHA-256 --yes", "Remove one credential of a user"),
    ],
)
@click.argument("user")
@_mechanism_option
@yes_option
@bootstrap_option
def remove(user: str, mechanisms: Sequence[str], yes: bool, bootstrap: str) -> None:
    """Remove the credentials of a user.

    Open connections of the user stay authenticated until they are closed, or until their session ends
    (connections.max.reauth.ms).
    """
    confirm(f"Remove the credentials of user {user}?", yes=yes)

    async def call(cluster: Cluster) -> list[str]:
        from kbroker.client.admin.scram_users import delete_scram_user, describe_scram_users

        (found,) = await describe_scram_users(cluster, [user])
        removed = list(mechanisms) or list(found.iterations)
        await delete_scram_user(cluster, user, removed)
        return removed

    removed = run_with_cluster(bootstrap, call)
    click.echo(f"Removed credentials of user {user}: {', '.join(removed)}.")
