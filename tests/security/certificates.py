"""Certificates for tests of TLS: an authority, brokers, clients, and others that something is wrong with."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kbroker.config.listener import ListenerConfig, listener_config
from kbroker.security.cryptography_library import IssuedCertificate, new_authority, new_certificate

HOSTS = ("localhost", "127.0.0.1")


def just_now() -> datetime:
    return datetime.now(UTC) - timedelta(hours=1)


class Authority:
    """Signs certificates and writes them into a directory, each with its key in one PEM file."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._issued = new_authority(name, not_before=just_now() - timedelta(days=100), days=400)
        self.file = self.write("authority", self._issued.certificate)

    def issue(
        self, name: str, *, hosts: tuple[str, ...] = HOSTS, not_before: datetime | None = None, days: int = 100
    ) -> IssuedCertificate:
        return new_certificate(
            name,
            self._issued,
            hosts=hosts,
            organization="acme",
            not_before=just_now() if not_before is None else not_before,
            days=days,
        )

    def pem(self, name: str, *, hosts: tuple[str, ...] = HOSTS, days: int = 100, age_days: int = 0) -> str:
        """Returns a file with the key and the certificate."""
        issued = self.issue(name, hosts=hosts, not_before=just_now() - timedelta(days=age_days), days=days)
        return self.write(name, issued.key + issued.certificate)

    def copy(self, name: str, target: str, *, hosts: tuple[str, ...] = HOSTS) -> str:
        """Returns a file of another name with a new key and certificate of `name`."""
        return self.write(target, Path(self.pem(name, hosts=hosts)).read_text())

    def write(self, name: str, text: str) -> str:
        path = self.directory / f"{name}.pem"
        path.write_text(text)
        os.chmod(path, 0o600)
        return str(path)


def configs(protocol: str = "SSL", **texts: str) -> ListenerConfig:
    """Returns the configs of a listener; names with underscores for dots."""
    return listener_config(
        {name.replace("_", "."): text for name, text in texts.items()}, "SSL", security_protocol=protocol
    )
