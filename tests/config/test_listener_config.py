"""Configs of listeners: prefixes of listeners and mechanisms, the listener between brokers, passwords."""

from __future__ import annotations

import pytest

from kbroker.config.broker import BrokerConfig
from kbroker.config.describe import describe_broker_configs
from kbroker.config.key import ConfigSource, ConfigType
from kbroker.config.listener import normal_name, split_name
from kbroker.errors import UserError

FOUR = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,LOGIN://127.0.0.1:0,BOTH://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,LOGIN:SASL_PLAINTEXT,BOTH:SASL_SSL",
}


def broker(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties({name.replace("_", "."): text for name, text in properties.items()})


def test_the_prefix_of_a_listener_beats_the_config_for_all() -> None:
    config = BrokerConfig.from_properties(
        {
            **FOUR,
            "ssl.enabled.protocols": "TLSv1.2",
            "listener.name.both.ssl.enabled.protocols": "TLSv1.3",
            "listener.name.BOTH.ssl.keystore.location": "/both",
            "ssl.keystore.location": "/all",
        }
    )
    assert config.listener_config("SSL").ssl_enabled_protocols == ("TLSv1.2",)
    assert config.listener_config("BOTH").ssl_enabled_protocols == ("TLSv1.3",)
    assert config.listener_config("SSL").ssl_keystore_location == "/all"
    assert config.listener_config("BOTH").ssl_keystore_location == "/both"
    assert config.listener_config("BOTH").security_protocol == "SASL_SSL"
    assert config.ssl_keystore_location == "/all"
    with pytest.raises(AttributeError):
        config.listener_config("SSL").ssl_keystore_location = "/x"


def test_the_prefix_of_a_mechanism_beats_both() -> None:
    config = BrokerConfig.from_properties(
        {
            **FOUR,
            "connections.max.reauth.ms": "1",
            "listener.name.login.connections.max.reauth.ms": "2",
            "listener.name.login.scram-sha-256.connections.max.reauth.ms": "3",
        }
    )
    assert config.listener_config("BOTH").connections_max_reauth_ms == 1
    assert config.listener_config("LOGIN").connections_max_reauth_ms == 2
    assert config.listener_config("LOGIN", "PLAIN").connections_max_reauth_ms == 2
    assert config.listener_config("LOGIN", "SCRAM-SHA-256").connections_max_reauth_ms == 3


def test_client_certificates_of_a_sasl_listener_need_the_prefix() -> None:
    config = BrokerConfig.from_properties({**FOUR, "ssl.client.auth": "required"})
    assert config.listener_config("SSL").ssl_client_auth == "required"
    assert config.listener_config("BOTH").ssl_client_auth == "none"
    assert any("set listener.name.both.ssl.client.auth" in warning for warning in config.warnings)
    config = BrokerConfig.from_properties({**FOUR, "listener.name.both.ssl.client.auth": "required"})
    assert config.listener_config("BOTH").ssl_client_auth == "required"
    assert config.listener_config("SSL").ssl_client_auth == "none"


def test_dynamic_configs_of_a_listener_are_used() -> None:
    config = BrokerConfig.from_properties({**FOUR, "ssl.keystore.location": "/static"})
    config.set_dynamic(own={"listener.name.ssl.ssl.keystore.location": "/dynamic"}, defaults={})
    assert config.listener_config("SSL").ssl_keystore_location == "/dynamic"
    assert config.listener_config("BOTH").ssl_keystore_location == "/static"
    assert config.listener_config("SSL", dynamic={}).ssl_keystore_location == "/static"


def test_names_are_split() -> None:
    assert split_name("ssl.client.auth") is None
    assert split_name("listener.name.A.ssl.client.auth") == ("a", None, "ssl.client.auth")
    assert split_name("listener.name.a.PLAIN.sasl.jaas.config") == ("a", "plain", "sasl.jaas.config")
    assert split_name("listener.name.a.max.connections") == ("a", None, "max.connections")
    assert normal_name("listener.name.A.Plain.sasl.jaas.config") == "listener.name.a.plain.sasl.jaas.config"
    assert normal_name("num.partitions") == "num.partitions"


def test_an_invalid_value_is_named_with_its_prefix() -> None:
    with pytest.raises(UserError, match=r"^listener\.name\.ssl\.ssl\.client\.auth=x must be one of required, "):
        BrokerConfig.from_properties({**FOUR, "listener.name.ssl.ssl.client.auth": "x"})


def test_a_listener_that_does_not_exist_is_warned_about() -> None:
    config = BrokerConfig.from_properties({**FOUR, "listener.name.slt.ssl.client.auth": "required"})
    assert config.warnings == ("listener.name.slt.ssl.client.auth has no effect: listeners has no listener SLT",)


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({}, "PLAINTEXT"),
        ({"security.inter.broker.protocol": "SSL"}, "SSL"),
        ({"security.inter.broker.protocol": "SASL_SSL"}, "BOTH"),
        ({"inter.broker.listener.name": "login"}, "LOGIN"),
        ({"listeners": "SSL://127.0.0.1:0"}, "SSL"),
    ],
)
def test_the_listener_between_brokers(properties: dict[str, str], name: str) -> None:
    assert BrokerConfig.from_properties(FOUR | properties).inter_broker_endpoint.name == name


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        (
            {"inter.broker.listener.name": "SSL", "security.inter.broker.protocol": "SSL"},
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
        ),
        ({"inter.broker.listener.name": "NONE"}, "inter.broker.listener.name must be a listener name defined in"),
        (
            {"listeners": "SSL://127.0.0.1:0", "security.inter.broker.protocol": "SASL_SSL"},
            "The valid options based on currently configured listeners are SSL",
        ),
        (
            {"listeners": "SSL://127.0.0.1:0", "zookeeper.connect": "127.0.0.1:1"},
            "PLAINTEXT is none. The valid options based on currently configured listeners are SSL",
        ),
    ],
)
def test_a_listener_between_brokers_that_does_not_exist_is_refused(properties: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError) as refused:
        BrokerConfig.from_properties(FOUR | properties)
    assert problem in str(refused.value)


def test_passwords_are_never_shown() -> None:
    config = BrokerConfig.from_properties(
        {
            **FOUR,
            "ssl.key.password": "geheim",
            "listener.name.ssl.ssl.keystore.key": "geheim",
            "listener.name.login.plain.sasl.jaas.config": "geheim",
            "listener.name.ssl.ssl.client.auth": "required",
        }
    )
    password = config.ssl_key_password
    assert password is not None
    assert password.value == "geheim"
    assert "geheim" not in f"{password} {password!r} {[password]}"
    entries = {entry.name: entry for entry in describe_broker_configs(config, {})}
    assert "geheim" not in repr(entries)
    for name in (
        "ssl.key.password",
        "listener.name.ssl.ssl.keystore.key",
        "listener.name.login.plain.sasl.jaas.config",
    ):
        assert (entries[name].value, entries[name].is_sensitive) == (None, True)
    shown = entries["listener.name.ssl.ssl.client.auth"]
    assert (shown.value, shown.type, shown.source) == (
        "required",
        ConfigType.STRING,
        ConfigSource.STATIC_BROKER_CONFIG,
    )
    assert [synonym.name for synonym in shown.synonyms] == ["listener.name.ssl.ssl.client.auth", "ssl.client.auth"]
