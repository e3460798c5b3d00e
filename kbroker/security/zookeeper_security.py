"""Security of a session with ZooKeeper: TLS, a login, and the protection of new nodes."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kbroker.config.listener import listener_config
from kbroker.config.zookeeper import ZooKeeperConfig
from kbroker.errors import UserError
from kbroker.security.digest_md5 import DigestMd5Client
from kbroker.security.jaas import parse_jaas_section
from kbroker.security.mechanism import ClientMechanism
from kbroker.security.pem import is_pem
from kbroker.security.private_files import check_private
from kbroker.security.tls_context import client_context

__all__ = ["NOT_SECURED", "ZooKeeperSecurity", "zookeeper_security"]

_SECTION: Final = "Client"
_LOGIN_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
# Constants of ZooKeeper: every server has these names in DIGEST-MD5.
_SERVICE: Final = "zookeeper"
_HOST: Final = "zk-sasl-md5"


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    tls: ssl.SSLContext | None = None
    start_login: Callable[[], ClientMechanism] | None = field(default=None, repr=False)
    """Returns the client side of a new SASL exchange. None: no login."""
    protects_nodes: bool = False
    """Whether only the identity of the session may change the nodes that it creates."""


NOT_SECURED: Final = ZooKeeperSecurity()


def zookeeper_security(config: ZooKeeperConfig) -> ZooKeeperSecurity:
    """Loads keys and the login. Raises UserError if they cannot be used, or if set.acl has no identity."""
    path = config.kbroker_zookeeper_jaas_file
    has_certificate = config.zookeeper_ssl_client_enable and bool(config.zookeeper_ssl_keystore_location)
    if config.zookeeper_set_acl and not path and not has_certificate:
        raise UserError(
            "zookeeper.set.acl is set to true, but ZooKeeper client TLS configuration identifying at least "
            "zookeeper.ssl.client.enable and zookeeper.ssl.keystore.location was not present, and neither was "
            "kbroker.zookeeper.jaas.file: the broker needs an identity that may change its nodes"
        )
    return ZooKeeperSecurity(
        _context(config) if config.zookeeper_ssl_client_enable else None,
        _login(path) if path else None,
        config.zookeeper_set_acl,
    )


def _context(config: ZooKeeperConfig) -> ssl.SSLContext:
    texts = {
        "ssl.enabled.protocols": ",".join(_protocols(config)),
        "ssl.cipher.suites": ",".join(config.zookeeper_ssl_cipher_suites or ()),
        "ssl.endpoint.identification.algorithm": config.zookeeper_ssl_endpoint_identification_algorithm,
    }
    if location := config.zookeeper_ssl_keystore_location:
        texts["ssl.keystore.location"] = location
        # ZooKeeper has one password for the file and its key. A PEM file is not encrypted, but its key may be.
        secret = config.zookeeper_ssl_keystore_password
        if secret is not None:
            texts["ssl.key.password" if _is_pem_file(location) else "ssl.keystore.password"] = secret.value
    if location := config.zookeeper_ssl_truststore_location:
        texts["ssl.truststore.location"] = location
        secret = config.zookeeper_ssl_truststore_password
        if secret is not None and not _is_pem_file(location):
            texts["ssl.truststore.password"] = secret.value
    try:
        return client_context(listener_config(texts, "", security_protocol="SSL"))
    except UserError as problem:
        raise UserError(f"TLS to ZooKeeper cannot be used, check zookeeper.ssl.*: {problem}") from None


def _protocols(config: ZooKeeperConfig) -> tuple[str, ...]:
    """Returns the TLS versions. Without a config also 1.3, unlike Kafka: ZooKeeper 3.9 by itself has no other."""
    if config.zookeeper_ssl_enabled_protocols:
        return config.zookeeper_ssl_enabled_protocols
    return (config.zookeeper_ssl_protocol,) if "zookeeper.ssl.protocol" in config.texts else ("TLSv1.2", "TLSv1.3")


def _is_pem_file(location: str) -> bool:
    try:
        with open(location, "rb") as file:
            return is_pem(file.read())
    except OSError:
        return False  # loading it reports why


def _login(path: str) -> Callable[[], ClientMechanism]:
    source = f"kbroker.zookeeper.jaas.file={path}"
    check_private(path, "the JAAS file")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"{source}: could not read it: {getattr(problem, 'strerror', 'not UTF-8')}") from None
    module = parse_jaas_section(text, section=_SECTION, source=source)
    if module.class_name != _LOGIN_MODULE:
        raise UserError(
            f"{source}: section {_SECTION} needs the login module {_LOGIN_MODULE}, not {module.class_name}. "
            "kbroker has no GSSAPI (Kerberos)"
        )
    user, password = module.options.get("username"), module.options.get("password")
    if not user or not password:
        raise UserError(f"{source}: section {_SECTION} needs username and password")
    return lambda: DigestMd5Client(user, password, service=_SERVICE, host=_HOST)
