"""Security of kbroker's own client, from the options of Spark's Kafka connector: Kafka's names after "kafka."."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.client.client_properties import client_security
from kbroker.client.connection_security import ConnectionSecurity
from kbroker.errors import UserError

__all__ = ["can_connect", "connection_security", "is_security_property", "security_options"]

PREFIX: Final = "kafka."


def is_security_property(name: str) -> bool:
    """Whether a property of Kafka's clients belongs to TLS or SASL. `name` has no prefix."""
    return name == "security.protocol" or name.startswith(("ssl.", "sasl."))


def security_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of TLS and SASL, with their prefix."""
    return {name: value for name, value in options.items() if is_security_property(name.lower().removeprefix(PREFIX))}


def connection_security(options: Mapping[str, str]) -> ConnectionSecurity | None:
    """Returns the settings of connections; None for PLAINTEXT. Raises UserError if kbroker's client cannot do it."""
    chosen = {name.lower().removeprefix(PREFIX): value for name, value in security_options(options).items()}
    return client_security(chosen, source="options")


def can_connect(options: Mapping[str, str]) -> bool:
    """Whether kbroker's client can connect with these options. Spark's own client can do more, for example Kerberos."""
    try:
        connection_security(options)
    except UserError:
        return False
    return True
