"""Keys and trusted certificates: PEM, PKCS12 and JKS by content, from files and inline."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, NoEncryption, pkcs12

from kbroker.config.listener import ListenerConfig
from kbroker.errors import UserError
from kbroker.security.certificate import read_certificate
from kbroker.security.key_stores import KeyMaterial, load_key_material, load_trusted_certificates
from kbroker.security.tls_context import client_context, server_context
from tests.security.certificates import Authority, configs


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def use(config: ListenerConfig) -> KeyMaterial:
    """Loads the key, and checks that OpenSSL takes it."""
    keys = load_key_material(config)
    assert keys is not None
    server_context(config, keys)
    return keys


def refusal(config: ListenerConfig) -> str:
    with pytest.raises(UserError) as refused:
        use(config)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def subjects(certificates: tuple[bytes, ...] | None) -> list[str]:
    return [read_certificate(encoded).subject for encoded in certificates or ()]


def test_a_pem_file_has_the_key_and_its_chain(authority: Authority) -> None:
    keys = use(configs(ssl_keystore_location=authority.pem("broker")))
    assert subjects(keys.chain) == ["CN=broker,O=acme"]
    assert "PRIVATE" not in repr(keys)


def test_pem_text_may_stand_on_one_line_of_a_properties_file(authority: Authority) -> None:
    issued = authority.issue("broker")
    texts = {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_key": issued.key.replace("\n", " "),
        "ssl_keystore_certificate_chain": issued.certificate.replace("\n", ""),
        "ssl_truststore_type": "PEM",
        "ssl_truststore_certificates": Path(authority.file).read_text().replace("\n", " "),
    }
    config = configs(**texts)
    assert subjects(use(config).chain) == ["CN=broker,O=acme"]
    assert subjects(load_trusted_certificates(config)) == ["CN=test authority"]
    client_context(config)


def encrypted(key: str, password: str, style: serialization.PrivateFormat) -> str:
    loaded = serialization.load_pem_private_key(key.encode(), None)
    encryption = BestAvailableEncryption(password.encode())
    return loaded.private_bytes(serialization.Encoding.PEM, style, encryption).decode()


@pytest.mark.parametrize(
    "style", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL], ids=["pkcs8", "old"]
)
def test_an_encrypted_key_needs_its_password(authority: Authority, style: serialization.PrivateFormat) -> None:
    issued = authority.issue("broker")
    location = authority.write("secret", encrypted(issued.key, "geheim", style) + issued.certificate)
    use(configs(ssl_keystore_location=location, ssl_key_password="geheim"))
    assert refusal(configs(ssl_keystore_location=location)).endswith("is encrypted: set ssl.key.password")
    wrong = refusal(configs(ssl_keystore_location=location, ssl_key_password="falsch"))
    assert wrong == "The private key cannot be read: check ssl.key.password"


def test_a_pkcs12_store_is_recognised_under_any_name_and_type(authority: Authority) -> None:
    issued = authority.issue("broker")
    key: Any = serialization.load_pem_private_key(issued.key.encode(), None)
    certificate = x509.load_pem_x509_certificate(issued.certificate.encode())
    trusted = x509.load_pem_x509_certificate(Path(authority.file).read_bytes())
    data = pkcs12.serialize_key_and_certificates(
        b"broker",
        key,
        certificate,
        [trusted],
        BestAvailableEncryption(b"changeit"),
    )
    location = authority.directory / "broker.jks"
    location.write_bytes(data)
    location.chmod(0o600)
    config = configs(ssl_keystore_location=str(location), ssl_keystore_password="changeit")
    assert subjects(use(config).chain) == ["CN=broker,O=acme", "CN=test authority"]
    config = configs(ssl_truststore_location=str(location), ssl_truststore_password="changeit")
    assert "CN=test authority" in subjects(load_trusted_certificates(config))
    assert "password" in refusal(configs(ssl_keystore_location=str(location)))
    wrong = refusal(configs(ssl_keystore_location=str(location), ssl_keystore_password="wrong"))
    assert wrong.endswith("the password is wrong, or it is damaged")


@pytest.mark.jvm
def test_stores_of_keytool(authority: Authority, tmp_path: Path) -> None:
    """keytool writes a key store in Java's old format, with its own password for the key, and a trust store."""
    keytool = shutil.which("keytool")
    if keytool is None:
        pytest.skip("needs keytool")
    keys, trust = str(tmp_path / "keys"), str(tmp_path / "trust")
    common = ["-storetype", "JKS", "-storepass", "storepass"]
    subprocess.run(
        [
            *[keytool, "-genkeypair", "-alias", "b", "-keyalg", "RSA", "-keysize", "2048", "-dname", "CN=java,O=acme"],
            *["-keystore", keys, "-keypass", "keypass", *common],
        ],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        [keytool, "-importcert", "-noprompt", "-alias", "ca", "-file", authority.file, "-keystore", trust, *common],
        check=True,
        capture_output=True,
    )
    os.chmod(keys, 0o600)
    stores = {"ssl_keystore_location": keys, "ssl_keystore_password": "storepass"}
    assert subjects(use(configs(**stores, ssl_key_password="keypass")).chain) == ["CN=java,O=acme"]
    assert "the password is wrong" in refusal(configs(**stores))
    assert "password was incorrect" in refusal(configs(ssl_keystore_location=keys, ssl_keystore_password="x"))
    for password in ({}, {"ssl_truststore_password": "storepass"}):
        config = configs(ssl_truststore_location=trust, **password)
        assert subjects(load_trusted_certificates(config)) == ["CN=test authority"]


