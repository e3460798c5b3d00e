"""Loads the key and the trusted certificates that a listener or a client is configured with.

A file is recognised by its content: PEM, PKCS12 or JKS. Its name and the configured type do not matter, as keytool
writes PKCS12 into files named .jks. A key file that other users of the machine can read is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kbroker.config.key import Password
from kbroker.config.listener import ListenerConfig
from kbroker.errors import UserError
from kbroker.security import jks
from kbroker.security.pem import encode_pem, is_pem, read_certificates, read_key
from kbroker.security.private_files import check_private

__all__ = ["KeyMaterial", "load_key_material", "load_trusted_certificates"]

_JCEKS: Final = b"\xce\xce\xce\xce"
_PKCS12: Final = b"\x30"


class KeyMaterial(NamedTuple):
    """A private key in PEM and its chain in DER, the certificate of the key first."""

    key: str
    key_password: str | None
    """Password of an encrypted key; None if the key is not encrypted."""
    chain: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"KeyMaterial({len(self.chain)} certificates)"  # the key must not get into a log

    @property
    def chain_pem(self) -> str:
        return "".join(encode_pem("CERTIFICATE", certificate) for certificate in self.chain)


def load_key_material(config: ListenerConfig) -> KeyMaterial | None:
    """Returns None if no key is configured. Raises UserError if the key cannot be loaded."""
    location, key, chain = config.ssl_keystore_location, config.ssl_keystore_key, config.ssl_keystore_certificate_chain
    if key is None and chain is None:
        return _load_key_file(location, config) if location else None
    if location:
        raise UserError("Both SSL key store location and separate private key are specified.")
    if key is None:
        raise UserError("SSL certificate chain is specified, but private key is not: set ssl.keystore.key")
    if chain is None:
        raise UserError("SSL private key is specified, but certificate chain is not specified.")
    _check_inline("SSL private key", "key", config.ssl_keystore_type, config.ssl_keystore_password)
    return _from_pem(key.value, chain.value, config.ssl_key_password, "ssl.keystore.key")


def load_trusted_certificates(config: ListenerConfig) -> tuple[bytes, ...] | None:
    """Returns the trusted certificates in DER; None if none are configured: then those of the system are trusted.

    Raises UserError if they cannot be loaded.
    """
    location, inline = config.ssl_truststore_location, config.ssl_truststore_certificates
    if inline is not None:
        if location:
            raise UserError("Both SSL trust store location and separate trust certificates are specified.")
        _check_inline("SSL trust store certs", "trust", config.ssl_truststore_type, config.ssl_truststore_password)
        return _certificates_of(inline.value, "ssl.truststore.certificates")
    if not location:
        return None
    data = _read_file(location, "ssl.truststore.location")
    password = None if config.ssl_truststore_password is None else config.ssl_truststore_password.value
    found = _trusted_in(data, location, password, config.ssl_truststore_password)
    if not found:
        raise UserError(f"The trust store {location} has no certificates")
    return tuple(found)


def _check_inline(what: str, kind: str, store_type: str, password: Password | None) -> None:
    if store_type.upper() != "PEM":
        raise UserError(f"{what} can be specified only for PEM, but {kind} store type is {store_type}.")
    if password is not None:
        raise UserError(f"SSL {kind} store password cannot be specified with PEM format.")


def _load_key_file(location: str, config: ListenerConfig) -> KeyMaterial:
    check_private(location, "the private key")
    data = _read_file(location, "ssl.keystore.location")
    store_password, key_password = config.ssl_keystore_password, config.ssl_key_password
    if is_pem(data):
        if store_password is not None:
            raise UserError(
                "SSL key store password cannot be specified with PEM format, only key password may be specified."
            )
        text = data.decode("utf-8", "replace")
        return _from_pem(text, text, key_password, location)
    if store_password is None:
        raise UserError(f"SSL key store is specified, but key store password is not: {location}")
    password = store_password.value
    if data.startswith(jks.MAGIC):
        return _from_jks(data, location, password, password if key_password is None else key_password.value)
    if data.startswith(_PKCS12):
        from kbroker.security.cryptography_library import read_pkcs12

        key, chain = read_pkcs12(data, password, location)
        if key is None:
            raise UserError(f"The key store {location} has no private key")
        return KeyMaterial(key, None, chain)
    raise _unknown_format(data, location)


def _from_pem(key_text: str, chain_text: str, password: Password | None, source: str) -> KeyMaterial:
    block = read_key(key_text)
    if block is None:
        raise UserError(f"{source} has no private key in PEM format")
    chain = _certificates_of(chain_text, source)
    is_encrypted = block.label.startswith("ENCRYPTED") or "Proc-Type: 4,ENCRYPTED" in block.text
    if is_encrypted and password is None:
        raise UserError(f"The private key in {source} is encrypted: set ssl.key.password")
    return KeyMaterial(block.text, password.value if is_encrypted and password is not None else None, chain)


def _from_jks(data: bytes, location: str, store_password: str, key_password: str) -> KeyMaterial:
    try:
        entries = jks.read_jks(data, store_password).keys
        if not entries:
            raise UserError(f"The key store {location} has no private key")
        key = entries[0].key(key_password)
    except ValueError as problem:
        raise UserError(f"Could not read the key store {location}: {problem}") from None
    return KeyMaterial(encode_pem("PRIVATE KEY", key), None, entries[0].chain)


def _trusted_in(data: bytes, location: str, password: str | None, given: Password | None) -> Sequence[bytes]:
    if is_pem(data):
        if given is not None:
            raise UserError("SSL trust store password cannot be specified for PEM format.")
        return _certificates_of(data.decode("utf-8", "replace"), location)
    if data.startswith(jks.MAGIC):
        try:
            store = jks.read_jks(data, password)
        except ValueError as problem:
            raise UserError(f"Could not read the trust store {location}: {problem}") from None
        return (*store.certificates, *(entry.chain[0] for entry in store.keys if entry.chain))
    if data.startswith(_PKCS12):
        from kbroker.security.cryptography_library import read_pkcs12

        _key, certificates = read_pkcs12(data, password, location)
        return certificates
    raise _unknown_format(data, location)


def _certificates_of(text: str, source: str) -> tuple[bytes, ...]:
    try:
        found = tuple(read_certificates(text))
    except ValueError as problem:
        raise UserError(f"{source}: {problem}") from None
    if not found:
        raise UserError(f"{source} has no certificate in PEM format")
    return found


def _read_file(location: str, name: str) -> bytes:
    try:
        with open(location, "rb") as file:
            return file.read()
    except OSError as problem:
        raise UserError(f"Could not read {name}={location}: {problem.strerror}") from None


def _unknown_format(data: bytes, location: str) -> UserError:
    if data.startswith(_JCEKS):
        return UserError(
            f"{location} has the format JCEKS, which kbroker does not read. Convert it: keytool -importkeystore "
            f"-srckeystore {location} -srcstoretype JCEKS -destkeystore store.p12 -deststoretype PKCS12"
        )
    return UserError(f"{location} is neither PEM nor PKCS12 nor JKS")
