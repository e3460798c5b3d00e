"""Configs of TLS: those of a listener, and of connections that a broker or a client opens.

`listener.py` applies the prefixes of listeners. The values are used in `kbroker.security`.
"""

from __future__ import annotations

from typing import Final

from kbroker.config.key import (
    PER_BROKER,
    ConfigTable,
    class_name,
    flag,
    keys_of,
    one_of,
    optional_string,
    password,
    string,
    strings,
)

__all__ = ["TlsConfig"]

_SECURITY: Final = "org.apache.kafka.common.security"
_WITHOUT_EFFECT: Final = frozenset(
    {
        "principal.builder.class",
        "ssl.engine.factory.class",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    }
)
"""Java classes and algorithms of the JVM."""


class TlsConfig(ConfigTable):
    """Key stores, trust stores and rules of TLS connections."""

    principal_builder_class = class_name(
        f"{_SECURITY}.authenticator.DefaultKafkaPrincipalBuilder",
        "Java class that builds the principal of a connection.",
        update=PER_BROKER,
    )
    ssl_allow_dn_changes = flag(False, "Whether a certificate can be replaced by one with another distinguished name.")
    ssl_allow_san_changes = flag(
        False, "Whether a certificate can be replaced by one without all of its subject alternative names."
    )
    ssl_cipher_suites = strings(
        (), None, "Enabled cipher suites. If empty, all suites of the TLS library are enabled.", update=PER_BROKER
    )
    ssl_client_auth = string(
        "none",
        one_of("required", "requested", "none"),
        "Whether clients must or can authenticate with a certificate.",
        update=PER_BROKER,
    )
    ssl_enabled_protocols = strings(("TLSv1.2", "TLSv1.3"), None, "Enabled TLS versions.", update=PER_BROKER)
    ssl_endpoint_identification_algorithm = string(
        "https", None, "Algorithm that verifies the host name in a server's certificate.", update=PER_BROKER
    )
    ssl_engine_factory_class = class_name(None, "Java class that creates SSLEngine objects.", update=PER_BROKER)
    ssl_key_password = password("Password of the private key.", update=PER_BROKER)
    ssl_keymanager_algorithm = string("SunX509", None, "Algorithm of the Java key manager.", update=PER_BROKER)
    ssl_keystore_certificate_chain = password("Certificate chain of the broker, in PEM format.", update=PER_BROKER)
    ssl_keystore_key = password("Private key of the broker, in PEM format.", update=PER_BROKER)
    ssl_keystore_location = optional_string("Key store file.", update=PER_BROKER)
    ssl_keystore_password = password("Password of the key store file.", update=PER_BROKER)
    ssl_keystore_type = string("JKS", None, "Format of the key store file.", update=PER_BROKER)
    ssl_principal_mapping_rules = string(
        "DEFAULT", None, "Rules that map the distinguished names of client certificates to principals."
    )
    ssl_protocol = string("TLSv1.3", None, "TLS version used to create the SSLContext.", update=PER_BROKER)
    ssl_provider = optional_string("Java security provider for TLS.", update=PER_BROKER)
    ssl_secure_random_implementation = optional_string(
        "Random number generator (SecureRandom) for TLS.", update=PER_BROKER
    )
    ssl_trustmanager_algorithm = string("PKIX", None, "Algorithm of the Java trust manager.", update=PER_BROKER)
    ssl_truststore_certificates = password("Trusted certificates, in PEM format.", update=PER_BROKER)
    ssl_truststore_location = optional_string("Trust store file.", update=PER_BROKER)
    ssl_truststore_password = password("Password of the trust store file.", update=PER_BROKER)
    ssl_truststore_type = string("JKS", None, "Format of the trust store file.", update=PER_BROKER)


for _key in keys_of(TlsConfig):
    _key.has_effect = _key.name not in _WITHOUT_EFFECT
