"""Configs of one listener: those of TLS and SASL, with the prefixes of the listener and of the mechanism applied.

`listener.name.<listener>.<config>` beats `<config>`, and `listener.name.<listener>.<mechanism>.<config>` beats both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from kbroker.config.key import ConfigKey, keys_of
from kbroker.config.sasl import SaslConfig
from kbroker.config.tls import TlsConfig
from kbroker.errors import UserError

__all__ = [
    "RELOADABLE",
    "SECURITY_CONFIGS",
    "ListenerConfig",
    "PrefixedName",
    "listener_config",
    "normal_name",
    "parse_security_configs",
    "split_name",
]

_PREFIXED: Final = re.compile(r"listener\.name\.([^.]+)\.(.+)", re.DOTALL)

RELOADABLE: Final = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Configs that a running broker takes with the prefix of a listener."""


class ListenerConfig(TlsConfig, SaslConfig):
    """Effective configs of a listener, or of the connections that a client opens. Attributes are read-only."""

    name: str
    """Name of the listener in upper case; empty for a client."""
    security_protocol: str
    mechanism: str | None
    """SASL mechanism in upper case, or None for the configs that hold for all mechanisms."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"ListenerConfig.{name} is read-only")


SECURITY_CONFIGS: Final[Mapping[str, ConfigKey[Any]]] = {key.name: key for key in keys_of(ListenerConfig)}
"""The configs that may have the prefix of a listener."""
_SASL: Final = frozenset(key.name for key in keys_of(SaslConfig))


class PrefixedName(NamedTuple):
    """Name of a config with the prefix of a listener. Listener and mechanism are in lower case."""

    listener: str
    mechanism: str | None
    base: str


def split_name(name: str) -> PrefixedName | None:
    """Returns the parts of a name with the prefix of a listener, or None for any other name."""
    found = _PREFIXED.fullmatch(name)
    if found is None:
        return None
    listener, base = found[1].lower(), found[2]
    mechanism, _, rest = base.partition(".")
    if base not in SECURITY_CONFIGS and rest in _SASL:
        return PrefixedName(listener, mechanism.lower(), rest)
    return PrefixedName(listener, None, base)


def normal_name(name: str) -> str:
    """Returns the name with the prefixes of its listener and its mechanism in lower case."""
    parts = split_name(name)
    if parts is None:
        return name
    mechanism = "" if parts.mechanism is None else f"{parts.mechanism}."
    return f"listener.name.{parts.listener}.{mechanism}{parts.base}"


def parse_security_configs(texts: Mapping[str, str], *, prefix: str = "") -> dict[str, object]:
    """Returns the typed values of the configs of TLS and SASL in `texts`. Raises UserError if one is invalid.

    `prefix` is put before the name in the error.
    """
    values: dict[str, object] = {}
    for name, text in texts.items():
        if name in SECURITY_CONFIGS:
            try:
                values[name] = SECURITY_CONFIGS[name].parse(text)
            except ValueError as problem:
                raise UserError(f"{prefix}{problem}") from None
    return values


def listener_config(
    texts: Mapping[str, str], name: str, *, security_protocol: str, mechanism: str | None = None
) -> ListenerConfig:
    """Returns the configs of a listener. The names in `texts` are those that `normal_name` returns.

    `mechanism`: applies the configs of a SASL mechanism too. Raises UserError if a value is invalid.
    """
    prefix = f"listener.name.{name.lower()}."
    own = _with_prefix(texts, prefix)
    shared = {key: text for key, text in texts.items() if key in SECURITY_CONFIGS}
    if security_protocol == "SASL_SSL":
        # As in Kafka: a value for all listeners is meant for SSL, where the certificate gives the principal.
        shared.pop("ssl.client.auth", None)
    values = {**parse_security_configs(shared), **parse_security_configs(own, prefix=prefix)}
    effective = {**shared, **own}
    if mechanism is not None:
        mechanism_prefix = f"{prefix}{mechanism.lower()}."
        of_mechanism = _with_prefix(texts, mechanism_prefix)
        values |= parse_security_configs(of_mechanism, prefix=mechanism_prefix)
        effective |= of_mechanism
    config = ListenerConfig(values, effective)
    config.__dict__["name"] = name
    config.__dict__["security_protocol"] = security_protocol
    config.__dict__["mechanism"] = None if mechanism is None else mechanism.upper()
    return config


def _with_prefix(texts: Mapping[str, str], prefix: str) -> dict[str, str]:
    length = len(prefix)
    stripped = {name[length:]: text for name, text in texts.items() if name.startswith(prefix)}
    return {name: text for name, text in stripped.items() if name in SECURITY_CONFIGS}
