"""Security of a client from Kafka's client properties: `security.protocol`, `ssl.*`, `sasl.mechanism`.

`sasl.username` and `sasl.password` are librdkafka's names, and shorter than a JAAS config. `sasl.oauthbearer.token` is
kbroker's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kbroker.client.connection_security import ConnectionSecurity
from kbroker.config.endpoints import SECURITY_PROTOCOLS
from kbroker.config.listener import SECURITY_CONFIGS, listener_config
from kbroker.errors import UserError
from kbroker.security.client_login import ClientLogin, login_of_jaas, login_of_token, login_of_user
from kbroker.security.mechanism import OAUTHBEARER

if TYPE_CHECKING:
    from kbroker.client.client_tls import ClientTls

__all__ = ["client_security"]

_PLAINTEXT: Final = "PLAINTEXT"
# Names that are not configs of the TLS library of kbroker, and change nothing for the security of a connection.
_OF_THE_JVM: Final = frozenset(
    {
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    }
)


def client_security(properties: Mapping[str, str], *, source: str) -> ConnectionSecurity | None:
    """Returns the settings that connections need; None for PLAINTEXT.

    Raises UserError, which begins with `source`, if a property is invalid. So is a password without
    a protocol that uses it: kbroker must not connect without protection that was asked for.
    """
    protocol = properties.get("security.protocol", _PLAINTEXT).strip().upper()
    if protocol not in SECURITY_PROTOCOLS:
        raise UserError(f"{source}: security.protocol={protocol} must be one of {', '.join(SECURITY_PROTOCOLS)}")
    uses_sasl, uses_tls = protocol.startswith("SASL_"), protocol.endswith("SSL")
    for name in properties:
        if name.startswith("sasl.") and not uses_sasl:
            raise UserError(f"{source}: {name} is set, but security.protocol is not SASL_PLAINTEXT or SASL_SSL")
        if name.startswith("ssl.") and not uses_tls:
            raise UserError(f"{source}: {name} is set, but security.protocol is not SSL or SASL_SSL")
    if protocol == _PLAINTEXT:
        return None
    return ConnectionSecurity(
        login=_login(properties, source) if uses_sasl else None,
        tls=_tls(properties, protocol, source) if uses_tls else None,
    )


def _tls(properties: Mapping[str, str], protocol: str, source: str) -> ClientTls:
    from kbroker.client.client_tls import ClientTls  # loads OpenSSL

    configs = {name: text for name, text in properties.items() if name.startswith("ssl.") and name not in _OF_THE_JVM}
    for name in configs:
        if name not in SECURITY_CONFIGS or not SECURITY_CONFIGS[name].has_effect:
            raise UserError(f"{source}: {name} is set, but kbroker does not support it")
    try:
        return ClientTls(listener_config(configs, "", security_protocol=protocol))
    except UserError as problem:
        raise UserError(f"{source}: {problem}") from None


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
    return login_of_user(
        mechanism, user=properties["sasl.username"], password=properties["sasl.password"], source=source
    )
