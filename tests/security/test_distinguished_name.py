"""Names and other facts of certificates, with the text that Java gives them."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import NameAttribute, RelativeDistinguishedName
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from kbroker.security.certificate import read_certificate
from kbroker.security.der import DerError
from kbroker.security.distinguished_name import name_text
from tests.security.certificates import Authority


def name(*attributes: NameAttribute | list[NameAttribute]) -> bytes:
    return x509.Name(
        [RelativeDistinguishedName(part if isinstance(part, list) else [part]) for part in attributes]
    ).public_bytes()


CN, ORG, OU, C = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.COUNTRY_NAME

# What java.security's X500Principal.getName() prints for them; `test_java_prints_the_same` asks it.
NAMES = [
    (
        name(NameAttribute(C, "DE"), NameAttribute(ORG, "c"), NameAttribute(OU, "b"), NameAttribute(CN, "a")),
        "CN=a,OU=b,O=c,C=DE",
    ),
    (name(NameAttribute(CN, "a,CN=admin")), r"CN=a\,CN\=admin"),
    (name(NameAttribute(CN, ' #+"<>;\\ ')), r"CN=\ \#\+\"\<\>\;\\\ "),
    (name([NameAttribute(CN, "a"), NameAttribute(OU, "b")], NameAttribute(ORG, "c")), "O=c,CN=a+OU=b"),
    (
        name(NameAttribute(CN, "x"), NameAttribute(NameOID.EMAIL_ADDRESS, "a@b.c", _ASN1Type.IA5String)),
        "1.2.840.113549.1.9.1=#16056140622e63,CN=x",
    ),
    (name(NameAttribute(CN, "größe")), "CN=größe"),
    (name(NameAttribute(NameOID.DOMAIN_COMPONENT, "org"), NameAttribute(NameOID.USER_ID, "u")), "UID=u,DC=org"),
    (name(NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "s"), NameAttribute(NameOID.LOCALITY_NAME, "l")), "L=l,ST=s"),
    (name(NameAttribute(NameOID.STREET_ADDRESS, "1 road")), "STREET=1 road"),
    (name(NameAttribute(NameOID.SERIAL_NUMBER, "7")), "2.5.4.5=#130137"),
    (name(), ""),
]


@pytest.mark.parametrize(("encoded", "text"), NAMES, ids=[text for _, text in NAMES])
def test_a_name_has_the_text_of_java(encoded: bytes, text: str) -> None:
    assert name_text(encoded) == text


PRINTER = """
public class Names {
    public static void main(String[] names) {
        for (String name : names) {
            byte[] der = java.util.HexFormat.of().parseHex(name);
            System.out.println(new javax.security.auth.x500.X500Principal(der).getName());
        }
    }
}
"""


@pytest.mark.jvm
def test_java_prints_the_same(java: str, tmp_path: Path) -> None:
    source = tmp_path / "Names.java"
    source.write_text(PRINTER)
    arguments = [java, "-Dstdout.encoding=UTF-8", str(source), *(encoded.hex() for encoded, _ in NAMES)]
    printed = subprocess.run(arguments, capture_output=True, check=True).stdout.decode().split("\n")[: len(NAMES)]
    assert printed == [text for _, text in NAMES]


def test_the_facts_of_a_certificate(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("broker", not_before=datetime(2025, 3, 1, 12, tzinfo=UTC), days=10)
    certificate = read_certificate(
        x509.load_pem_x509_certificate(issued.certificate.encode()).public_bytes(Encoding.DER)
    )
    assert certificate.subject == "CN=broker,O=acme"
    assert certificate.issuer == "CN=test authority"
    assert certificate.not_before == datetime(2025, 3, 1, 12, tzinfo=UTC)
    assert certificate.not_after == datetime(2025, 3, 11, 12, tzinfo=UTC)
    assert certificate.alternative_names == {(0x82, b"localhost"), (0x87, bytes([127, 0, 0, 1]))}
    assert certificate.rsa_bits == 0


@pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x80\x00\x00", b"\x30\x05\x30\x03\x02\x01\x01", b"\xff" * 50])
def test_bytes_that_are_no_certificate(data: bytes) -> None:
    with pytest.raises(DerError):
        read_certificate(data)
