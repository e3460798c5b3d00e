"""`kbroker serve`: builds the configuration from options and a properties file, runs a broker, stops it on signals.

Prints to stdout when the broker accepts clients; logs to stderr.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Final, TextIO

import click
import trio

from kbroker.cli.command import Command
from kbroker.cli.commands.version import installed_version
from kbroker.cli.log_lines import FORMATS, LEVELS, is_json, set_up_logging
from kbroker.cli.secure_node import ADMIN, SECURE_PROTOCOL, SECURED, SecureNode, prepare_secure_node
from kbroker.cli.visible_secrets import secrets_in, visible_secret
from kbroker.clock import SystemClock
from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import Endpoint, format_address
from kbroker.config.properties import parse_properties
from kbroker.config.supported import check_supported
from kbroker.errors import UserError
from kbroker.names import topic_name_problem

__all__ = ["command"]

logger = logging.getLogger(__name__)

DEFAULT_PARTITIONS: Final = -1
"""Partition count of a topic that gets num.partitions."""

_LOOPBACK_NAMES: Final = frozenset({"localhost", "::1"})
_WILDCARDS: Final = frozenset({"0.0.0.0", "[::]"})
_ALL_INTERFACES: Final = frozenset({"0.0.0.0", "::"})
_DEFAULT_LISTEN: Final = "127.0.0.1:9092"

OnReady = Callable[[list[tuple[str, int]]], None]
"""Called with the addresses of the broker when it accepts clients."""


def _check_address(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Checks HOST:PORT (click callback). An IPv6 host is in brackets; an empty host means all interfaces."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise click.BadParameter(f"Expected HOST:PORT, got '{text}'")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise click.BadParameter(f"Put an IPv6 address in brackets: [{host}]:{port}, not {text}")
    return text


def _parse_properties(_ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    properties = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"Expected KEY=VALUE, got '{text}'")
        properties[name.strip()] = value.strip()
    return properties


def _parse_topics(_ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> list[tuple[str, int]]:
    topics = []
    for text in texts:
        name, colon, count = text.partition(":")
        if colon and not (count.isascii() and count.isdigit() and int(count) > 0):
            raise click.BadParameter(f"Expected NAME or NAME:PARTITIONS, got '{text}'")
        problem = topic_name_problem(name)
        if problem is not None:
            raise click.BadParameter(problem)
        topics.append((name, int(count) if colon else DEFAULT_PARTITIONS))
    return topics


@click.command(
    "serve",
    cls=Command,
    examples=[
        ("kbroker serve", "Listen on 127.0.0.1:9092, store data in kbroker-data"),
        (
            "kbroker serve --listen 127.0.0.1:0 --data-dir orders-data --topic orders:3",
            "Listen on a free port and create a topic",
        ),
        (
            "kbroker serve --listen 0.0.0.0:9092 --advertise broker.example.com:9092",
            "Accept clients from other machines",
        ),
        (
            "kbroker serve --config server.properties --set num.partitions=3",
            "Use a Kafka configuration file and override one property",
        ),
        ("kbroker serve --secure", "Encrypt connections, ask clients for a password, and use ACLs"),
        ("kbroker serve --metrics-listen 127.0.0.1:9308", "Serve Prometheus metrics and health checks over HTTP"),
    ],
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_check_address,
    help="Address to listen on; port 0 picks a free port. [default: listeners, or 127.0.0.1:9092]",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    callback=_check_address,
    help="Address that clients connect to, if different from --listen.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    help="Data directory. [default: log.dirs, or kbroker-data]",
)
@click.option(
    "--config",
    "config_file",
    type=click.File("r", encoding="utf-8"),
    help="Kafka configuration file (server.properties).",
)
@click.option(
    "--set",
    "given",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_parse_properties,
    help="Set a property; overrides --config. Repeatable. Write secrets into the file of --config.",
)
@click.option(
    "--topic",
    "topics",
    metavar="NAME[:PARTITIONS]",
    multiple=True,
    callback=_parse_topics,
    help="Create a topic at startup if it does not exist. Repeatable.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Make certificates and the user admin in the data directory, and use TLS, SCRAM-SHA-512 and ACLs.",
)
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    callback=_check_address,
    help="Serve /metrics, /healthz and /readyz over HTTP. [default: kbroker.metrics.listeners, or off]",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="Log format on stderr; auto means text on a terminal, otherwise json.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="Minimum level to log.")
def command(
    listen: str | None,
    advertise: str | None,
    data_dir: str | None,
    config_file: TextIO | None,
    given: Mapping[str, str],
    topics: Sequence[tuple[str, int]],
    secure: bool,
    metrics_listen: str | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run a broker.

    Stops cleanly on SIGTERM or Ctrl-C; a second Ctrl-C kills it.
    """
    flags = {
        "listeners": listen,
        "advertised.listeners": advertise,
        "log.dirs": data_dir,
        "kbroker.metrics.listeners": metrics_listen,
    }
    _check_no_conflicts(given, flags)
    in_file = _read_properties(config_file) if config_file is not None else {}
    properties = {**in_file, **given}
    if secure:
        listen = listen or _DEFAULT_LISTEN
        _check_can_be_secured(properties)
        properties.update(SECURED)
    if listen is not None:
        properties["listeners"] = f"{SECURE_PROTOCOL if secure else 'PLAINTEXT'}://{listen}"
        if "advertised.listeners" not in given:
            properties.pop("advertised.listeners", None)
            _check_reachable(listen, advertise)
    if advertise is not None:
        properties["advertised.listeners"] = f"{_advertised_listener_name(properties)}://{advertise}"
    if metrics_listen is not None:
        properties["kbroker.metrics.listeners"] = metrics_listen
    config = BrokerConfig.from_properties(properties)
    check_supported(config)  # before the warnings: a refused start is one line
    on_ready = _on_ready
    if secure:
        node = _prepare_secure_node(config, data_dir)
        config = BrokerConfig.from_properties({**node.properties, **properties})
        on_ready = partial(_on_secure_ready, node)
    as_json = is_json(log_format, sys.stderr)
    set_up_logging(sys.stderr, level=log_level, as_json=as_json)
    for warning in (*config.warnings, *_security_warnings(config), *_visible_secrets(given, config_file, in_file)):
        _warn(warning, as_json=as_json)
    trio.run(_serve, config, data_dir, topics, on_ready)


