"""Certificates of a test broker: `Broker(tls=True)` makes them in a temporary directory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from kbroker.clock import SystemClock
from kbroker.security.development_certificates import DevelopmentCertificates

__all__ = ["ClientAuth", "TlsFiles", "make_tls_files", "tls_properties"]

ClientAuth = Literal["none", "requested", "required"]

_DAYS: Final = 365
_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


class TlsFiles(NamedTuple):
    """PEM files for the clients of a broker."""

    ca: str
    """The authority that has signed the certificate of the broker."""
    client: str
    """A client's key and certificate. Its principal is User:CN=client."""
    broker: str
    """The key and certificate of the broker."""

    @property
    def librdkafka(self) -> dict[str, str]:
        """Returns the settings of confluent-kafka and other clients with librdkafka."""
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.client,
            "ssl.key.location": self.client,
        }


def make_tls_files(directory: str, *, extra_host: str | None = None) -> TlsFiles:
    """Makes an authority, a broker certificate for loopback addresses (and `extra_host`), and a client certificate."""
    certificates = DevelopmentCertificates(Path(directory), now_ms=SystemClock().now_ms(), days=_DAYS)
    certificates.make_authority()
    hosts = _HOSTS if extra_host is None else (*_HOSTS, extra_host)
    broker = certificates.make("broker", hosts=hosts)
    return TlsFiles(str(certificates.authority_file), str(certificates.make("client")), str(broker))


def tls_properties(files: TlsFiles, client_auth: ClientAuth, listeners: Iterable[str]) -> dict[str, str]:
    """Returns the configs of the broker for TLS on these listeners."""
    return {
        "ssl.keystore.location": files.broker,
        "ssl.truststore.location": files.ca,
        # With the prefix: on SASL_SSL the config for all listeners does not count.
        **{f"listener.name.{name.lower()}.ssl.client.auth": client_auth for name in listeners},
    }
