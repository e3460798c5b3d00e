"""`kbroker certs`: makes certificates for development."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kbroker.cli.command import Command, Group
from kbroker.errors import UserError

__all__ = ["command"]


@click.group("certs", cls=Group)
def command() -> None:
    """Make certificates for development."""


@command.command(
    "new",
    cls=Command,
    examples=[
        ("kbroker certs new", "Create a CA, a broker certificate for this machine, and a client certificate"),
        (
            "kbroker certs new --dir certs --broker broker2 --host kafka2.example.com --client billing",
            "Add certificates of the same CA for another broker and another client",
        ),
        (
            "kbroker certs new --broker broker1 --broker broker2 --broker broker3",
            "Create certificates for three brokers of this machine",
        ),
    ],
)
@click.option("--dir", "directory", default="certs", show_default=True, help="Directory for the files.")
@click.option(
    "--broker",
    "brokers",
    metavar="NAME",
    multiple=True,
    help="Name of a broker certificate. Repeatable: each is valid for all hosts. [default: broker, if there is no "
    "CA yet]",
)
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    default=("localhost", "127.0.0.1", "::1"),
    help="Name or address by which clients reach the brokers. Repeatable. [default: localhost, 127.0.0.1 and ::1]",
)
@click.option(
    "--client",
    "clients",
    metavar="NAME",
    multiple=True,
    help="Name of a client certificate: the principal is User:CN=NAME. Repeatable. [default: client, if there is no "
    "CA yet]",
)
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Validity in days.")
def new(directory: str, brokers: Sequence[str], hosts: Sequence[str], clients: Sequence[str], days: int) -> None:
    """Create a certificate authority (CA), and certificates of brokers and of clients, as PEM files.

    If the directory already has a CA, this CA signs the new certificates. For development only: the key of the CA
    is not encrypted. Use the certificates of your organization in production.
    """
    from kbroker.clock import SystemClock
    from kbroker.security.development_certificates import DevelopmentCertificates

    certificates = DevelopmentCertificates(directory, now_ms=SystemClock().now_ms(), days=days)
    if not certificates.has_authority:
        brokers, clients = brokers or ("broker",), clients or ("client",)
    elif not brokers and not clients:
        raise UserError(f"{directory} has a CA already. Add a certificate with --broker NAME or --client NAME.")
    certificates.check_new([*brokers, *clients])
    if certificates.make_authority():
        click.echo(f"Certificate authority (CA), which brokers and clients trust: {certificates.authority_file}")
    files = [certificates.make(broker, hosts=hosts) for broker in brokers]
    for broker, file in zip(brokers, files, strict=True):
        click.echo(f"Broker {broker} ({', '.join(hosts)}): {file}")
    for client in clients:
        click.echo(f"Client User:CN={client}: {certificates.make(client)}")
    click.echo("For development only.")
    for broker, file in zip(brokers, files, strict=True):
        click.echo(f"\nProperties of {broker}:\n")
        for line in (
            "listeners=SSL://127.0.0.1:9093",
            f"ssl.keystore.location={file.absolute()}",
            f"ssl.truststore.location={certificates.authority_file.absolute()}",
            "ssl.client.auth=required",
        ):
            click.echo(f"  {line}")
    click.echo(
        f"\nkbroker: warning: {directory}/ca.key signs any certificate: keep it away from other people and from "
        "production",
        err=True,
    )
