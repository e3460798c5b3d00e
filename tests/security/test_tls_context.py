"""Contexts of the TLS library: versions, cipher suites, and whether a broker trusts itself."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from kbroker.errors import UserError
from kbroker.security.cipher_suites import openssl_name
from kbroker.security.key_stores import load_key_material
from kbroker.security.tls_context import check_own_trust, client_context, server_context
from tests.security.certificates import Authority, configs


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server(authority: Authority, **texts: str) -> ssl.SSLContext:
    config = configs(ssl_keystore_location=authority.pem("broker"), ssl_truststore_location=authority.file, **texts)
    keys = load_key_material(config)
    assert keys is not None
    return server_context(config, keys)


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_RSA_WITH_AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_cipher_suites_have_their_names_in_java(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)


def test_only_the_selected_suites_and_versions_are_offered(authority: Authority) -> None:
    context = server(authority, ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    offered = {cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"}
    assert offered == {"ECDHE-ECDSA-AES128-GCM-SHA256"}
    assert server(authority, ssl_cipher_suites="TLS_AES_128_GCM_SHA256").minimum_version is ssl.TLSVersion.TLSv1_3
    both = server(authority, ssl_enabled_protocols="TLSv1,TLSv1.2,TLSv1.3")
    assert (both.minimum_version, both.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    assert server(authority, ssl_enabled_protocols="TLSv1.2").maximum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"ssl_enabled_protocols": "TLSv1.1"}, "has neither TLSv1.2 nor TLSv1.3"),
        ({"ssl_enabled_protocols": "TLSv9"}, "has the unknown TLS version TLSv9"),
        ({"ssl_cipher_suites": "TLS_KRB5_WITH_DES_CBC_SHA"}, "unsupported cipher suite TLS_KRB5_WITH_DES_CBC_SHA"),
        ({"ssl_cipher_suites": "NONSENSE"}, "unsupported cipher suite NONSENSE"),
        (
            {"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256", "ssl_enabled_protocols": "TLSv1.2"},
            "has no suite for the versions",
        ),
    ],
)
def test_impossible_choices_are_refused(authority: Authority, texts: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        server(authority, **texts)


@pytest.mark.parametrize("client_auth", ["none", "requested", "required"])
def test_a_broker_must_trust_its_own_certificate(authority: Authority, tmp_path: Path, client_auth: str) -> None:
    location = authority.pem("broker", hosts=("elsewhere",))  # names of hosts do not matter here
    texts = {"ssl_keystore_location": location, "ssl_client_auth": client_auth}
    good = configs(**texts, ssl_truststore_location=authority.file)
    other = configs(**texts, ssl_truststore_location=Authority(tmp_path / "other").file)
    keys = load_key_material(good)
    assert keys is not None
    check_own_trust(server_context(good, keys), client_context(good))
    with pytest.raises(UserError, match="can't connect to a server SSLEngine created with those settings"):
        check_own_trust(server_context(other, keys), client_context(other))


def test_an_identification_algorithm_other_than_https_is_refused(authority: Authority) -> None:
    with pytest.raises(UserError, match="must be https or empty"):
        client_context(configs(ssl_endpoint_identification_algorithm="ldaps"))
    assert client_context(configs(ssl_truststore_location=authority.file)).check_hostname
    unchecked = configs(ssl_endpoint_identification_algorithm="", ssl_truststore_location=authority.file)
    assert not client_context(unchecked).check_hostname
