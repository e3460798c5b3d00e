"""`kbroker certs`: makes certificates for development."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kbroker.cli.command import Command, Group

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
    ],
)
@click.option("--dir", "directory", default="certs", show_default=True, help="Directory for the files.")
@click.option("--broker", default="broker", show_default=True, metavar="NAME", help="Name of the broker certificate.")
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    default=("localhost", "127.0.0.1", "::1"),
    help="Name or address by which clients reach the broker. Repeatable. [default: localhost, 127.0.0.1 and ::1]",
)
@click.option(
    "--client",
    "clients",
    metavar="NAME",
    multiple=True,
    default=("client",),
    help="Name of a client certificate: the principal is User:CN=NAME. Repeatable. [default: client]",
)
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Validity in days.")
def new(directory: str, broker: str, hosts: Sequence[str], clients: Sequence[str], days: int) -> None:
    """Create a certificate authority (CA), and certificates of a broker and of clients, as PEM files.

    If the directory already has a CA, this CA signs the new certificates. For development only: the key of the CA
    is not encrypted. Use the certificates of your organization in production.
    """
    from kbroker.clock import SystemClock
    from kbroker.security.development_certificates import DevelopmentCertificates

    certificates = DevelopmentCertificates(directory, now_ms=SystemClock().now_ms(), days=days)
    if certificates.make_authority():
        click.echo(f"Certificate authority (CA), which brokers and clients trust: {certificates.authority_file}")
    file = certificates.make(broker, hosts=hosts)
    click.echo(f"Broker {broker} ({', '.join(hosts)}): {file}")
    for client in clients:
        click.echo(f"Client User:CN={client}: {certificates.make(client)}")
    click.echo("For development only. Properties of the broker:\n")
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