_GC_THRESHOLDS: Final = (10_000, 5, 100)

_FLAGS: Final = {
    "listeners": "--listen",
    "advertised.listeners": "--advertise",
    "log.dirs": "--data-dir",
    "kbroker.metrics.listeners": "--metrics-listen",
}


def _check_no_conflicts(given: Mapping[str, str], flags: Mapping[str, str | None]) -> None:
    for name, value in flags.items():
        if value is not None and name in given:
            raise click.UsageError(f"Use either {_FLAGS[name]} or --set {name}, not both")


def _check_can_be_secured(properties: Mapping[str, str]) -> None:
    """Raises UserError if the properties contradict --secure."""
    for name in (*SECURED, "listeners", "advertised.listeners", "ssl.keystore.location", "ssl.keystore.key"):
        if properties.get(name):
            raise UserError(f"--secure sets {name}. Remove it, or leave out --secure and set all security configs.")
    if properties.get("zookeeper.connect"):
        raise UserError(
            "--secure is for a single node. The brokers of a cluster need certificates of one certificate authority: "
            "see 'kbroker certs new'."
        )


def _prepare_secure_node(config: BrokerConfig, data_dir: str | None) -> SecureNode:
    """Makes the certificates and the user of --secure, and prints the password of a new user."""
    hosts = {endpoint.host for endpoint in (*config.endpoints, *config.advertised_endpoints)}
    node = prepare_secure_node(
        Path(data_dir or config.data_dirs[0]),
        hosts=sorted(host or socket.gethostname() for host in hosts if host not in _ALL_INTERFACES),
        now_ms=SystemClock().now_ms(),
    )
    if node.new_password is not None:
        click.echo(f"Added user {ADMIN} with the password {node.new_password}, which is not shown again")
    return node


def _check_reachable(listen: str, advertise: str | None) -> None:
    host = listen.rpartition(":")[0]
    if host in _WILDCARDS and advertise is None:
        raise UserError(
            f"Clients cannot connect to {host}. Set the address that clients use with --advertise HOST:PORT."
        )


