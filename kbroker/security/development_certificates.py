"""Writes an authority and certificates for development and tests: one PEM file for each, with its key first.

The key of the authority is in the same directory, unencrypted: with it, any program can pretend to be any broker or
client.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kbroker.errors import UserError
from kbroker.security.cryptography_library import IssuedCertificate, new_authority, new_certificate

__all__ = ["AUTHORITY", "DevelopmentCertificates"]

AUTHORITY = "ca"
# Clocks of machines differ a little: a certificate is valid from an hour ago.
_SKEW = timedelta(hours=1)


class DevelopmentCertificates:
    """A directory with `ca.pem`, `ca.key`, and a file for each certificate."""

    def __init__(self, directory: str | os.PathLike[str], *, now_ms: int, days: int) -> None:
        self.directory = Path(directory)
        self._not_before = datetime.fromtimestamp(now_ms / 1000, UTC) - _SKEW
        self._days = days

    @property
    def authority_file(self) -> Path:
        """Returns the file with the certificate of the authority, which every side trusts."""
        return self.directory / f"{AUTHORITY}.pem"

    @property
    def _authority_key_file(self) -> Path:
        return self.directory / f"{AUTHORITY}.key"

    def file(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    @property
    def has_authority(self) -> bool:
        return self.authority_file.exists()

    def check_new(self, names: Sequence[str]) -> None:
        """Raises UserError if a certificate exists, or two have one name. Nothing is written before."""
        for position, name in enumerate(names):
            if name == AUTHORITY or name in names[:position] or self.file(name).exists():
                raise UserError(f"{self.file(name)} exists already. Choose another name, or another directory.")

    def make_authority(self) -> bool:
        """Creates the authority. Returns False if the directory has one already. Raises UserError if it fails."""
        if self.has_authority:
            return False
        authority = new_authority("kbroker development CA", not_before=self._not_before, days=self._days)
        self._write(self._authority_key_file, authority.key, mode=0o600)
        self._write(self.authority_file, authority.certificate, mode=0o644)
        return True

    def make(self, name: str, *, hosts: Sequence[str] = ()) -> Path:
        """Creates a certificate and returns its file. `hosts`: names and addresses of a broker; none for a client.

        Raises UserError if the file exists, or the key of the authority cannot be read.
        """
        self.check_new([name])
        file = self.file(name)
        issued = new_certificate(
            name, self._read_authority(), hosts=hosts, not_before=self._not_before, days=self._days
        )
        self._write(file, f"{issued.key}{issued.certificate}", mode=0o600)
        return file

    def _read_authority(self) -> IssuedCertificate:
        try:
            return IssuedCertificate(self.authority_file.read_text(), self._authority_key_file.read_text())
        except OSError as problem:
            raise UserError(
                f"Could not read the certificate authority in {self.directory}: {problem.strerror}"
            ) from None

    def _write(self, file: Path, text: str, *, mode: int) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as opened:
                opened.write(text)
        except OSError as problem:
            raise UserError(f"Could not write {file}: {problem.strerror}") from None
