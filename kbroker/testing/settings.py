"""Broker settings of tests as Python values: `num_partitions=3`, `topics=["orders:3"]`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import format_address
from kbroker.controller.rules.topic_rules import DEFAULT
from kbroker.errors import UserError

__all__ = [
    "CONTAINERS",
    "HELPER",
    "Acls",
    "Setting",
    "Topics",
    "acl_properties",
    "config_for_tests",
    "listener_properties",
    "properties_of",
    "protocol_for",
    "topics_of",
    "warn_about",
]

Setting = str | int | float | bool | Iterable[str]
Topics = Iterable[str] | Mapping[str, int]
Acls = Sequence[str] | None
"""Lines such as `allow User:ANONYMOUS READ topic orders`. None: no authorizer; empty: nothing is allowed."""

HELPER: Final = "kbroker.testing"
"""Name under which `Broker.produce` and `Broker.records` log in."""

CONTAINERS: Final = "CONTAINERS"
"""Name of the listener for clients in containers."""

_LOOPBACK: Final = "127.0.0.1"
# A free loopback port, internal topics with one partition and no reserved disk space, for a fast start. Connections
# are never idle for too long: the clock of a test may be advanced by days.
_DEFAULTS: Final = {
    "connections.max.idle.ms": "-1",
    "kbroker.log.dir.reserve.bytes": "0",
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


def config_for_tests(properties: Mapping[str, str]) -> BrokerConfig:
    """Builds the config of a test broker. Raises UserError if a value is invalid."""
    if "log.dirs" in properties or "log.dir" in properties:
        raise UserError("Use data_dir=… to set the data directory: log.dirs would not be removed after the test")
    return BrokerConfig.from_properties({**_DEFAULTS, **properties})


def warn_about(config: BrokerConfig, *, stacklevel: int) -> None:
    """Warns about each setting that is unknown or has no effect, at the line that `stacklevel` names."""
    for text in config.warnings:
        warnings.warn(text, stacklevel=stacklevel + 1)


def listener_properties(
    container_host: str | None,
    container_bind: str,
    ports: Mapping[str, int] | None = None,
    *,
    protocol: str = "PLAINTEXT",
) -> dict[str, str]:
    """Returns the listeners on loopback and, with `container_host`, for clients in containers.

    `ports`: port of each listener; None for free ports. `protocol`: security protocol, and name of the first listener.
    """
    port_of = dict.fromkeys((protocol, CONTAINERS), 0) if ports is None else ports
    listeners = f"{protocol}://{format_address(_LOOPBACK, port_of[protocol])}"
    if container_host is None:
        return {"listeners": listeners}
    port = port_of[CONTAINERS]
    return {
        "listeners": f"{listeners},{CONTAINERS}://{format_address(container_bind, port)}",
        "advertised.listeners": f"{listeners},{CONTAINERS}://{format_address(container_host, port)}",
        "listener.security.protocol.map": f"{protocol}:{protocol},{CONTAINERS}:{protocol}",
    }


def protocol_for(*, has_users: bool, has_tls: bool) -> str:
    """Returns the security protocol of the listeners of a test broker."""
    return f"{'SASL_' if has_users else ''}{'SSL' if has_tls else 'PLAINTEXT'}"


def properties_of(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Converts settings to Kafka's names and texts. Names may have dots or underscores."""
    return {name.replace("_", "."): _text(name, value) for name, value in settings.items()}


def acl_properties(acls: Acls, properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the configs of the authorizer; empty without ACLs.

    The login of `Broker.produce` and `Broker.records`, which a broker with users has, is a super user.
    """
    if acls is None:
        return {}
    super_users = f"{properties.get('super.users', '')};User:{HELPER}"
    return {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": super_users}


def topics_of(topics: Topics) -> list[tuple[str, int]]:
    """Parses `["orders:3", "events"]` or `{"orders": 3}`. Without a count, num.partitions is used."""
    if isinstance(topics, str):
        topics = [topics]
    if isinstance(topics, Mapping):
        return [(name, _count(name, count)) for name, count in topics.items()]
    return [_topic(text) for text in topics]


def _topic(text: str) -> tuple[str, int]:
    if not isinstance(text, str):  # a test may run without a type checker
        raise UserError(f"Invalid topic {text!r}: expected name or name:partitions")
    name, colon, count = text.partition(":")
    if not colon:
        return name, DEFAULT
    if not (count.isascii() and count.isdigit()):
        raise UserError(f"Invalid topic '{text}': expected name or name:partitions")
    return name, _count(name, int(count))


def _count(name: str, count: int) -> int:
    if count < 1:
        raise UserError(f"Topic {name} must have at least one partition, not {count}")
    return count


def _text(name: str, value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    try:
        return ",".join(value)
    except TypeError:
        raise UserError(f"{name}={value!r} is not a text, a number, a bool or a list of texts") from None
