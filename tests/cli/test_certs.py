"""`kbroker certs new`, and commands that connect with its certificates."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from kbroker.testing.running_broker import RunningBroker, running_broker
from kbroker.testing.tls_files import TlsFiles, make_tls_files, tls_properties
from tests.cli.conftest import Call


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return make_tls_files(str(tmp_path / "certs"))


@pytest.fixture
async def broker(files: TlsFiles, tmp_path: Path) -> AsyncIterator[RunningBroker]:
    properties = {"listeners": "SSL://127.0.0.1:0", **tls_properties(files, "required", ["SSL"])}
    async with running_broker(tmp_path / "data", properties) as broker:
        yield broker


def client_properties(files: TlsFiles) -> str:
    return (
        "# other settings of a client are left alone\nclient.id=me\nsecurity.protocol=SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={files.ca}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={files.client}\n"
    )


async def test_certificates_are_made_in_a_directory(call: Call, tmp_path: Path) -> None:
    directory = tmp_path / "new"
    made = await call("certs", "new", "--dir", str(directory), "--host", "a.example.com", "--client", "alice")
    assert made.code == 0, made.err
    assert {path.name for path in directory.iterdir()} == {"ca.pem", "ca.key", "broker.pem", "alice.pem"}
    for name in ("ca.key", "broker.pem", "alice.pem"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert "User:CN=alice" in made.out
    assert "keep it away from other people and from production" in made.err
    again = await call("certs", "new", "--dir", str(directory), "--client", "carol", "--broker", "broker")
    assert again.code == 1
    assert again.err == f"kbroker: {directory}/broker.pem exists already. Choose another name, or another directory.\n"
    assert not (directory / "carol.pem").exists()
    before = (directory / "ca.pem").read_text()
    more = await call("certs", "new", "--dir", str(directory), "--broker", "second", "--client", "bob")
    assert more.code == 0, more.err
    assert (directory / "ca.pem").read_text() == before


async def test_certificates_of_several_brokers_are_valid_for_the_same_hosts(call: Call, tmp_path: Path) -> None:
    directory = tmp_path / "new"
    hosts = ("--host", "kafka.example.com", "--host", "127.0.0.1")
    made = await call("certs", "new", "--dir", str(directory), "--broker", "one", "--broker", "two", *hosts)
    assert made.code == 0, made.err
    assert {path.name for path in directory.iterdir()} == {"ca.pem", "ca.key", "one.pem", "two.pem", "client.pem"}
    for name in ("one", "two"):
        assert f"Broker {name} (kafka.example.com, 127.0.0.1): {directory}/{name}.pem" in made.out
        assert f"  ssl.keystore.location={directory}/{name}.pem" in made.out
        certificate = x509.load_pem_x509_certificate((directory / f"{name}.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["kafka.example.com"]


async def test_an_authority_adds_only_the_certificates_that_are_named(call: Call, tmp_path: Path) -> None:
    directory = tmp_path / "new"
    for number in (1, 2):  # as docs/security.md makes the certificates of a cluster
        made = await call("certs", "new", "--dir", str(directory), "--broker", f"broker{number}", "--host", "a.example")
        assert made.code == 0, made.err
    added = await call("certs", "new", "--dir", str(directory), "--client", "bob")
    assert (added.code, "ssl.keystore" in added.out) == (0, False), added.err
    assert {path.stem for path in directory.iterdir()} == {"ca", "broker1", "broker2", "client", "bob"}
    nothing = await call("certs", "new", "--dir", str(directory))
    assert nothing.code == 1
    assert nothing.err == (
        f"kbroker: {directory} has a CA already. Add a certificate with --broker NAME or --client NAME.\n"
    )
    twice = await call("certs", "new", "--dir", str(directory), "--broker", "new", "--client", "new")
    assert (twice.code, "new.pem exists already" in twice.err) == (1, True)
    assert not (directory / "new.pem").exists()


async def test_a_properties_file_of_a_kafka_client_secures_the_connection(
    call: Call, files: TlsFiles, tmp_path: Path, broker: RunningBroker
) -> None:
    await broker.create_topic("orders", 1)
    config = tmp_path / "client.properties"
    config.write_text(client_properties(files))
    listed = await call("topics", "list", "--command-config", str(config))
    assert (listed.code, "orders" in listed.out) == (0, True), listed.err
    refused = await call("topics", "list")
    assert refused.code == 1
    assert "uses TLS, and this connection does not: set security.protocol" in refused.err


async def test_a_profile_secures_the_connection(
    call: Call, files: TlsFiles, config_home: Path, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KBROKER_BOOTSTRAP")
    await broker.create_topic("orders", 1)
    path = config_home / "kbroker" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"""
        [profiles.test]
        bootstrap = "{broker.bootstrap}"
        security.protocol = "SSL"
        ssl.truststore.location = "{files.ca}"
        ssl.keystore.location = "{files.client}"

        [profiles.anonymous]
        bootstrap = "{broker.bootstrap}"
        security.protocol = "SSL"
        ssl.truststore.location = "{files.ca}"

        [profiles.typo]
        bootstrap = "{broker.bootstrap}"
        security.protocol = "SSL"
        ssl.trustore.location = "{files.ca}"

        [profiles.forgotten]
        bootstrap = "{broker.bootstrap}"
        ssl.truststore.location = "{files.ca}"
        """
    )
    listed = await call("topics", "list", "--profile", "test")
    assert (listed.code, "orders" in listed.out) == (0, True), listed.err
    for profile, problem in (
        ("anonymous", "failed: the peer refused it with the alert certificate required"),
        ("typo", "profile typo: ssl.trustore.location is set, but kbroker does not support it"),
        ("forgotten", "ssl.truststore.location is set, but security.protocol is not SSL or SASL_SSL"),
    ):
        refused = await call("topics", "list", "--profile", profile)
        assert (refused.code, problem in refused.err) == (1, True), refused.err
