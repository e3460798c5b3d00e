"""Security of a client from Kafka's client properties: `security.protocol`, `sasl.mechanism`, `sasl.jaas.config`.

`sasl.username` and `sasl.password` are librdkafka's names, and shorter than a JAAS config. `sasl.oauthbearer.token` is
kbroker's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.client.connection_security import ConnectionSecurity
from kbroker.errors import UserError
from kbroker.security.client_login import ClientLogin, login_of_jaas, login_of_token, login_of_user
from kbroker.security.mechanism import OAUTHBEARER

__all__ = ["client_security"]

_PLAINTEXT: Final = "PLAINTEXT"
_SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"


def client_security(properties: Mapping[str, str], *, source: str) -> ConnectionSecurity | None:
    """Returns what connections need; None for PLAINTEXT. Raises UserError, which begins with `source`.

    A password without a protocol that uses it is refused: kbroker must not connect without protection that was asked
    for.
    """
    protocol = properties.get("security.protocol", _PLAINTEXT).upper()
    sasl = [name for name in properties if name.startswith("sasl.")]
    if protocol == _PLAINTEXT:
        if sasl:
            raise UserError(f"{source}: {sasl[0]} is set, but security.protocol is not SASL_PLAINTEXT or SASL_SSL")
        return None
    if protocol != _SASL_PLAINTEXT:
        raise UserError(f"{source}: security.protocol={protocol} is not supported; use PLAINTEXT or SASL_PLAINTEXT")
    return ConnectionSecurity(login=_login(properties, source))


def _login(properties: Mapping[str, str], source: str) -> ClientLogin:
    mechanism = properties.get("sasl.mechanism", "")
    if not mechanism:
        raise UserError(f"{source}: sasl.mechanism is missing, for example SCRAM-SHA-512")
    if mechanism == OAUTHBEARER and "sasl.oauthbearer.token" in properties:
        token = properties["sasl.oauthbearer.token"]
        return login_of_token(lambda: token)
    if "sasl.jaas.config" in properties:
        return login_of_jaas(mechanism, properties["sasl.jaas.config"], source=source)
    if mechanism == OAUTHBEARER:
        raise UserError(f"{source}: sasl.oauthbearer.token is missing")
    if "sasl.username" not in properties or "sasl.password" not in properties:
        raise UserError(f"{source}: sasl.username and sasl.password are needed, or sasl.jaas.config")
    return login_of_user(mechanism, properties["sasl.username"], properties["sasl.password"], source=source)