def _read_properties(file: TextIO) -> dict[str, str]:
    try:
        return parse_properties(file.read())
    except UnicodeDecodeError:
        raise UserError(f"{file.name} is not a UTF-8 text file") from None


def _advertised_listener_name(properties: Mapping[str, str]) -> str:
    """Returns the name of the only client listener. Raises UsageError if there are several."""
    texts = properties.get("listeners", "PLAINTEXT://").split(",")
    controller_names = [name.strip() for name in properties.get("controller.listener.names", "").split(",")]
    names = [name for text in texts if (name := text.strip().partition("://")[0]) and name not in controller_names]
    if len(names) != 1:
        raise click.UsageError(
            "--advertise works with one listener only. Use --set advertised.listeners=... for several."
        )
    return names[0]


def _security_warnings(config: BrokerConfig) -> Iterable[str]:
    for endpoint in config.endpoints:
        host = endpoint.host
        is_loopback = host in _LOOPBACK_NAMES or host.startswith("127.")
        if not is_loopback and endpoint.security_protocol == "SASL_PLAINTEXT":
            yield f"{endpoint} is reachable from other machines without encryption: use SASL_SSL"
        elif not is_loopback and not _authenticates(config, endpoint):
            yield (
                f"{endpoint} accepts connections from other machines without authentication: "
                "any client that can connect can read and write all data"
            )


def _visible_secrets(given: Mapping[str, str], file: TextIO | None, in_file: Mapping[str, str]) -> Iterable[str]:
    """Warns about secrets that other users of the machine can read: on the command line and in the file of --config."""
    for name in secrets_in(given):
        yield visible_secret(name, file_option="--config")
    if file is not None and os.fstat(file.fileno()).st_mode & stat.S_IROTH:
        for name in secrets_in(in_file)[:1]:
            yield f"every user of this machine can read {name} in {file.name}: run chmod 600 {quote(file.name)}"


def _authenticates(config: BrokerConfig, endpoint: Endpoint) -> bool:
    """Whether every client of the listener must prove who it is."""
    if endpoint.security_protocol == "SSL":
        return config.listener_config(endpoint.name).ssl_client_auth == "required"
    return endpoint.security_protocol != "PLAINTEXT"


def _warn(text: str, *, as_json: bool) -> None:
    if as_json:
        logger.warning(text)
    else:
        click.echo(f"kbroker: warning: {text}", err=True)


async def _serve(
    config: BrokerConfig, data_dir: str | None, topics: Sequence[tuple[str, int]], on_ready: OnReady
) -> None:
    from kbroker.web.monitor import run_monitored_broker

    stop = trio.Event()
    failure: UserError | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, signals, stop)
            try:
                await run_monitored_broker(
                    config,
                    data_dir=data_dir,
                    topics=topics,
                    on_ready=on_ready,
                    stop=stop,
                    version=installed_version(),
                )
            except* UserError as errors:
                failure = _first_error(errors)
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _stop_on_signal(signals: AsyncIterable[int], stop: trio.Event) -> None:
    async for received in signals:
        stop.set()
        if received == signal.SIGINT:
            # The default handler lets a second Ctrl-C end the process even if the event loop hangs.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _first_error(errors: BaseExceptionGroup[UserError]) -> UserError:
    first = errors.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first


def _on_ready(addresses: Iterable[tuple[str, int]]) -> None:
    # Objects created during startup live until the end: freezing them keeps them out of all later collections. Most
    # objects of requests are freed by reference counting, so collections can be rare; with ten thousand partitions a
    # full collection takes 100 ms.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    for host, port in addresses:
        click.echo(f"kbroker is ready on {format_address(host, port)}")


def _on_secure_ready(node: SecureNode, addresses: list[tuple[str, int]]) -> None:
    _on_ready(addresses)
    bootstrap = format_address(*addresses[0])
    click.echo(
        f"Clients of {ADMIN}, for example:\n"
        f"  kbroker topics list -b {bootstrap} --command-config {quote(str(node.client_file))}\n"
        f"  kcat -b {bootstrap} -F {quote(str(node.librdkafka_file))} -L"
    )
