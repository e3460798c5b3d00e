"""Security of outbound connections: login and TLS. Shared by all connections to one cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.security.client_login import ClientLogin

if TYPE_CHECKING:
    from kbroker.client.client_tls import ClientTls

__all__ = ["ConnectionSecurity"]


class ConnectionSecurity(NamedTuple):
    login: ClientLogin | None = None
    """Login with SASL; None without SASL."""
    tls: ClientTls | None = None
    """None without TLS."""
