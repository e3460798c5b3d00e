"""The only module that uses the library `cryptography`: PKCS12 stores, new keys and certificates, EC signatures.

The library is the extra `kbroker[tls]`. PEM and JKS work without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.errors import UserError

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["IssuedCertificate", "elliptic_signature_check", "new_authority", "new_certificate", "read_pkcs12"]


def _missing(what: str) -> UserError:
    return UserError(f"{what} needs the library cryptography. Install it: pip install 'kbroker[tls]'")


def read_pkcs12(data: bytes, password: str | None, source: str) -> tuple[str | None, tuple[bytes, ...]]:
    """Returns the key in PEM, or None, and the certificates in DER, the certificate of the key first.

    Raises UserError if the store cannot be read.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise _missing(f"The PKCS12 store {source}") from None
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError:
        hint = "it is damaged" if password is None else "the password is wrong, or it is damaged"
        raise UserError(f"Could not read the PKCS12 store {source}: {hint}") from None
    first = [] if store.cert is None else [store.cert]
    certificates = tuple(
        entry.certificate.public_bytes(serialization.Encoding.DER) for entry in [*first, *store.additional_certs]
    )
    if store.key is None:
        return None, certificates
    key = store.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key.decode(), certificates


class IssuedCertificate(NamedTuple):
    """A certificate and its key in PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        return "IssuedCertificate()"  # the key must not get into a log


def new_authority(name: str, *, not_before: datetime, days: int) -> IssuedCertificate:
    """Returns a new certificate authority with a P-256 key."""
    try:
        from cryptography import x509
    except ImportError:
        raise _missing("Making certificates") from None
    key = _new_key()
    subject = _name(name, None)
    builder = _builder(subject, subject, key, not_before, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(is_authority=True), critical=True)
    return _issue(builder, key, key)


def new_certificate(
    name: str,
    authority: IssuedCertificate,
    *,
    hosts: Sequence[str] = (),
    organization: str | None = None,
    not_before: datetime,
    days: int,
) -> IssuedCertificate:
    """Returns a new certificate, signed by the authority. `hosts`: names and addresses of a server; none for a client.

    A broker's certificate is for both sides: brokers connect to each other with it.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ImportError:
        raise _missing("Making certificates") from None
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    issuer_key: Any = serialization.load_pem_private_key(authority.key.encode(), None)
    key = _new_key()
    builder = _builder(_name(name, organization), issuer.subject, key, not_before, days)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(is_authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    # Clients of Python 3.13 and later refuse certificates that do not name the key of their issuer (RFC 5280).
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = builder.add_extension(issuer_id, critical=False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_general_name, hosts))), critical=False)
    return _issue(builder, key, issuer_key)


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(common_name: str, organization: str | None) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parts = [] if organization is None else [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, not_before: datetime, days: int) -> Any:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_before + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    import ipaddress

    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _issue(builder: Any, key: Any, signing_key: Any) -> IssuedCertificate:
    from cryptography.hazmat.primitives import hashes, serialization

    certificate = builder.sign(signing_key, hashes.SHA256())
    return IssuedCertificate(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )


def elliptic_signature_check(curve: str, x: int, y: int) -> Callable[[bytes, bytes], bool]:
    """Returns a function that verifies ECDSA signatures (two numbers of one size) of a public key, a point of a curve.

    Raises ValueError if it is no point of the curve, and UserError without the library.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, utils
    except ImportError:
        raise _missing("An EC key of a key set") from None
    curves: dict[str, tuple[ec.EllipticCurve, hashes.HashAlgorithm]] = {
        "P-256": (ec.SECP256R1(), hashes.SHA256()),
        "P-384": (ec.SECP384R1(), hashes.SHA384()),
        "P-521": (ec.SECP521R1(), hashes.SHA512()),
    }
    kind, digest = curves[curve]
    key = ec.EllipticCurvePublicNumbers(x, y, kind).public_key()
    size = (kind.key_size + 7) // 8

    def verify(signed: bytes, signature: bytes) -> bool:
        if len(signature) != 2 * size:
            return False
        r, s = (int.from_bytes(part, "big") for part in (signature[:size], signature[size:]))
        try:
            key.verify(utils.encode_dss_signature(r, s), signed, ec.ECDSA(digest))
        except InvalidSignature:
            return False
        return True

    return verify
