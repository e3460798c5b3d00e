"""Text of a distinguished name as Java writes it (RFC 2253): `CN=a,OU=b,O=c`, the most specific part first.

Attributes other than those of RFC 2253 are written as OID=#hex, as `X500Principal.getName` does.
"""

from __future__ import annotations

from typing import Final

from kbroker.security.der import DerError, DerValue, oid_text, read_value, values_in

__all__ = ["name_text"]

_KEYWORDS: Final = {
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
}
_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # T61String
    0x16: "ascii",  # IA5String
    0x1B: "latin-1",  # GeneralString
    0x1C: "utf-32-be",  # UniversalString
    0x1E: "utf-16-be",  # BMPString
}
# Java escapes = and # everywhere, which RFC 2253 does not require.
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_BLANKS: Final = " \r"


def name_text(encoded: bytes) -> str:
    """Returns the text of an encoded Name. Raises DerError if it is not a Name."""
    parts = [_rdn_text(rdn) for rdn in values_in(read_value(encoded).content)]
    return ",".join(reversed(parts))


def _rdn_text(rdn: DerValue) -> str:
    return "+".join(_attribute_text(attribute) for attribute in values_in(rdn.content))


def _attribute_text(attribute: DerValue) -> str:
    try:
        kind, value = values_in(attribute.content)
    except ValueError:
        raise DerError("an attribute of a name has no value") from None
    oid = oid_text(kind.content)
    keyword = _KEYWORDS.get(oid)
    if keyword is None or value.tag not in _ENCODINGS:
        return f"{keyword or oid}=#{value.encoded.hex()}"
    return f"{keyword}={_escape(value.content.decode(_ENCODINGS[value.tag], 'replace'))}"


def _escape(text: str) -> str:
    escaped = "".join(
        "\\00" if character == "\0" else f"\\{character}" if character in _ESCAPED else character for character in text
    )
    inner = escaped.strip(_BLANKS)
    lead = len(escaped) - len(escaped.lstrip(_BLANKS))
    trail = len(escaped) - lead - len(inner)
    before = "".join(f"\\{blank}" for blank in escaped[:lead])
    after = "".join(f"\\{blank}" for blank in escaped[len(escaped) - trail :]) if trail else ""
    return f"{before}{inner}{after}"
