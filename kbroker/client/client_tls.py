"""TLS of outbound connections: verifies the broker, and shows this client's certificate if it has one."""

from __future__ import annotations

import ssl

import trio

from kbroker.client.address import Address
from kbroker.client.failures import HandshakeFailed
from kbroker.config.listener import ListenerConfig
from kbroker.security.tls_context import client_context, handshake_problem

__all__ = ["ClientTls", "tls_problem"]


class ClientTls:
    """Secures connections with one set of configs. The key material is loaded once, and again by `reload`."""

    def __init__(self, config: ListenerConfig) -> None:
        """Raises UserError if the configs cannot be used."""
        self._context = client_context(config)

    def reload(self, config: ListenerConfig) -> None:
        """Uses other configs for new connections. Raises UserError if they cannot be used, and keeps the old ones."""
        self._context = client_context(config)

    async def secure(self, stream: trio.abc.Stream, address: Address) -> trio.SSLStream[trio.abc.Stream]:
        """Returns a stream with TLS over `stream`, once the broker is verified. Raises HandshakeFailed if it is not.

        After a failure the caller closes `stream`.
        """
        secured = trio.SSLStream(stream, self._context, server_hostname=address.host, https_compatible=True)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as failure:
            raise HandshakeFailed(address, tls_problem(failure) or "the broker closed the connection") from None
        return secured


def tls_problem(failure: BaseException) -> str | None:
    """Returns the reason if TLS has broken a stream; None after any other failure."""
    cause = failure.__cause__ or failure.__context__
    if not isinstance(cause, ssl.SSLError) or isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return None
    if cause.reason == "WRONG_VERSION_NUMBER":
        return "the broker does not use TLS on this port"
    return handshake_problem(cause)
