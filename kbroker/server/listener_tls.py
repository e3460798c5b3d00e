"""TLS of one listener: its keys, which can be replaced while the broker runs, and the principals of its clients."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from kbroker.config.broker import BrokerConfig
from kbroker.config.listener import ListenerConfig
from kbroker.errors import PeerError, UserError
from kbroker.security.certificate import Certificate, read_certificate
from kbroker.security.der import DerError
from kbroker.security.key_stores import KeyMaterial, load_key_material
from kbroker.security.principal_mapping import map_name, parse_rules
from kbroker.security.tls_context import check_own_trust, client_context, server_context
from kbroker.server.requests.client_session import ClientSession
from kbroker.server.wire.connection import Connection

if TYPE_CHECKING:
    from kbroker.client.client_tls import ClientTls

__all__ = ["ReloadableTls"]

logger = logging.getLogger(__name__)

# A signature with a larger key takes several milliseconds: 2048 bits 1 ms, 4096 bits 5 ms.
_FAST_RSA_BITS: Final = 2048


class _Loaded(NamedTuple):
    context: ssl.SSLContext
    certificate: Certificate
    has_trust_store: bool


class ReloadableTls:
    """Implements `ListenerTls` and `ListenerKeys`. New connections use the newest keys; open ones keep theirs."""

    def __init__(self, config: BrokerConfig, name: str) -> None:
        """Raises UserError if the listener has no key, or one that cannot be used."""
        self.name = name
        self.outbound: ClientTls | None = None
        """Connections to other brokers, which use the keys of this listener too; None for any other listener."""
        self.handshakes = 0
        self.failed_handshakes = 0
        self._config = config
        self._is_between_brokers = config.inter_broker_endpoint.name == name and bool(config.zookeeper_connect)
        listener_config = config.listener_config(name)
        self._gives_principal = listener_config.security_protocol == "SSL"
        self._rules_text = listener_config.ssl_principal_mapping_rules
        self._rules = parse_rules(self._rules_text)
        self._loaded = self._load(listener_config)

    @property
    def certificate(self) -> Certificate:
        return self._loaded.certificate

    @property
    def is_slow(self) -> bool:
        return self._loaded.certificate.rsa_bits > _FAST_RSA_BITS

    def new_session(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        return self._loaded.context.wrap_bio(incoming, outgoing, server_side=True)

    def on_failed_handshake(self) -> None:
        self.failed_handshakes += 1

    def on_handshake(self, connection: Connection, certificate: bytes | None) -> None:
        self.handshakes += 1
        if self._gives_principal and certificate is not None:
            cast(ClientSession, connection.session).principal = self._principal(certificate)

    def _principal(self, encoded: bytes) -> str:
        try:
            subject = read_certificate(encoded).subject
        except DerError as problem:
            raise PeerError(f"SSL handshake failed: the certificate of the client cannot be read: {problem}") from None
        user = map_name(self._rules, subject)
        if not user:  # an empty name too: all clients with it would be one user
            raise PeerError(f"No rules apply to {subject!r}, rules {self._rules_text}")
        return f"User:{user}"

    def problem_of(self, dynamic: Mapping[str, str]) -> str | None:
        """Returns why these dynamic configs of the broker cannot be used for this listener, or None."""
        listener_config = self._config.listener_config(self.name, dynamic=dynamic)
        try:
            self._check_change(self._load(listener_config), listener_config)
        except UserError as problem:
            return str(problem)
        return None

    def reload(self) -> None:
        """Uses the keys and trusted certificates of the current configs.

        Raises UserError if they cannot be used, and keeps the old ones.
        """
        listener_config = self._config.listener_config(self.name)
        loaded = self._load(listener_config)
        self._check_change(loaded, listener_config)
        self._use(loaded, listener_config)

    def use_stored_configs(self) -> None:
        """Uses the dynamic configs that are stored, at a start. If they are wrong, the properties stay in use."""
        listener_config = self._config.listener_config(self.name)
        try:
            self._use(self._load(listener_config), listener_config)
        except UserError as problem:
            logger.error("The stored keys of listener %s are not used: %s", self.name, problem)

    def _use(self, loaded: _Loaded, listener_config: ListenerConfig) -> None:
        if self.outbound is not None:
            self.outbound.reload(listener_config)
        self._loaded = loaded
        certificate = loaded.certificate
        fields = {"listener": self.name, "not_after": certificate.not_after.isoformat()}
        logger.info(
            "Listener %s uses the certificate %s, valid until %s",
            self.name,
            certificate.subject,
            certificate.not_after.date(),
            extra=fields,
        )

    def _load(self, listener_config: ListenerConfig) -> _Loaded:
        try:
            keys = load_key_material(listener_config)
            if keys is None:
                raise UserError(
                    "no key is configured: set ssl.keystore.location, or ssl.keystore.key and "
                    "ssl.keystore.certificate.chain. 'kbroker certs new' makes keys for development"
                )
            context = server_context(listener_config, keys)
            if self._is_between_brokers:
                check_own_trust(context, client_context(listener_config))
            has_trust_store = bool(
                listener_config.ssl_truststore_location or listener_config.ssl_truststore_certificates
            )
            return _Loaded(context, _first(keys), has_trust_store)
        except UserError as problem:
            raise UserError(f"Listener {self.name} cannot use TLS: {problem}") from None

    def _check_change(self, loaded: _Loaded, listener_config: ListenerConfig) -> None:
        """Raises UserError if clients that know the old certificate would not accept the new one."""
        if loaded.has_trust_store != self._loaded.has_trust_store:
            raise UserError(
                "Cannot add SSL truststore to an existing listener for which a truststore was not configured."
                if loaded.has_trust_store
                else "Cannot remove the SSL truststore from an existing listener."
            )
        old, new = self.certificate, loaded.certificate
        if old.subject != new.subject and not listener_config.ssl_allow_dn_changes:
            raise UserError(
                f"Keystore DistinguishedName does not match: existing={{{old.subject}}}, new={{{new.subject}}}"
            )
        if not old.alternative_names <= new.alternative_names and not listener_config.ssl_allow_san_changes:
            raise UserError("Keystore SubjectAltNames do not match: the new certificate lacks names of the old one")


def _first(keys: KeyMaterial) -> Certificate:
    try:
        return read_certificate(keys.chain[0])
    except DerError as problem:
        raise UserError(f"The certificate of the key cannot be read: {problem}") from None
