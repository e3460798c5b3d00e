"""Brokers with ACLs for tests, and what confluent-kafka makes of them: the errors of Apache Kafka."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from kbroker.errors import UserError
from kbroker.testing import Broker, run_broker

confluent: Any = import_module("confluent_kafka.admin")  # its stubs export too little

PATIENCE_SECONDS = 30.0
ME = "User:ANONYMOUS"


def produce(bootstrap: str = "", topic: str = "", **settings: Any) -> KafkaError | None:
    """Returns the error that librdkafka reports for one record."""
    outcomes: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "message.timeout.ms": 20_000, **settings})
    producer.produce(topic, b"v", on_delivery=lambda error, _message: outcomes.append(error))
    producer.flush(PATIENCE_SECONDS)
    return outcomes[0]


def consume(bootstrap: str, topic: str, group: str) -> bytes | int | None:
    """Returns the first record's value, or the code of the first error."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        error = message.error()
        value: bytes | None = message.value()
        return value if error is None else error.code()
    finally:
        consumer.close()


def code_of(error: KafkaError | None) -> int:
    return 0 if error is None else error.code()


def test_a_broker_has_acls_in_one_argument() -> None:
    acls = [f"allow {ME} READ,WRITE topic orders", f"allow {ME} READ group billing-*"]
    with Broker(topics=["orders", "salaries"], acls=acls) as broker:
        assert produce(broker.bootstrap, "orders") is None
        assert code_of(produce(broker.bootstrap, "salaries")) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert consume(broker.bootstrap, "orders", "billing-1") == b"v"
        assert consume(broker.bootstrap, "orders", "other") == KafkaError.GROUP_AUTHORIZATION_FAILED
        assert consume(broker.bootstrap, "salaries", "billing-1") == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_rights_are_revoked_while_a_client_is_connected() -> None:
    right = f"allow {ME} WRITE topic orders"
    with Broker(topics=["orders"], acls=[right]) as broker:
        outcomes: list[int] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

        def send() -> int:
            producer.produce("orders", b"v", on_delivery=lambda error, _message: outcomes.append(code_of(error)))
            producer.flush(PATIENCE_SECONDS)
            return outcomes[-1]

        assert [send() for _ in range(5)] == [0] * 5
        broker.remove_acls([right])
        assert send() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        broker.add_acls([right])
        assert produce(broker.bootstrap, "orders") is None


def test_transactional_and_idempotent_producers_need_their_rights() -> None:
    with Broker(topics=["orders"], acls=[f"allow {ME} WRITE topic orders"]) as broker:
        assert produce(broker.bootstrap, "orders", **{"enable.idempotence": True}) is None
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx"})
        with pytest.raises(KafkaException) as refused:
            producer.init_transactions(PATIENCE_SECONDS)
        assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        broker.add_acls([f"allow {ME} WRITE transactional_id tx"])
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx"})
        producer.init_transactions(PATIENCE_SECONDS)
        producer.begin_transaction()
        producer.produce("orders", b"in a transaction")
        producer.commit_transaction(PATIENCE_SECONDS)


def binding(kind: str, name: str, *, pattern: str = "LITERAL", operation: str = "READ") -> Any:
    return confluent.AclBinding(
        confluent.ResourceType[kind],
        name,
        confluent.ResourcePatternType[pattern],
        "User:alice",
        "*",
        confluent.AclOperation[operation],
        confluent.AclPermissionType.ALLOW,
    )


def everything(name: str | None = None, pattern: str = "ANY") -> Any:
    return confluent.AclBindingFilter(
        confluent.ResourceType.ANY,
        name,
        confluent.ResourcePatternType[pattern],
        None,
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )


