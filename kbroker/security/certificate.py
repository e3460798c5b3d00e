"""Facts of a certificate: names, validity, size of the key. The TLS library checks its signature."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

from kbroker.security.der import DerError, DerValue, oid_text, read_value, values_in
from kbroker.security.distinguished_name import name_text

__all__ = ["Certificate", "read_certificate"]

_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_UTC_TIME: Final = 0x17
_OCTET_STRING: Final = 0x04
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
_KEY_ALGORITHM_RSA: Final = "1.2.840.113549.1.1.1"


class Certificate(NamedTuple):
    subject: str
    """Distinguished name in the text of RFC 2253."""
    issuer: str
    not_before: datetime
    not_after: datetime
    alternative_names: frozenset[tuple[int, bytes]]
    """Kind and content of each subject alternative name."""
    rsa_bits: int
    """Size of an RSA key; 0 for any other key."""


def read_certificate(encoded: bytes) -> Certificate:
    """Reads a certificate in DER. Raises DerError if the bytes are not a certificate."""
    try:
        fields = list(values_in(read_value(read_value(encoded).content).content))
        if fields[0].tag == _VERSION:
            del fields[0]
        _serial, _signature, issuer, validity, subject, key = fields[:6]
        not_before, not_after = (_time(value) for value in values_in(validity.content))
        extensions = next((value for value in fields[6:] if value.tag == _EXTENSIONS), None)
        return Certificate(
            subject=name_text(subject.encoded),
            issuer=name_text(issuer.encoded),
            not_before=not_before,
            not_after=not_after,
            alternative_names=frozenset() if extensions is None else _alternative_names(extensions),
            rsa_bits=_rsa_bits(key),
        )
    except (DerError, ValueError, IndexError) as problem:
        raise DerError(f"it is not a certificate: {problem}") from None


def _time(value: DerValue) -> datetime:
    text = value.content.decode("ascii")
    if value.tag == _UTC_TIME:
        # RFC 5280: two digits of the year mean 1950 to 2049.
        text = f"{'19' if text[:2] >= '50' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _alternative_names(extensions: DerValue) -> frozenset[tuple[int, bytes]]:
    for extension in values_in(read_value(extensions.content).content):
        kind, *rest = values_in(extension.content)
        if oid_text(kind.content) == _ALTERNATIVE_NAMES:
            content = next(value for value in rest if value.tag == _OCTET_STRING).content
            return frozenset((name.tag, name.content) for name in values_in(read_value(content).content))
    return frozenset()


def _rsa_bits(key: DerValue) -> int:
    algorithm, bits = values_in(key.content)
    if oid_text(read_value(algorithm.content).content) != _KEY_ALGORITHM_RSA:
        return 0
    modulus = read_value(read_value(bits.content[1:]).content)
    return int.from_bytes(modulus.content, "big").bit_length()