def test_a_key_that_every_user_of_the_machine_can_read_is_refused(authority: Authority) -> None:
    location = authority.pem("broker")
    os.chmod(location, 0o644)
    expected = f"Every user of this machine can read the private key {location}. Run: chmod 600 {location}"
    assert refusal(configs(ssl_keystore_location=location)) == expected
    os.chmod(location, 0o640)
    use(configs(ssl_keystore_location=location))


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"ssl_keystore_location": "/nowhere"}, "Could not read ssl.keystore.location=/nowhere: No such file"),
        ({"ssl_keystore_key": "k"}, "SSL private key is specified, but certificate chain is not specified."),
        ({"ssl_keystore_certificate_chain": "c"}, "SSL certificate chain is specified, but private key is not"),
        ({"ssl_keystore_key": "k", "ssl_keystore_location": "/k"}, "Both SSL key store location and separate"),
        (
            {"ssl_keystore_key": "k", "ssl_keystore_certificate_chain": "c"},
            "SSL private key can be specified only for PEM, but key store type is JKS.",
        ),
        (
            {"ssl_keystore_key": "k", "ssl_keystore_certificate_chain": "c", "ssl_keystore_type": "PEM"},
            "ssl.keystore.key has no private key in PEM format",
        ),
    ],
)
def test_configs_that_do_not_fit_together(texts: dict[str, str], problem: str) -> None:
    assert refusal(configs(**texts)).startswith(problem)


def test_other_files_are_refused_with_advice(authority: Authority) -> None:
    for content, problem in (
        (b"\xce\xce\xce\xce\x00", "Convert it: keytool -importkeystore"),
        (b"hello", "is neither PEM nor PKCS12 nor JKS"),
        (b"\xfe\xed\xfe\xed\x00\x00", "password was incorrect"),
    ):
        path = authority.directory / "store"
        path.write_bytes(content)
        path.chmod(0o600)
        assert problem in refusal(configs(ssl_keystore_location=str(path), ssl_keystore_password="x"))


def test_a_password_for_a_pem_store_is_refused(authority: Authority) -> None:
    texts = {"ssl_keystore_location": authority.pem("broker"), "ssl_keystore_password": "x"}
    assert refusal(configs(**texts)).endswith("only key password may be specified.")


def test_a_key_and_a_certificate_that_do_not_belong_together(authority: Authority) -> None:
    location = authority.write("mixed", authority.issue("a").key + authority.issue("b").certificate)
    assert refusal(configs(ssl_keystore_location=location)).startswith("The private key does not belong to")


def test_no_file_with_a_key_is_left_behind(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(empty))
    monkeypatch.delattr(os, "memfd_create")
    use(configs(ssl_keystore_location=authority.pem("broker")))
    assert list(empty.iterdir()) == []


def test_unencrypted_keys_of_other_styles_are_read(authority: Authority) -> None:
    issued = authority.issue("broker")
    key = serialization.load_pem_private_key(issued.key.encode(), None)
    old = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, NoEncryption()
    ).decode()
    assert "BEGIN EC PRIVATE KEY" in old
    use(configs(ssl_keystore_location=authority.write("old", old + issued.certificate)))
