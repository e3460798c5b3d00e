"""`kbroker tokens`: creates, renews, expires and lists delegation tokens. A secret is never an argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kbroker.cli.command import Command, Group, bootstrap_option, json_option, yes_option
from kbroker.cli.output import confirm, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.cli.timestamps import duration_option, format_timestamp
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.delegation_tokens import IssuedToken
    from kbroker.security.delegation_token import DelegationToken

__all__ = ["command"]

_USER: Final = "User:"
_AT_ONCE: Final = -1


@click.group("tokens", cls=Group)
def command() -> None:
    """Create, renew, expire and list delegation tokens."""


def _check_users(_ctx: click.Context, _option: click.Parameter, value: Any) -> Any:
    for principal in (value,) if isinstance(value, str) else value or ():
        if not principal.startswith(_USER) or principal == _USER:
            raise click.BadParameter(f"'{principal}' is not a user. Use User:NAME, for example User:alice.")
    return value


@command.command(
    "create",
    cls=Command,
    examples=[
        ("kbroker tokens create > token.properties", "Create a token for yourself, as properties of a Kafka client"),
        ("kbroker tokens create --renewer User:yarn --lifetime 2d", "Let another user renew it, for at most two days"),
        ("kbroker tokens create --owner User:alice --json", "Create a token for another user; needs CREATE_TOKENS"),
    ],
)
@click.option("--owner", metavar="User:NAME", callback=_check_users, help="Owner. [default: the authenticated user]")
@click.option(
    "--renewer",
    "renewers",
    metavar="User:NAME",
    multiple=True,
    callback=_check_users,
    help="User who may renew and expire it too. Repeatable.",
)
@duration_option("--lifetime", "lifetime_ms", "Maximum lifetime. [default: delegation.token.max.lifetime.ms]")
@json_option
@bootstrap_option
def create(owner: str | None, renewers: Sequence[str], lifetime_ms: int | None, as_json: bool, bootstrap: str) -> None:
    """Create a token, with which a program can authenticate as its owner.

    Prints two properties of a Kafka client with the id and the secret of the token, or everything with --json. Keep
    them private.
    """

    async def call(cluster: Cluster) -> IssuedToken:
        from kbroker.client.delegation_tokens import create_token

        return await create_token(
            cluster, owner=owner, renewers=renewers, lifetime_ms=_AT_ONCE if lifetime_ms is None else lifetime_ms
        )

    from kbroker.security.delegation_token import token_password
    from kbroker.security.jaas import SCRAM_LOGIN_MODULE, quote_jaas

    token, hmac = run_with_cluster(bootstrap, call)
    password = token_password(hmac)
    if as_json:
        print_json({**_json(token), "hmac": password})
        return
    options = f'username={quote_jaas(token.token_id)} password={quote_jaas(password)} tokenauth="true"'
    click.echo("sasl.mechanism=SCRAM-SHA-512")
    click.echo(f"sasl.jaas.config={SCRAM_LOGIN_MODULE} required {options};")
    click.echo(
        f"Created delegation token {token.token_id} of {token.owner}. It expires at {_time(token.expiry_ms)}, and can "
        f"be renewed until {_time(token.max_ms)}.",
        err=True,
    )


@command.command(
    "renew",
    cls=Command,
    examples=[("kbroker tokens renew Tn8xG0mZQsWcJ4mX2VbK1g", "Let a token expire later")],
)
@click.argument("token_id", metavar="ID")
@duration_option(
    "--period", "period_ms", "Time from now until the token expires. [default: delegation.token.expiry.time.ms]"
)
@bootstrap_option
def renew(token_id: str, period_ms: int | None, bootstrap: str) -> None:
    """Renew a token, up to its maximum lifetime.

    Only its owner and its renewers may do this.
    """

    async def call(cluster: Cluster) -> int:
        from kbroker.client.delegation_tokens import renew_token

        return await renew_token(cluster, await _find(cluster, token_id), -1 if period_ms is None else period_ms)

    click.echo(f"Delegation token {token_id} expires at {_time(run_with_cluster(bootstrap, call))}.")


@command.command(
    "expire",
    cls=Command,
    examples=[
        ("kbroker tokens expire Tn8xG0mZQsWcJ4mX2VbK1g --yes", "Delete a token"),
        ("kbroker tokens expire Tn8xG0mZQsWcJ4mX2VbK1g --after 10m --yes", "Let it expire in ten minutes"),
    ],
)
@click.argument("token_id", metavar="ID")
@duration_option("--after", "period_ms", "Time from now until the token expires. [default: at once]")
@yes_option
@bootstrap_option
def expire(token_id: str, period_ms: int | None, yes: bool, bootstrap: str) -> None:
    """Expire a token: no client can authenticate with it any more.

    Only its owner and its renewers may do this. Authenticated clients keep their session until the time at which
    the token would have expired.
    """
    confirm(f"Expire delegation token {token_id}?", yes=yes)

    async def call(cluster: Cluster) -> int:
        from kbroker.client.delegation_tokens import expire_token

        return await expire_token(cluster, await _find(cluster, token_id), _AT_ONCE if period_ms is None else period_ms)

    expiry_ms = run_with_cluster(bootstrap, call)
    if period_ms is None:
        click.echo(f"Deleted delegation token {token_id}.")
    else:
        click.echo(f"Delegation token {token_id} expires at {_time(expiry_ms)}.")


@command.command(
    "list",
    cls=Command,
    examples=[
        ("kbroker tokens list", "List all tokens that you may see"),
        ("kbroker tokens list --owner User:alice", "List those that a user owns or may renew"),
    ],
)
@click.option(
    "--owner",
    "owners",
    metavar="User:NAME",
    multiple=True,
    callback=_check_users,
    help="Owner or renewer. Repeatable. [default: all]",
)
@json_option
@bootstrap_option
def list_tokens(owners: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """List delegation tokens, without their secrets.

    These are the tokens that you own or may renew; others need DESCRIBE on the token, or DESCRIBE_TOKENS on its owner.
    """

    async def call(cluster: Cluster) -> list[IssuedToken]:
        from kbroker.client.delegation_tokens import describe_tokens

        return await describe_tokens(cluster, owners or None)

    found = [issued.token for issued in run_with_cluster(bootstrap, call)]
    if as_json:
        print_json([_json(token) for token in found])
    elif found:
        columns = ["id", "owner", "requester", "renewers", "expires", "renewable until"]
        rows: list[list[str | int | None]] = [
            [
                token.token_id,
                token.owner,
                token.requester,
                ", ".join(token.renewers),
                _time(token.expiry_ms),
                _time(token.max_ms),
            ]
            for token in found
        ]
        print_table(columns, rows)
    else:
        click.echo("No delegation tokens.", err=True)


async def _find(cluster: Cluster, token_id: str) -> IssuedToken:
    from kbroker.client.delegation_tokens import describe_tokens

    for issued in await describe_tokens(cluster):
        if issued.token.token_id == token_id:
            return issued
    raise UserError(f"Delegation token {token_id} does not exist. Run 'kbroker tokens list' to see your tokens.")


def _json(token: DelegationToken) -> dict[str, object]:
    return {
        "id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": _time(token.issue_ms),
        "expires": _time(token.expiry_ms),
        "renewable_until": _time(token.max_ms),
    }


def _time(timestamp_ms: int) -> str:
    return format_timestamp(timestamp_ms) or "never"
