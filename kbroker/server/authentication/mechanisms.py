"""Builds the enabled mechanisms of a listener from its configs. Refuses a start whose logins could not work.

Callback handlers are Java classes. Kafka's own are known by name; others are refused.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.config.listener import ListenerConfig
from kbroker.controller.image import Image
from kbroker.errors import UserError
from kbroker.security.client_login import NO_GSSAPI
from kbroker.security.credentials import SCRAM_MECHANISMS, ScramHash
from kbroker.security.jaas import PLAIN_LOGIN_MODULE, SCRAM_LOGIN_MODULE, LoginModule, parse_jaas, plain_users
from kbroker.security.json_web_token import BearerToken, InvalidToken, TokenRules, validate_signed, validate_unsigned
from kbroker.security.mechanism import OAUTHBEARER, PLAIN, SUPPORTED_MECHANISMS
from kbroker.security.oauthbearer import OAuthBearerServer
from kbroker.security.plain import PlainServer
from kbroker.security.scram import ScramServer
from kbroker.server.authentication.key_set import KeySet, check_jwks_url
from kbroker.server.authentication.sasl_exchange import EnabledMechanism
from kbroker.server.authentication.stored_credentials import find_credential, find_token

if TYPE_CHECKING:
    from kbroker.controller.token_store import TokenStore

__all__ = ["MechanismBuilder"]

logger = logging.getLogger(__name__)

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
_SIGNED: Final = (
    f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
)
_UNSIGNED: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"


class MechanismBuilder:
    """`image` returns the current image. `tokens`: None without delegation tokens.

    After `build`, the keys of `key_sets` must be loaded and refreshed.
    """

    def __init__(
        self, config: BrokerConfig, image: Callable[[], Image], tokens: TokenStore | None, clock: Clock
    ) -> None:
        self.key_sets: list[KeySet] = []
        self._config = config
        self._image = image
        self._tokens = tokens
        self._clock = clock
        self._secret = _shared_secret(config)

    def build(self, listener: str) -> dict[str, EnabledMechanism]:
        """Returns the mechanisms of a listener, in the order of the config. Raises UserError if a config is wrong."""
        enabled = self._config.listener_config(listener).sasl_enabled_mechanisms
        if not any(enabled):
            raise UserError(f"sasl.enabled.mechanisms of listener {listener} is empty: no client could log in.")
        return {mechanism: self._enabled(listener, mechanism) for mechanism in enabled}

    def _enabled(self, listener: str, mechanism: str) -> EnabledMechanism:
        if mechanism not in SUPPORTED_MECHANISMS:
            name = f"sasl.enabled.mechanisms of listener {listener}"
            if mechanism == "GSSAPI":
                raise UserError(f"{name} has GSSAPI, which is Kafka's default, but {NO_GSSAPI}.")
            raise UserError(f"{name} has {mechanism}, which is not one of {', '.join(SUPPORTED_MECHANISMS)}.")
        config = self._config.listener_config(listener, mechanism)
        if mechanism == OAUTHBEARER:
            validate = self._validator(config)
            return EnabledMechanism(lambda: OAuthBearerServer(validate), config.connections_max_reauth_ms)
        if config.sasl_server_callback_handler_class is not None:
            name = _name(config, "sasl.server.callback.handler.class")
            raise UserError(f"{name} is set, but kbroker cannot run Java classes: remove it.")
        module = self._login_module(config)
        if mechanism == PLAIN:
            if module is None:
                name = _name(config, "sasl.jaas.config")
                raise UserError(
                    f'PLAIN needs its users: set {name}={PLAIN_LOGIN_MODULE} required user_<name>="<password>";'
                )
            passwords = plain_users(module)
            return EnabledMechanism(lambda: PlainServer(passwords), config.connections_max_reauth_ms)
        scram = SCRAM_MECHANISMS[mechanism]
        return EnabledMechanism(partial(self._scram_server, scram), config.connections_max_reauth_ms)

    def _scram_server(self, scram: ScramHash) -> ScramServer:
        return ScramServer(
            scram,
            lambda user: find_credential(self._image(), scram, user),
            find_token=lambda token_id: find_token(self._tokens, scram, token_id),
            secret=self._secret,
        )

    def _login_module(self, config: ListenerConfig) -> LoginModule | None:
        """Returns the login module of PLAIN or SCRAM, or None if it is not set. Raises UserError if it is invalid.

        As in Kafka, only the config with the prefixes of listener and mechanism counts.
        """
        name = _name(config, "sasl.jaas.config")
        if name not in self._config.texts or config.sasl_jaas_config is None:
            return None
        module = parse_jaas(config.sasl_jaas_config.value, source=name)
        expected = PLAIN_LOGIN_MODULE if config.mechanism == PLAIN else SCRAM_LOGIN_MODULE
        if module.class_name != expected:
            raise UserError(f"{name}: {config.mechanism} needs the login module {expected}, not {module.class_name}")
        return module

    # OAUTHBEARER

    def _validator(self, config: ListenerConfig) -> Callable[[str], BearerToken]:
        handler = config.sasl_server_callback_handler_class
        rules = _rules(config)
        if handler == _UNSIGNED:
            logger.warning("Listener %s accepts unsigned tokens: any client can log in as any user", config.name)
            return lambda text: validate_unsigned(text, rules, now_ms=self._clock.now_ms())
        name = _name(config, "sasl.server.callback.handler.class")
        if handler not in _SIGNED:
            raise UserError(
                f"OAUTHBEARER needs a validator of tokens: set {name}={_SIGNED[0]} and a key set, or for tests only "
                f"{_UNSIGNED}, which accepts unsigned tokens."
            )
        keys = self._key_set(config)

        def validate(text: str) -> BearerToken:
            try:
                return validate_signed(text, rules, keys.keys, now_ms=self._clock.now_ms())
            except InvalidToken as problem:
                if problem.unknown_key_id is not None:
                    keys.on_unknown_key()
                raise

        return validate

    def _key_set(self, config: ListenerConfig) -> KeySet:
        url = config.sasl_oauthbearer_jwks_endpoint_url
        if not url:
            raise UserError(f"{_name(config, 'sasl.oauthbearer.jwks.endpoint.url')} is missing: OAUTHBEARER needs it.")
        check_jwks_url(url, source=_name(config, "sasl.oauthbearer.jwks.endpoint.url"))
        keys = KeySet(
            url,
            self._clock,
            refresh_ms=config.sasl_oauthbearer_jwks_endpoint_refresh_ms,
            backoff_ms=config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
            max_backoff_ms=config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        )
        self.key_sets.append(keys)
        return keys


def _rules(config: ListenerConfig) -> TokenRules:
    return TokenRules(
        issuer=config.sasl_oauthbearer_expected_issuer,
        audiences=tuple(config.sasl_oauthbearer_expected_audience or ()),
        clock_skew_seconds=config.sasl_oauthbearer_clock_skew_seconds,
        subject_claim=config.sasl_oauthbearer_sub_claim_name,
        scope_claim=config.sasl_oauthbearer_scope_claim_name,
    )


def _name(config: ListenerConfig, name: str) -> str:
    assert config.mechanism is not None
    return f"listener.name.{config.name.lower()}.{config.mechanism.lower()}.{name}"


def _shared_secret(config: BrokerConfig) -> bytes:
    """Returns the secret behind the salts of users that do not exist.

    All brokers must give such a user the same salt, now and after a restart, as they do for users that exist. So the
    secret comes from the JAAS configs, which hold the brokers' own passwords. Without them it is random.
    """
    texts = [text for name, text in sorted(config.texts.items()) if name.endswith(".sasl.jaas.config")]
    with_password = [text for text in texts if "password" in text or "user_" in text]
    if not with_password:
        return secrets.token_bytes(32)
    return hashlib.sha256("\0".join(with_password).encode()).digest()
