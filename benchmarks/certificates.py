"""A key and a certificate of P-256 for both brokers, and the settings of brokers and clients that use them."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.connection import Address, TlsAddress
from kbroker.security.development_certificates import DevelopmentCertificates

__all__ = ["Certificates"]

HOST = "127.0.0.1"
DAYS = 365


class Certificates:
    def __init__(self, directory: Path) -> None:
        made = DevelopmentCertificates(directory, now_ms=time.time_ns() // 1_000_000, days=DAYS)
        made.make_authority()
        self._authority_file = made.authority_file
        self._broker_file = made.make("broker", hosts=[HOST])
        self._client = ssl.create_default_context(cafile=str(self._authority_file))
        self._careless_client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._careless_client.check_hostname = False
        self._careless_client.verify_mode = ssl.CERT_NONE

    @property
    def properties(self) -> Mapping[str, str]:
        """Returns the configs of a broker, the same for kbroker and Apache Kafka."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._broker_file),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority_file),
        }

    def address(self, address: Address) -> TlsAddress:
        """Returns the address for clients that verify the broker."""
        return TlsAddress(address, self._client)

    def careless_address(self, address: Address) -> TlsAddress:
        """Returns the address for clients that do not: a load of handshakes must be cheaper than the broker's work."""
        return TlsAddress(address, self._careless_client)
