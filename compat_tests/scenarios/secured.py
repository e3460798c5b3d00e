"""A broker with every kind of secured listener, and logins at it with every mechanism, right and wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import admin as confluent_admin

from compat_tests.apache_kafka import JavaTools, run_apache_kafka
from compat_tests.process import free_ports, running, wait_until
from compat_tests.scenarios.test_sasl import (
    DEADLINE_S,
    GENERAL,
    MECHANISMS,
    OAUTHBEARER,
    PACKAGE,
    PASSWORD,
    PLAIN,
    add_scram_user,
    unsigned_token,
)
from tests.security.certificates import Authority

__all__ = [
    "FORBIDDEN",
    "HANDSHAKES",
    "OF_JAVA",
    "REFUSED",
    "TOPIC",
    "Login",
    "SecuredBroker",
    "check",
    "java_properties",
    "logins",
    "run_secured",
    "try_all",
]

confluent: Any = confluent_admin

NAMES = ("SASL_SSL", "EXPIRED", "SASL_PLAINTEXT", "SSL")
LISTENERS = "PLAINTEXT://127.0.0.1:{port}," + ",".join(
    f"{name}://127.0.0.1:{{ports[{number}]}}" for number, name in enumerate(NAMES)
)
PROTOCOLS = "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,EXPIRED:SASL_SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL"
MODULES = {
    "plain": r'plain.PlainLoginModule required user_alice="s3cret \\"quoted\\" \\\\ ;"',
    "scram-sha-256": "scram.ScramLoginModule required",
    "scram-sha-512": "scram.ScramLoginModule required",
    "oauthbearer": 'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker"',
}
LOGINS = "".join(
    f"listener.name.{name}.{mechanism}.sasl.jaas.config={PACKAGE}.{module};\n"
    for name in ("sasl_ssl", "expired", "sasl_plaintext")
    for mechanism, module in MODULES.items()
)
SETTINGS = f"""
listeners={LISTENERS}{{controller}}
advertised.listeners={LISTENERS}
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms={",".join(MECHANISMS)}
{LOGINS}
listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class={{handler}}
listener.name.expired.oauthbearer.sasl.server.callback.handler.class={{handler}}
listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class={{handler}}
ssl.keystore.type=PEM
ssl.keystore.location={{keys}}
ssl.truststore.type=PEM
ssl.truststore.location={{authority}}
listener.name.ssl.ssl.client.auth=required
listener.name.ssl.ssl.principal.mapping.rules=RULE:^CN=([^,]+),O=acme$/$1/
listener.name.expired.ssl.keystore.type=PEM
listener.name.expired.ssl.keystore.location={{expired_keys}}
super.users=User:ANONYMOUS
"""
HANDLER = f"{PACKAGE}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
KBROKER = "authorizer.class.name=kafka.security.authorizer.AclAuthorizer\n"
APACHE_KAFKA = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
TOPIC, FORBIDDEN = "records", "forbidden"


class SecuredBroker(NamedTuple):
    """Addresses of the listeners by name. EXPIRED: SASL_SSL whose certificate has expired."""

    addresses: dict[str, str]
    authority: Authority
    other: Authority


@contextmanager
def run_secured(directory: Path, tools: JavaTools | None) -> Iterator[SecuredBroker]:
    """Runs Apache Kafka, or kbroker without `tools`. Alice may use all topics and groups but those named FORBIDDEN."""
    authority, other = Authority(directory / "authority"), Authority(directory / "other", "another authority")
    port, controller_port, *ports = free_ports(2 + len(NAMES))
    members = {
        "port": port,
        "ports": ports,
        "handler": HANDLER,
        "authority": authority.file,
        "keys": authority.pem("broker"),
        "expired_keys": authority.pem("expired", days=1, age_days=3),
    }
    addresses = {name: f"127.0.0.1:{found}" for name, found in zip(NAMES, ports, strict=True)}
    if tools is None:
        file = directory / "server.properties"
        text = SETTINGS.format(controller="", **members)
        file.write_text(f"log.dirs={directory}/data\n{KBROKER}listener.security.protocol.map={PROTOCOLS}\n{text}")
        log = directory / "kbroker.log"
        with running([sys.executable, "-m", "kbroker", "serve", "--config", str(file)], log) as process:
            wait_until(lambda: "kbroker is ready on" in log.read_text(), process, log, name="kbroker")
            prepare(f"127.0.0.1:{port}")
            yield SecuredBroker(addresses, authority, other)
    else:
        text = SETTINGS.format(controller=f",CONTROLLER://127.0.0.1:{controller_port}", **members)
        text += f"controller.quorum.voters=1@127.0.0.1:{controller_port}\n{APACHE_KAFKA}"
        text += f"listener.security.protocol.map={PROTOCOLS},CONTROLLER:PLAINTEXT\n"
        with run_apache_kafka(tools, directory, text, port=port):
            prepare(f"127.0.0.1:{port}")
            yield SecuredBroker(addresses, authority, other)


def prepare(bootstrap: str) -> None:
    """Adds the user alice, the topics, and the ACLs of alice."""
    add_scram_user(bootstrap)
    admin = confluent.AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([confluent.NewTopic(name, 1, 1) for name in (TOPIC, FORBIDDEN)]).values():
        future.result(DEADLINE_S)
    topic, group, cluster = (getattr(confluent.ResourceType, name) for name in ("TOPIC", "GROUP", "BROKER"))
    allow, deny = confluent.AclPermissionType.ALLOW, confluent.AclPermissionType.DENY
    every, idempotent_write = confluent.AclOperation.ALL, confluent.AclOperation.IDEMPOTENT_WRITE
    bindings = [
        confluent.AclBinding(
            kind, name, confluent.ResourcePatternType.LITERAL, "User:alice", "*", operation, permission
        )
        for kind, name, operation, permission in (
            (topic, "*", every, allow),
            (group, "*", every, allow),
            (cluster, "kafka-cluster", idempotent_write, allow),
            (topic, FORBIDDEN, every, deny),
            (group, FORBIDDEN, every, deny),
        )
    ]
    for future in admin.create_acls(bindings).values():
        future.result(DEADLINE_S)


class Login(NamedTuple):
    """How a client connects, and the topic that it writes and reads. User and certificate are those of alice."""

    address: str
    protocol: str
    authority: str
    mechanism: str = ""
    password: str = PASSWORD
    certificate: str | None = None
    topic: str = TOPIC

    @property
    def token(self) -> str:
        """The token for OAUTHBEARER; expired with a wrong password."""
        return unsigned_token(lifetime_s=3600 if self.password == PASSWORD else -3600)

    @property
    def is_encrypted(self) -> bool:
        return self.protocol.endswith("SSL")


def logins(broker: SecuredBroker) -> dict[str, Login]:
    """Returns what each client tries, by name. Names of attempts that succeed have the protocol and the mechanism."""
    mine, addresses = broker.authority.file, broker.addresses
    attempts = {
        f"{protocol} {mechanism}": Login(addresses[protocol], protocol, mine, mechanism)
        for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
        for mechanism in MECHANISMS
    }
    ssl = Login(addresses["SSL"], "SSL", mine)
    attempts["SSL certificate"] = ssl._replace(certificate=broker.authority.pem("alice", hosts=()))
    for mechanism in MECHANISMS:
        attempts[f"wrong password {mechanism}"] = attempts[f"SASL_SSL {mechanism}"]._replace(password="wrong")
    encrypted = attempts[f"SASL_SSL {PLAIN}"]
    attempts["another authority"] = encrypted._replace(authority=broker.other.file)
    attempts["expired broker"] = encrypted._replace(address=addresses["EXPIRED"])
    attempts["no certificate"] = ssl
    attempts["expired certificate"] = ssl._replace(
        certificate=broker.authority.pem("old-alice", hosts=(), age_days=20, days=10)
    )
    attempts["unknown certificate"] = ssl._replace(certificate=broker.other.pem("alice", hosts=()))
    attempts["no right"] = encrypted._replace(topic=FORBIDDEN)
    return attempts


def java_properties(login: Login) -> dict[str, str]:
    """Returns the properties of a Java client, which Spark takes too."""
    properties = {
        "bootstrap.servers": login.address,
        "security.protocol": login.protocol,
        "default.api.timeout.ms": "60000",
    }
    if login.is_encrypted:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": login.authority}
    if login.certificate is not None:
        # As text: clients before 3.0 take no file with a key that is not encrypted.
        key, begin, chain = Path(login.certificate).read_text().partition("-----BEGIN CERTIFICATE")
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": key,
            "ssl.keystore.certificate.chain": begin + chain,
        }
    if login.mechanism:
        properties |= {"sasl.mechanism": login.mechanism, "sasl.jaas.config": f"{PACKAGE}.{login_module(login)};"}
    return properties


def login_module(login: Login) -> str:
    if login.mechanism == OAUTHBEARER:
        # A client without a login handler makes unsigned tokens.
        module = 'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice"'
        return module if login.password == PASSWORD else f'{module} unsecuredLoginLifetimeSeconds="-3600"'
    password = login.password.replace("\\", "\\\\").replace('"', '\\"')
    module = "plain.PlainLoginModule" if login.mechanism == PLAIN else "scram.ScramLoginModule"
    return f'{module} required username="alice" password="{password}"'


# Outcomes

REFUSED = {
    "wrong password PLAIN": "Authentication failed: Invalid username or password",
    "wrong password SCRAM-SHA-256": f"{GENERAL} SCRAM-SHA-256",
    "wrong password SCRAM-SHA-512": f"{GENERAL} SCRAM-SHA-512",
    "wrong password OAUTHBEARER": '{"status":"invalid_token"}',
}
HANDSHAKES = ("another authority", "expired broker", "no certificate", "expired certificate", "unknown certificate")
OF_JAVA = {
    **{name: f"SaslAuthenticationException: {re.escape(text)}" for name, text in REFUSED.items()},
    "another authority": "SslAuthenticationException: SSL handshake failed(?s:.)*PKIX path building failed",
    "expired broker": "SslAuthenticationException: SSL handshake failed(?s:.)*validity check failed",
    **dict.fromkeys(HANDSHAKES[2:], "SslAuthenticationException: (?s:.)*Received fatal alert: "),
    "no right": rf"TopicAuthorizationException: Not authorized to access topics: \[{FORBIDDEN}\]",
}


def try_all(attempts: Mapping[str, Login], attempt: Callable[[Login], str]) -> dict[str, str]:
    """Runs all attempts at the same time: those that fail wait until their client gives up."""
    with ThreadPoolExecutor(len(attempts)) as threads:
        return dict(zip(attempts, threads.map(attempt, attempts.values()), strict=True))


def check(found: Mapping[str, str], errors: Mapping[str, str]) -> None:
    """Compares outcomes, "" for a success, with the patterns of the errors. Other attempts must succeed."""
    unexpected = {name: text for name, text in found.items() if not re.search(errors.get(name, r"\A\Z"), text)}
    assert unexpected == {}, unexpected
    assert errors.keys() <= found.keys()
