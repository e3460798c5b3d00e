"""Reads Java key stores in the format JKS: certificates, and private keys in the protection of that format.

magic FEEDFEED, version, count, entries, SHA-1 over password, "Mighty Aphrodite" and all bytes before
key entry 1: alias, time, key, chain      certificate entry 2: alias, time, type, certificate
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

from kbroker.security.der import DerError, oid_text, read_value, values_in

__all__ = ["MAGIC", "JavaKeyStore", "KeyEntry", "read_jks"]

MAGIC: Final = b"\xfe\xed\xfe\xed"
_KEY_ENTRY: Final = 1
_CERTIFICATE_ENTRY: Final = 2
_SALT: Final = "Mighty Aphrodite".encode("ascii")
_DIGEST_SIZE: Final = 20
_PROTECTION: Final = "1.3.6.1.4.1.42.2.17.1.1"


class KeyEntry(NamedTuple):
    alias: str
    protected_key: bytes
    chain: tuple[bytes, ...]

    def key(self, password: str) -> bytes:
        """Returns the key in PKCS #8. Raises ValueError if the password is wrong."""
        algorithm, content = values_in(read_value(self.protected_key).content)
        if oid_text(read_value(algorithm.content).content) != _PROTECTION:
            raise ValueError(f"the key {self.alias} has an unknown protection")
        return _unprotect(content.content, password.encode("utf-16-be"))


class JavaKeyStore(NamedTuple):
    keys: tuple[KeyEntry, ...]
    certificates: tuple[bytes, ...]


def read_jks(data: bytes, password: str | None) -> JavaKeyStore:
    """Reads a store. Without a password, its integrity is not checked. Raises ValueError if it is not valid."""
    if password is not None:
        digest = hashlib.sha1(password.encode("utf-16-be") + _SALT + data[:-_DIGEST_SIZE]).digest()
        if not hmac.compare_digest(digest, data[-_DIGEST_SIZE:]):
            raise ValueError("Keystore was tampered with, or password was incorrect")
    try:
        return _Reader(data).store()
    except (struct.error, DerError, UnicodeDecodeError):
        raise ValueError("the key store is damaged") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = len(MAGIC)

    def store(self) -> JavaKeyStore:
        version = self._number(">I")
        if version not in (1, 2):
            raise ValueError(f"the key store has the unknown version {version}")
        keys: list[KeyEntry] = []
        certificates: list[bytes] = []
        for _ in range(self._number(">I")):
            kind = self._number(">I")
            alias = self._bytes(">H").decode()
            self._number(">Q")
            if kind == _KEY_ENTRY:
                protected = self._bytes(">I")
                chain = tuple(self._certificate(version) for _ in range(self._number(">I")))
                keys.append(KeyEntry(alias, protected, chain))
            elif kind == _CERTIFICATE_ENTRY:
                certificates.append(self._certificate(version))
            else:
                raise ValueError(f"the key store has an entry of the unknown kind {kind}")
        return JavaKeyStore(tuple(keys), tuple(certificates))

    def _certificate(self, version: int) -> bytes:
        if version == 2:
            self._bytes(">H")  # always X.509
        return self._bytes(">I")

    def _number(self, layout: str) -> int:
        (number,) = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        return int(number)

    def _bytes(self, layout: str) -> bytes:
        size = self._number(layout)
        end = self._position + size
        if end > len(self._data):
            raise ValueError("the key store is damaged")
        found = self._data[self._position : end]
        self._position = end
        return found


def _unprotect(content: bytes, password: bytes) -> bytes:
    """Removes the protection: an XOR with a chain of SHA-1 that begins with the salt, and a digest at the end."""
    salt, encrypted, check = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:-_DIGEST_SIZE], content[-_DIGEST_SIZE:]
    stream = b""
    block = salt
    while len(stream) < len(encrypted):
        block = hashlib.sha1(password + block).digest()
        stream += block
    key = bytes(one ^ other for one, other in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(password + key).digest(), check):
        raise ValueError("Cannot recover key: the password is wrong")
    return key
