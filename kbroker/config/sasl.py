"""Configs of SASL, for listeners and for connections that a broker or a client opens.

`listener.py` applies the prefixes of listeners and mechanisms.
"""

from __future__ import annotations

from typing import Final

from kbroker.config.key import (
    DAY_MS,
    PER_BROKER,
    ConfigTable,
    ValueCheck,
    at_least,
    between,
    class_name,
    double,
    flag,
    int16,
    int32,
    int64,
    keys_of,
    optional_int32,
    optional_string,
    password,
    string,
    strings,
)

__all__ = ["SaslConfig"]

_SECURITY: Final = "org.apache.kafka.common.security"
_WITH_EFFECT: Final[frozenset[str]] = frozenset(
    {
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.mechanism.inter.broker.protocol",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.server.callback.handler.class",
        "sasl.server.max.receive.size",
    }
)
"""Names of the configs that the code reads. `supported.py` refuses the start if another one is set."""


def _one_of_any_case(*choices: str) -> ValueCheck:
    problem = f"must be one of {', '.join(choices)}"
    return lambda value: None if value.upper() in choices else problem


class SaslConfig(ConfigTable):
    """Mechanisms, logins and rules of SASL connections."""

    connection_failed_authentication_delay_ms = int32(
        100, at_least(0), "Delay before a connection that failed to authenticate is closed."
    )
    connections_max_reauth_ms = int64(
        0, None, "Time after which a SASL client must authenticate again. If 0, it does not need to."
    )
    sasl_client_callback_handler_class = class_name(None, "Java class of the SASL client callback handler.")
    sasl_enabled_mechanisms = strings(("GSSAPI",), None, "Enabled SASL mechanisms.", update=PER_BROKER)
    sasl_jaas_config = password("JAAS login context for SASL connections.", update=PER_BROKER)
    sasl_kerberos_kinit_cmd = string("/usr/bin/kinit", None, "Path of the Kerberos kinit command.", update=PER_BROKER)
    sasl_kerberos_min_time_before_relogin = int64(
        60_000, None, "Minimum time between two Kerberos logins.", update=PER_BROKER
    )
    sasl_kerberos_principal_to_local_rules = strings(
        ("DEFAULT",), None, "Rules that map Kerberos principals to short names.", update=PER_BROKER
    )
    sasl_kerberos_service_name = optional_string("Kerberos principal name that brokers run as.", update=PER_BROKER)
    sasl_kerberos_ticket_renew_jitter = double(
        0.05, None, "Share of random jitter added to the renewal time of Kerberos tickets.", update=PER_BROKER
    )
    sasl_kerberos_ticket_renew_window_factor = double(
        0.8, None, "Share of a Kerberos ticket's lifetime after which it is renewed.", update=PER_BROKER
    )
    sasl_login_callback_handler_class = class_name(None, "Java class of the SASL login callback handler.")
    sasl_login_class = class_name(None, "Java class that performs the SASL login.")
    sasl_login_connect_timeout_ms = optional_int32(None, "Connection timeout of the external authentication provider.")
    sasl_login_read_timeout_ms = optional_int32(None, "Read timeout of the external authentication provider.")
    sasl_login_refresh_buffer_seconds = int16(
        300, None, "Minimum time between the refresh of a credential and its expiration.", update=PER_BROKER
    )
    sasl_login_refresh_min_period_seconds = int16(
        60, None, "Minimum time between two refreshes of a credential.", update=PER_BROKER
    )
    sasl_login_refresh_window_factor = double(
        0.8, None, "Share of a credential's lifetime after which it is refreshed.", update=PER_BROKER
    )
    sasl_login_refresh_window_jitter = double(
        0.05, None, "Share of random jitter added to the refresh time of credentials.", update=PER_BROKER
    )
    sasl_login_retry_backoff_max_ms = int64(10_000, None, "Maximum time to wait between two login attempts.")
    sasl_login_retry_backoff_ms = int64(100, None, "Initial time to wait between two login attempts.")
    sasl_mechanism_controller_protocol = string("GSSAPI", None, "SASL mechanism for connections to controllers.")
    sasl_mechanism_inter_broker_protocol = string(
        "GSSAPI", None, "SASL mechanism for connections between brokers.", update=PER_BROKER
    )
    sasl_oauthbearer_assertion_algorithm = string(
        "RS256", _one_of_any_case("ES256", "RS256"), "Algorithm that signs OAuth assertions."
    )
    sasl_oauthbearer_assertion_claim_aud = optional_string("Audience (aud) claim of OAuth assertions.")
    sasl_oauthbearer_assertion_claim_exp_seconds = int32(
        300, between(0, DAY_MS // 1000), "Time until OAuth assertions expire (exp claim)."
    )
    sasl_oauthbearer_assertion_claim_iss = optional_string("Issuer (iss) claim of OAuth assertions.")
    sasl_oauthbearer_assertion_claim_jti_include = flag(
        False, "Whether OAuth assertions include a unique id (jti claim)."
    )
    sasl_oauthbearer_assertion_claim_nbf_seconds = int32(
        60, between(0, 3600), "Time before their creation from which OAuth assertions are valid (nbf claim)."
    )
    sasl_oauthbearer_assertion_claim_sub = optional_string("Subject (sub) claim of OAuth assertions.")
    sasl_oauthbearer_assertion_file = optional_string("File with a prepared OAuth assertion.")
    sasl_oauthbearer_assertion_private_key_file = optional_string(
        "File with the private key that signs OAuth assertions."
    )
    sasl_oauthbearer_assertion_private_key_passphrase = password(
        "Passphrase of the private key that signs OAuth assertions."
    )
    sasl_oauthbearer_assertion_template_file = optional_string("File with additional claims of OAuth assertions.")
    sasl_oauthbearer_client_credentials_client_id = optional_string("Client id for the OAuth client credentials flow.")
    sasl_oauthbearer_client_credentials_client_secret = password("Client secret for the OAuth client credentials flow.")
    sasl_oauthbearer_clock_skew_seconds = int32(30, None, "Allowed clock difference to the OAuth identity provider.")
    sasl_oauthbearer_expected_audience = strings(None, None, "Accepted audiences of OAuth tokens.")
    sasl_oauthbearer_expected_issuer = optional_string("Required issuer of OAuth tokens.")
    sasl_oauthbearer_jwks_endpoint_refresh_ms = int64(
        3_600_000, None, "Interval at which the OAuth provider's key set (JWKS) is refreshed."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = int64(
        10_000, None, "Maximum time to wait between two attempts to fetch the key set (JWKS)."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = int64(
        100, None, "Initial time to wait between two attempts to fetch the key set (JWKS)."
    )
    sasl_oauthbearer_jwks_endpoint_url = optional_string("URL of the OAuth provider's key set (JWKS).")
    sasl_oauthbearer_jwt_retriever_class = class_name(
        f"{_SECURITY}.oauthbearer.DefaultJwtRetriever", "Java class that retrieves OAuth tokens."
    )
    sasl_oauthbearer_jwt_validator_class = class_name(
        f"{_SECURITY}.oauthbearer.DefaultJwtValidator", "Java class that validates OAuth tokens."
    )
    sasl_oauthbearer_scope = optional_string("Scope requested from the OAuth provider.")
    sasl_oauthbearer_scope_claim_name = string("scope", None, "Name of the scope claim of OAuth tokens.")
    sasl_oauthbearer_sub_claim_name = string("sub", None, "Name of the subject claim of OAuth tokens.")
    sasl_oauthbearer_token_endpoint_url = optional_string("URL of the OAuth provider's token endpoint.")
    sasl_server_callback_handler_class = class_name(None, "Java class of the SASL server callback handler.")
    sasl_server_max_receive_size = int32(
        512 * 1024, None, "Maximum size of a request before and during authentication."
    )


for _key in keys_of(SaslConfig):
    _key.has_effect = _key.name in _WITH_EFFECT