def test_the_admin_client_of_confluent_creates_describes_and_deletes_acls() -> None:
    with Broker(acls=[], super_users=ME) as broker:
        admin = confluent.AdminClient({"bootstrap.servers": broker.bootstrap})
        wanted = [binding("TOPIC", "orders"), binding("TOPIC", "ord", pattern="PREFIXED"), binding("GROUP", "g")]
        for future in admin.create_acls(wanted).values():
            future.result(PATIENCE_SECONDS)
        assert set(admin.describe_acls(everything()).result(PATIENCE_SECONDS)) == set(wanted)
        covering = admin.describe_acls(everything("orders", "MATCH")).result(PATIENCE_SECONDS)
        assert set(covering) == set(wanted[:2])
        (deleted,) = admin.delete_acls([everything("orders", "MATCH")]).values()
        assert set(deleted.result(PATIENCE_SECONDS)) == set(wanted[:2])
        assert set(admin.describe_acls(everything()).result(PATIENCE_SECONDS)) == {wanted[2]}


def test_the_admin_client_gets_the_errors_of_apache_kafka() -> None:
    with Broker(topics=["orders"], acls=[]) as broker:
        admin = confluent.AdminClient({"bootstrap.servers": broker.bootstrap})
        failures = {
            "create acls": next(iter(admin.create_acls([binding("TOPIC", "orders")]).values())),
            "create topics": admin.create_topics([confluent.NewTopic("new", 1, 1)])["new"],
            "delete topics": admin.delete_topics(["orders"])["orders"],
        }
        codes = {}
        for what, future in failures.items():
            with pytest.raises(KafkaException) as refused:
                future.result(PATIENCE_SECONDS)
            codes[what] = refused.value.args[0].code()
        assert codes == {
            "create acls": KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            "create topics": KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "delete topics": KafkaError.TOPIC_AUTHORIZATION_FAILED,
        }
        assert broker.topics == ["orders"]


async def test_a_broker_in_trio_has_acls_too() -> None:
    async with run_broker(topics=["orders"], acls=[f"allow {ME} READ topic orders"]) as bootstrap:
        await bootstrap.broker.remove_acls([f"allow {ME} READ topic orders"])
        await bootstrap.broker.add_acls([f"deny {ME} ALL topic *"])


def test_a_broker_without_authorizer_has_no_acls() -> None:
    with Broker() as broker, pytest.raises(UserError, match="no authorizer"):
        broker.add_acls([f"allow {ME} READ topic orders"])


def test_an_invalid_line_ends_the_start() -> None:
    with pytest.raises(UserError, match="Unknown operation 'EAT'"):
        Broker(acls=[f"allow {ME} EAT topic orders"]).start()


@pytest.mark.kbroker_topics("orders")
@pytest.mark.kbroker_settings(acls=[f"allow {ME} WRITE topic orders"])
def test_the_fixture_has_acls(kbroker: Broker) -> None:
    kbroker.produce("orders", ["v"])
    assert consume(kbroker.bootstrap, "orders", "g") == KafkaError.GROUP_AUTHORIZATION_FAILED


def test_users_have_their_own_rights() -> None:
    acls = ["allow User:ada READ,WRITE topic orders", "allow User:ada READ group g", "allow User:bob READ topic orders"]
    with Broker(topics=["orders"], users={"ada": "a-secret", "bob": "b-secret"}, acls=acls) as broker:
        ada, bob = (broker.client_settings(name, "SCRAM-SHA-512") for name in ("ada", "bob"))
        assert produce(topic="orders", **ada) is None
        assert code_of(produce(topic="orders", **bob)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        broker.produce("orders", ["of the test itself"])
        assert [record.text for record in broker.records("orders", 2)] == ["v", "of the test itself"]
        broker.remove_acls(["allow User:ada WRITE topic orders"])
        assert code_of(produce(topic="orders", **ada)) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_certificate_has_its_own_rights() -> None:
    acls = ["allow User:CN=client WRITE topic orders"]
    with Broker(topics=["orders"], tls="required", acls=acls) as broker:
        settings = {"bootstrap.servers": broker.bootstrap, **broker.tls.librdkafka}
        assert produce(topic="orders", **settings) is None
        broker.remove_acls(acls)
        assert code_of(produce(topic="orders", **settings)) == KafkaError.TOPIC_AUTHORIZATION_FAILED
