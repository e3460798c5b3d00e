"""`kbroker serve --secure`: makes what a secured single node needs at its first start, and finds it at later ones.

    <data directory>/secure/ca.pem, ca.key          authority for development
                            broker.pem              key and certificate of the broker; made again when it is needed
                            client.properties       settings and password of admin: Java, Kafka's tools, kbroker
                            librdkafka.properties   the same for kcat, confluent-kafka and others with librdkafka
                            metrics.token           token of the HTTP endpoints

The broker has one listener, SASL_SSL with SCRAM-SHA-512, ACLs, and the super user admin. The password of admin is made
and returned once: when the metadata has no user admin. The files of clients are written before the metadata, so that a
crash in between makes another password instead of losing it.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.errors import UserError
from kbroker.security.mechanism import SCRAM_SHA_512

if TYPE_CHECKING:
    from kbroker.controller.trees.tree import Tree
    from kbroker.security.certificate import Certificate

__all__ = ["ADMIN", "SECURED", "SECURE_PROTOCOL", "SecureNode", "prepare_secure_node"]

ADMIN: Final = "admin"
SECURE_PROTOCOL: Final = "SASL_SSL"
SECURED: Final = {
    "inter.broker.listener.name": SECURE_PROTOCOL,
    "sasl.enabled.mechanisms": SCRAM_SHA_512,
    "sasl.mechanism.inter.broker.protocol": SCRAM_SHA_512,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{ADMIN}",
}
"""Properties of the broker, besides its listeners and its key store."""

_DIRECTORY: Final = "secure"
_BROKER: Final = "broker"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS: Final = 3650
_BROKER_DAYS: Final = 365
_RENEW_BEFORE: Final = timedelta(days=30)
# Tags of subject alternative names: dNSName, iPAddress.
_DNS_NAME: Final = 0x82
_IP_ADDRESS: Final = 0x87


class SecureNode(NamedTuple):
    properties: dict[str, str]
    """Properties of the broker, without its listeners. Those of the HTTP endpoints may be overridden."""
    client_file: Path
    librdkafka_file: Path
    new_password: str | None
    """Password of admin, if this start has made it."""

    def __repr__(self) -> str:
        return f"SecureNode({str(self.client_file)!r})"  # the password must not get into a log


def prepare_secure_node(data_dir: Path, *, hosts: Sequence[str], now_ms: int) -> SecureNode:
    """Makes what is missing in the data directory of a stopped broker. `hosts`: names by which clients reach it.

    Raises UserError if a file cannot be written, or a broker uses the directory.
    """
    from kbroker.cli.stopped_broker import run_in_data_dir

    directory = (data_dir / _DIRECTORY).absolute()
    if not data_dir.exists():
        _make_private(data_dir)  # the metadata has hashes of passwords

    async def prepare(tree: Tree) -> SecureNode:
        _make_private(directory)
        authority, broker = _certificates(directory, [*_LOOPBACK, *hosts], now_ms)
        node = SecureNode(
            {**SECURED, "ssl.keystore.location": str(broker), **_http_properties(directory)},
            directory / "client.properties",
            directory / "librdkafka.properties",
            None,
        )
        return node._replace(new_password=await _add_admin(tree, node, authority))

    return run_in_data_dir(data_dir, prepare)


def _http_properties(directory: Path) -> dict[str, str]:
    """Returns the properties of the HTTP endpoints: TLS, and a token unless the environment has one."""
    from kbroker.web.http_access import TOKEN_VARIABLE

    properties = {"kbroker.metrics.security.protocol": "SSL"}
    if TOKEN_VARIABLE in os.environ:
        return properties
    file = directory / "metrics.token"
    if not file.exists():
        _write(file, f"{secrets.token_hex(32)}\n")
    return {**properties, "kbroker.metrics.token.file": str(file)}


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"Could not create {directory}: {problem.strerror}") from None


def _certificates(directory: Path, hosts: Sequence[str], now_ms: int) -> tuple[Path, Path]:
    """Returns the certificate of the authority and the key store of the broker."""
    from kbroker.security.development_certificates import DevelopmentCertificates

    authority = DevelopmentCertificates(directory, now_ms=now_ms, days=_AUTHORITY_DAYS)
    authority.make_authority()
    certificates = DevelopmentCertificates(directory, now_ms=now_ms, days=_BROKER_DAYS)
    file = certificates.file(_BROKER)
    if file.exists():
        if not _is_outdated(_read(file), _read(authority.authority_file), hosts, now_ms):
            return authority.authority_file, file
        file.unlink()
    return authority.authority_file, certificates.make(_BROKER, hosts=tuple(dict.fromkeys(hosts)))


def _is_outdated(certificate: Certificate, authority: Certificate, hosts: Sequence[str], now_ms: int) -> bool:
    """Whether a certificate that the authority has signed expires soon, or lacks a name. Others are left alone."""
    if certificate.issuer != authority.subject:
        return False
    ends = certificate.not_after - datetime.fromtimestamp(now_ms / 1000, UTC)
    return ends < _RENEW_BEFORE or not certificate.alternative_names.issuperset(map(_alternative_name, hosts))


def _alternative_name(host: str) -> tuple[int, bytes]:
    try:
        return _IP_ADDRESS, ipaddress.ip_address(host).packed
    except ValueError:
        return _DNS_NAME, host.encode()


def _read(file: Path) -> Certificate:
    from kbroker.security.certificate import read_certificate
    from kbroker.security.der import DerError
    from kbroker.security.pem import read_certificates

    try:
        return read_certificate(read_certificates(file.read_text(encoding="utf-8", errors="replace"))[0])
    except (DerError, ValueError, IndexError):
        raise UserError(f"{file} has no certificate. Remove the file: a new one is made at the next start.") from None
    except OSError as problem:
        raise UserError(f"Could not read {file}: {problem.strerror}") from None


async def _add_admin(tree: Tree, node: SecureNode, authority: Path) -> str | None:
    """Adds the user and writes the files of clients. Returns its password; None if the tree has the user."""
    from kbroker.controller.config_entities import entity_path
    from kbroker.controller.offline_configs import update_offline
    from kbroker.controller.trees.znodes import decode_configs, entity_config_path
    from kbroker.security.credentials import SCRAM_MECHANISMS, credential_of_password, format_credential

    entity = entity_path("users", ADMIN)
    (stored,) = await tree.get_many([entity_config_path(entity)])
    if stored is not None and SCRAM_SHA_512 in decode_configs(stored.data):
        return None
    password = secrets.token_urlsafe(18)
    _write(node.client_file, _client_properties(password, authority))
    _write(node.librdkafka_file, _librdkafka_properties(password, authority))
    credential = format_credential(credential_of_password(SCRAM_MECHANISMS[SCRAM_SHA_512], password))
    await update_offline(tree, entity, lambda current: {**current, SCRAM_SHA_512: credential})
    return password


def _client_properties(password: str, authority: Path) -> str:
    from kbroker.security.jaas import SCRAM_LOGIN_MODULE, quote_jaas

    trusted = str(authority).replace("\\", "\\\\")  # an escape in a properties file
    jaas = f"{SCRAM_LOGIN_MODULE} required username={quote_jaas(ADMIN)} password={quote_jaas(password)};"
    return (
        f"security.protocol={SECURE_PROTOCOL}\nssl.truststore.type=PEM\nssl.truststore.location={trusted}\n"
        f"sasl.mechanism={SCRAM_SHA_512}\nsasl.jaas.config={jaas}\n"
    )


def _librdkafka_properties(password: str, authority: Path) -> str:
    return (
        f"security.protocol={SECURE_PROTOCOL}\nssl.ca.location={authority}\n"
        f"sasl.mechanism={SCRAM_SHA_512}\nsasl.username={ADMIN}\nsasl.password={password}\n"
    )


def _write(file: Path, text: str) -> None:
    """Replaces a file that only its owner can read."""
    try:
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as problem:
        raise UserError(f"Could not write {file}: {problem.strerror}") from None
