"""`kbroker serve`: from options and a properties file to a running broker, and from signals to its end.

What is served and where is `broker.py`'s; this module says on stdout when clients may come, and on stderr what happens.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Final, TextIO

import click
import trio

from kbroker.cli.command import Command
from kbroker.cli.log_lines import FORMATS, LEVELS, is_json, set_up_logging
from kbroker.cli.version import installed_version
from kbroker.config import BrokerConfig, Endpoint, parse_properties
from kbroker.errors import UserError
from kbroker.names import topic_name_problem

__all__ = ["command"]

logger = logging.getLogger(__name__)

DEFAULT_PARTITIONS: Final = -1
"""num.partitions decides."""

_LOOPBACK_NAMES: Final = frozenset({"localhost", "::1"})
_WILDCARDS: Final = frozenset({"0.0.0.0", "[::]"})


def _address(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """HOST:PORT, with an IPv6 host in brackets; no host means every interface."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise click.BadParameter(f"'{text}' is not HOST:PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise click.BadParameter(f"'{text}' is ambiguous: write an IPv6 address as [{host}]:{port}")
    return text


def _properties(_ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    properties = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"'{text}' is not KEY=VALUE")
        properties[name.strip()] = value.strip()
    return properties


def _topics(_ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> list[tuple[str, int]]:
    topics = []
    for text in texts:
        name, colon, count = text.partition(":")
        if colon and not (count.isascii() and count.isdigit() and int(count) > 0):
            raise click.BadParameter(f"'{text}' is not NAME:PARTITIONS")
        problem = topic_name_problem(name)
        if problem is not None:
            raise click.BadParameter(problem)
        topics.append((name, int(count) if colon else DEFAULT_PARTITIONS))
    return topics


@click.command(
    "serve",
    cls=Command,
    examples=[
        ("kbroker serve", "on 127.0.0.1:9092, with its data in kbroker-data"),
        (
            "kbroker serve --listen 127.0.0.1:0 --data-dir /tmp/orders --topic orders:3",
            "a free port, and a topic to begin with",
        ),
        ("kbroker serve --listen 0.0.0.0:9092 --advertise broker.example.com:9092", "for other machines"),
        ("kbroker serve --config server.properties --set num.partitions=3", "as Kafka is configured, with one change"),
        ("kbroker serve --metrics-listen 127.0.0.1:9308", "http://127.0.0.1:9308/metrics for Prometheus, /readyz too"),
    ],
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_address,
    help="Where to listen; port 0 takes a free one. [default: listeners, else 127.0.0.1:9092]",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    callback=_address,
    help="The address told to clients, if it is not the one listened on.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    help="Where topics and metadata are kept. [default: log.dirs, else kbroker-data]",
)
@click.option("--config", "config_file", type=click.File("r", encoding="utf-8"), help="A server.properties of Kafka's.")
@click.option(
    "--set",
    "given",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_properties,
    help="One property; wins over the file. Repeatable.",
)
@click.option(
    "--topic",
    "topics",
    metavar="NAME:PARTITIONS",
    multiple=True,
    callback=_topics,
    help="A topic to have from the start. Repeatable.",
)
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve /metrics, /healthz and /readyz over HTTP here. [default: kbroker.metrics.listeners, else nowhere]",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="Of the lines on stderr: text for people, json for programs; auto takes text on a terminal.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What is logged.")
def command(
    listen: str | None,
    advertise: str | None,
    data_dir: str | None,
    config_file: TextIO | None,
    given: Mapping[str, str],
    topics: Sequence[tuple[str, int]],
    metrics_listen: str | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run a broker until SIGTERM or ctrl-C; a second ctrl-C ends it at once."""
    flags = {
        "listeners": listen,
        "advertised.listeners": advertise,
        "log.dirs": data_dir,
        "kbroker.metrics.listeners": metrics_listen,
    }
    _refuse_contradictions(given, flags)
    properties = {**(_read(config_file) if config_file is not None else {}), **given}
    if listen is not None:
        properties["listeners"] = f"PLAINTEXT://{listen}"
        if "advertised.listeners" not in given:
            properties.pop("advertised.listeners", None)
            _refuse_unreachable(listen, advertise)
    if advertise is not None:
        properties["advertised.listeners"] = f"{_advertised_name(properties)}://{advertise}"
    if metrics_listen is not None:
        properties["kbroker.metrics.listeners"] = metrics_listen
    config = BrokerConfig.from_properties(properties)
    as_json = is_json(log_format, sys.stderr)
    set_up_logging(sys.stderr, level=log_level, as_json=as_json)
    for warning in (*config.warnings, *_exposed(config.endpoints)):
        _warn(warning, as_json=as_json)
    trio.run(_serve, config, data_dir, topics)


_GC_THRESHOLDS: Final = (10_000, 5, 100)

_FLAGS: Final = {
    "listeners": "--listen",
    "advertised.listeners": "--advertise",
    "log.dirs": "--data-dir",
    "kbroker.metrics.listeners": "--metrics-listen",
}


def _refuse_contradictions(given: Mapping[str, str], flags: Mapping[str, str | None]) -> None:
    for name, value in flags.items():
        if value is not None and name in given:
            raise click.UsageError(f"{_FLAGS[name]} and --set {name} say the same thing: give one of them")


def _refuse_unreachable(listen: str, advertise: str | None) -> None:
    host = listen.rpartition(":")[0]
    if host in _WILDCARDS and advertise is None:
        raise UserError(f"clients cannot connect to {host}: say with --advertise HOST:PORT how they reach this machine")


def _read(file: TextIO) -> dict[str, str]:
    try:
        return parse_properties(file.read())
    except UnicodeDecodeError:
        raise UserError(f"{file.name} is not a text file in UTF-8") from None


def _advertised_name(properties: Mapping[str, str]) -> str:
    """The name of the listener that --advertise speaks of."""
    texts = properties.get("listeners", "PLAINTEXT://").split(",")
    left_out = [name.strip() for name in properties.get("controller.listener.names", "").split(",")]
    names = [name for text in texts if (name := text.strip().partition("://")[0]) and name not in left_out]
    if len(names) != 1:
        raise click.UsageError("--advertise is for one listener; with several, set advertised.listeners")
    return names[0]


def _exposed(endpoints: Iterable[Endpoint]) -> Iterable[str]:
    for endpoint in endpoints:
        host = endpoint.host
        is_loopback = host in _LOOPBACK_NAMES or host.startswith("127.")
        if not is_loopback:
            yield (
                f"{endpoint} can be reached from other machines, and nobody is authenticated there: "
                "anybody who reaches it may read and write everything"
            )


def _warn(text: str, *, as_json: bool) -> None:
    if as_json:
        logger.warning(text)
    else:
        click.echo(f"kbroker: warning: {text}", err=True)


async def _serve(config: BrokerConfig, data_dir: str | None, topics: Sequence[tuple[str, int]]) -> None:
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
                    on_ready=_on_ready,
                    stop=stop,
                    version=installed_version(),
                )
            except* UserError as refusals:
                failure = _first(refusals)
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _stop_on_signal(signals: AsyncIterable[int], stop: trio.Event) -> None:
    async for received in signals:
        stop.set()
        if received == signal.SIGINT:
            # The next ctrl-C is the system's to handle: it works even if the loop should hang.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _first(refusals: BaseExceptionGroup[UserError]) -> UserError:
    first = refusals.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _on_ready(addresses: Iterable[tuple[str, int]]) -> None:
    # What there is now stays: the collector need not walk it again. And nearly all that comes later dies at once, so
    # that it may look less often; with ten thousand partitions a full pass takes a tenth of a second.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    for host, port in addresses:
        click.echo(f"kbroker is ready on {f'[{host}]' if ':' in host else host}:{port}")
