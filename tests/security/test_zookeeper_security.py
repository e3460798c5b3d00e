"""Configs of ZooKeeper as TLS, login and protection; see test_zookeeper_session.py for a ZooKeeper that checks them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from kbroker.config.broker import BrokerConfig
from kbroker.config.zookeeper import zookeeper_config
from kbroker.errors import UserError
from kbroker.security.zookeeper_security import NOT_SECURED, ZooKeeperSecurity, zookeeper_security
from tests.security.certificates import Authority

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
TLS = {"zookeeper.ssl.client.enable": "true"}


def security(**texts: str) -> ZooKeeperSecurity:
    """Names without `zookeeper.`, with underscores for dots."""
    return zookeeper_security(zookeeper_config({f"zookeeper.{n.replace('_', '.')}": t for n, t in texts.items()}))


def of_jaas(path: Path, text: str) -> ZooKeeperSecurity:
    path.write_text(text)
    path.chmod(0o600)
    return zookeeper_security(zookeeper_config({"kbroker.zookeeper.jaas.file": str(path)}))


def context(**texts: str) -> ssl.SSLContext:
    found = security(ssl_client_enable="true", **texts).tls
    assert found is not None
    return found


def test_without_configs_nothing_is_secured_and_others_are_ignored() -> None:
    assert security() == NOT_SECURED
    assert security(ssl_keystore_location="/no/such/file") == NOT_SECURED  # as in Kafka, TLS is off
    assert zookeeper_security(zookeeper_config({"listeners": "SSL://a:1", "num.partitions": "x"})) == NOT_SECURED


def test_the_certificate_and_the_name_of_the_host_are_verified_by_default() -> None:
    assert (context().verify_mode, context().check_hostname) == (ssl.CERT_REQUIRED, True)
    unnamed = context(ssl_endpoint_identification_algorithm="")
    assert (unnamed.verify_mode, unnamed.check_hostname) == (ssl.CERT_REQUIRED, False)


@pytest.mark.parametrize(
    ("texts", "versions"),
    [
        ({}, ("TLSv1.2", "TLSv1.3")),
        ({"ssl_protocol": "TLSv1.2"}, ("TLSv1.2", "TLSv1.2")),
        ({"ssl_protocol": "TLSv1.3"}, ("TLSv1.3", "TLSv1.3")),
        ({"ssl_protocol": "TLSv1.2", "ssl_enabled_protocols": "TLSv1.3"}, ("TLSv1.3", "TLSv1.3")),
        ({"ssl_cipher_suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"}, ("TLSv1.2", "TLSv1.2")),
    ],
)
def test_versions_and_cipher_suites(texts: dict[str, str], versions: tuple[str, str]) -> None:
    found = context(**texts)
    names = {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}
    assert (names[found.minimum_version], names[found.maximum_version]) == versions


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"ssl_keystore_location": "/no/such/file"}, "Could not read ssl.keystore.location=/no/such/file"),
        ({"ssl_protocol": "TLSv9"}, "unknown TLS version TLSv9"),
        ({"ssl_cipher_suites": "TLS_NONE"}, "unsupported cipher suite TLS_NONE"),
        ({"ssl_endpoint_identification_algorithm": "ldaps"}, "must be https or empty"),
    ],
)
def test_tls_that_cannot_work_is_refused_in_one_line(texts: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match="TLS to ZooKeeper cannot be used, check zookeeper") as failure:
        context(**texts)
    assert problem in str(failure.value)
    assert "\n" not in str(failure.value)


def test_the_password_of_a_pem_file_is_that_of_its_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.pem("kafka")
    # ZooKeeper ignores passwords of PEM files that need none.
    context(
        ssl_keystore_location=pem,
        ssl_keystore_password="unused",
        ssl_truststore_location=authority.file,
        ssl_truststore_password="unused",
    )
    Path(pem).chmod(0o644)
    with pytest.raises(UserError, match="Every user of this machine can read the private key"):
        context(ssl_keystore_location=pem)


def test_protection_needs_an_identity(tmp_path: Path) -> None:
    pem = Authority(tmp_path).pem("kafka")
    for texts in ({}, {"ssl_client_enable": "true"}, {"ssl_keystore_location": pem}):
        with pytest.raises(UserError, match=r"zookeeper\.set\.acl is set to true, but ZooKeeper client TLS conf"):
            security(set_acl="true", **texts)
    assert security(set_acl="true", ssl_client_enable="true", ssl_keystore_location=pem).protects_nodes
    assert not security(ssl_client_enable="true", ssl_keystore_location=pem).protects_nodes


def test_the_login_is_in_the_section_client_of_a_jaas_file(tmp_path: Path) -> None:
    others = 'KafkaServer { org.example.A required a="b"; org.example.B optional; };\n'
    found = of_jaas(tmp_path / "jaas", f'{others}Client {{ {MODULE} required username="kafka" password="z"; }};')
    assert found.start_login is not None
    answer = found.start_login().step(b'realm="zk-sasl-md5",nonce="n",charset=utf-8,algorithm=md5-sess')
    assert answer is not None
    assert b'username="kafka"' in answer
    assert b'digest-uri="zookeeper/zk-sasl-md5"' in answer
    assert "kafka" not in repr(found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "JAAS file has no section Client"),
        (f"Server {{ {MODULE} required; }};", "JAAS file has no section Client"),
        (f"{MODULE} required username=a;", "JAAS file must consist of sections"),
        (f"Client {{ {MODULE} required username=a password=b; }}", "section Client not terminated by };"),
        (f"Client {{ {MODULE} required username=a password=b;", "section Client not terminated by };"),
        ("Client { };", "JAAS config has no login module, expected 1"),
        (f"Client {{ {MODULE} required username=a; }};", "section Client needs username and password"),
        (
            "Client { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true; };",
            "kbroker has no GSSAPI (Kerberos)",
        ),
        ("Client { com.sun.security.auth.module.JndiLoginModule required; };", "is not allowed"),
        (f"Client {{ {MODULE} required username=a password=1; }};", "Value not specified for key 'password'"),
    ],
)
def test_a_jaas_file_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UserError, match=r"jaas\.file=") as failure:
        of_jaas(tmp_path / "jaas", text)
    assert problem in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_jaas_file_must_exist_and_be_private(tmp_path: Path) -> None:
    path = tmp_path / "jaas"
    config = zookeeper_config({"kbroker.zookeeper.jaas.file": str(path)})
    with pytest.raises(UserError, match="could not read it: No such file"):
        zookeeper_security(config)
    path.write_text("")
    path.chmod(0o644)
    with pytest.raises(UserError, match="Every user of this machine can read the JAAS file"):
        zookeeper_security(config)


def test_a_value_that_is_no_value_is_refused() -> None:
    with pytest.raises(UserError, match=r"zookeeper\.set\.acl=maybe must be true or false"):
        zookeeper_config({"zookeeper.set.acl": "maybe"})


def test_configs_of_tls_that_is_off_are_warned_about() -> None:
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0"}
    config = BrokerConfig.from_properties(listeners | {"zookeeper.ssl.truststore.location": "/keys"})
    assert config.warnings == (
        "zookeeper.ssl.truststore.location has no effect: zookeeper.ssl.client.enable is not true",
    )
    assert BrokerConfig.from_properties(listeners | TLS | {"zookeeper.ssl.truststore.location": "/a"}).warnings == ()
