"""Configs of the session with ZooKeeper. `kbroker.security.zookeeper_security` makes contexts and logins of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kbroker.config.key import (
    ConfigKey,
    ConfigTable,
    at_least,
    flag,
    int32,
    keys_of,
    optional_int32,
    optional_string,
    password,
    string,
    strings,
)
from kbroker.errors import UserError

__all__ = ["ZooKeeperConfig", "zookeeper_config"]


class ZooKeeperConfig(ConfigTable):
    """Address, timeouts and protection of the session with ZooKeeper."""

    zookeeper_clientCnxnSocket = optional_string(
        "Java class of the connection to ZooKeeper.", has_effect=False, retired=True
    )
    zookeeper_connect = optional_string(
        "ZooKeeper connection string, as HOST:PORT,HOST:PORT/PATH. If not set, the broker runs alone and stores "
        "its metadata in its data directory.",
        retired=True,
    )
    zookeeper_connection_timeout_ms = optional_int32(
        at_least(1),
        "Maximum time to connect to ZooKeeper at startup. If not set, zookeeper.session.timeout.ms is used.",
        retired=True,
    )
    zookeeper_session_timeout_ms = int32(
        18_000,
        at_least(1),
        "ZooKeeper session timeout. ZooKeeper expires the session of a broker that it has not heard from for this "
        "time.",
        retired=True,
    )
    zookeeper_set_acl = flag(
        False,
        "Whether only the identity that creates a node of ZooKeeper may change it. Needs an identity: a certificate "
        "(zookeeper.ssl.keystore.location) or a login (kbroker.zookeeper.jaas.file).",
        retired=True,
    )
    zookeeper_ssl_cipher_suites = strings(
        None, None, "Cipher suites of connections to ZooKeeper, with the names of Java.", retired=True
    )
    zookeeper_ssl_client_enable = flag(
        False,
        "Whether connections to ZooKeeper use TLS. If not, the other zookeeper.ssl configs have no effect.",
        retired=True,
    )
    zookeeper_ssl_crl_enable = flag(
        False, "Whether revocation lists are asked about ZooKeeper's certificate.", has_effect=False, retired=True
    )
    zookeeper_ssl_enabled_protocols = strings(
        None,
        None,
        "TLS versions of connections to ZooKeeper. If not set, the version in zookeeper.ssl.protocol. If neither is "
        "set, TLSv1.2 and TLSv1.3.",
        retired=True,
    )
    zookeeper_ssl_endpoint_identification_algorithm = string(
        "HTTPS",
        None,
        "https: the host name of ZooKeeper must be in its certificate. Empty: it is not verified.",
        retired=True,
    )
    zookeeper_ssl_keystore_location = optional_string(
        "File with the key and the certificate that the broker shows to ZooKeeper: PEM, PKCS12 or JKS.", retired=True
    )
    zookeeper_ssl_keystore_password = password(
        "Password of the key store for ZooKeeper, and of the key in it.", retired=True
    )
    zookeeper_ssl_keystore_type = optional_string(
        "Format of the key store for ZooKeeper: kbroker recognises it by the content.", has_effect=False, retired=True
    )
    zookeeper_ssl_ocsp_enable = flag(
        False, "Whether an OCSP server is asked about ZooKeeper's certificate.", has_effect=False, retired=True
    )
    zookeeper_ssl_protocol = string("TLSv1.2", None, "TLS version of connections to ZooKeeper.", retired=True)
    zookeeper_ssl_truststore_location = optional_string(
        "File with the authorities that may sign ZooKeeper's certificate: PEM, PKCS12 or JKS. If not set, those of the "
        "operating system.",
        retired=True,
    )
    zookeeper_ssl_truststore_password = password("Password of the trust store for ZooKeeper.", retired=True)
    zookeeper_ssl_truststore_type = optional_string(
        "Format of the trust store for ZooKeeper: kbroker recognises it by the content.", has_effect=False, retired=True
    )
    kbroker_zookeeper_jaas_file = optional_string(
        "JAAS file whose section Client has the login at ZooKeeper: the file that Kafka gets with the JVM option "
        "-Djava.security.auth.login.config. If not set, the broker does not log in at ZooKeeper."
    )


_KEYS: Final[Mapping[str, ConfigKey[Any]]] = {key.name: key for key in keys_of(ZooKeeperConfig)}


def zookeeper_config(texts: Mapping[str, str]) -> ZooKeeperConfig:
    """Returns the configs of ZooKeeper in properties that may have others too.

    Raises UserError if one of them is invalid.
    """
    values: dict[str, object] = {}
    for name in texts.keys() & _KEYS.keys():
        try:
            values[name] = _KEYS[name].parse(texts[name])
        except ValueError as problem:
            raise UserError(str(problem)) from None
    return ZooKeeperConfig(values, texts)
