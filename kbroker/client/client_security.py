"""Security of outbound connections: protocol and TLS, of a command's profile or of the listener between brokers."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

import trio

from kbroker.client.address import Address
from kbroker.client.failures import AuthenticationFailed
from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import SECURITY_PROTOCOLS
from kbroker.config.listener import SECURITY_CONFIGS, ListenerConfig, listener_config
from kbroker.errors import UserError
from kbroker.security.tls_context import client_context, handshake_problem

__all__ = ["ClientSecurity", "between_brokers", "client_security", "security_problem"]

_SUPPORTED: Final = ("SSL",)


class ClientSecurity:
    """Secures connections with one set of configs. The key material is loaded once, and again after `reload`."""

    def __init__(self, config: ListenerConfig) -> None:
        """Raises UserError if the configs cannot be used."""
        self.config = config
        self._context = self._load()

    @property
    def protocol(self) -> str:
        return self.config.security_protocol

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    def reload(self, config: ListenerConfig) -> None:
        """Uses other configs for new connections. Raises UserError and keeps the old ones if they cannot be used."""
        before, self.config = self.config, config
        try:
            self._context = self._load()
        except UserError:
            self.config = before
            raise

    def _load(self) -> ssl.SSLContext | None:
        return client_context(self.config) if self.uses_tls else None

    async def secure(self, stream: trio.abc.Stream, address: Address) -> trio.abc.Stream:
        """Returns a stream with TLS over `stream`, once the server is verified; `stream` itself without TLS.

        Raises AuthenticationFailed if one side refuses the other. The caller closes `stream` then.
        """
        if self._context is None:
            return stream
        secured = trio.SSLStream(stream, self._context, server_hostname=address.host, https_compatible=True)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as failure:
            raise AuthenticationFailed(address, _describe(failure, address)) from None
        return secured


def _describe(failure: trio.BrokenResourceError, address: Address) -> str:
    return f"SSL handshake with {address} failed: {security_problem(failure) or 'the broker closed the connection'}"


def security_problem(failure: BaseException) -> str | None:
    """Returns why TLS has broken a stream, or None if it has not."""
    cause = failure.__cause__ or failure.__context__
    if not isinstance(cause, ssl.SSLError):
        return None
    if cause.reason == "WRONG_VERSION_NUMBER":
        return "the broker does not use TLS on this port"
    return handshake_problem(cause)


def client_security(properties: Mapping[str, str]) -> ClientSecurity | None:
    """Returns the security that a client's properties ask for (`security.protocol`, `ssl.*`); None for PLAINTEXT.

    Other properties are left out. Raises UserError if they ask for something that kbroker does not have.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in SECURITY_PROTOCOLS:
        raise UserError(f"security.protocol={protocol} must be one of {', '.join(SECURITY_PROTOCOLS)}")
    if protocol == "PLAINTEXT":
        return None
    if protocol not in _SUPPORTED:
        raise UserError(f"security.protocol={protocol} is not supported yet: kbroker would connect without a login")
    for name in properties:
        if name.startswith("ssl.") and (name not in SECURITY_CONFIGS or not SECURITY_CONFIGS[name].has_effect):
            raise UserError(f"{name} is set, but kbroker does not support it")
    return ClientSecurity(listener_config(properties, "", protocol))


def between_brokers(config: BrokerConfig) -> ClientSecurity | None:
    """Returns the security of connections to other brokers; None for PLAINTEXT."""
    endpoint = config.inter_broker_endpoint
    if endpoint.security_protocol == "PLAINTEXT":
        return None
    return ClientSecurity(config.listener_config(endpoint.name))
