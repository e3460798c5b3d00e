"""Pipelines and brokers with TLS and SASL: kbroker's own client takes the options of Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import UserError
from kbroker.pipeline.brokers import check_topic, latest_offsets
from kbroker.pipeline.client_options import can_connect, security_options
from kbroker.testing import Broker
from tests.pipeline.committed_records import read_committed

pytest.importorskip("pyarrow", reason="needs pyarrow")
pytest.importorskip("numpy", reason="needs numpy")

PARTITIONS = 3
USER = "ada"
PASSWORD = "a-secret"


@pytest.fixture
def secured() -> Iterator[Broker]:
    with Broker(topics={"in": 1, "out": PARTITIONS}, users={USER: PASSWORD}, tls=True) as running:
        yield running


def options_of(broker: Broker, password: str = PASSWORD) -> dict[str, str]:
    login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{USER}" password="{password}";'
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(broker.tls.ca),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": login,
    }


def values(broker: Broker) -> list[str]:
    security = broker.client_settings(USER, "SCRAM-SHA-512")
    messages = read_committed(broker.bootstrap, "out", partitions=PARTITIONS, security=security)
    return sorted(message.value().decode() for message in messages)


def test_the_sink_writes_to_a_secured_broker(secured: Broker, tmp_path: Path) -> None:
    from kbroker.pipeline.two_phase.commit import BatchCommitter
    from tests.pipeline.crashing_driver import ROWS, rows_of, run_locally

    committer = BatchCommitter(secured.bootstrap, "sink", tmp_path, {"topic": "out", **options_of(secured)})
    for batch_id in (0, 1):
        assert committer.write(batch_id, run_locally(batch_id, 2)) == ROWS
    committer.close()
    assert values(secured) == sorted(row for batch_id in (0, 1) for row in rows_of(batch_id))
    assert PASSWORD not in repr(committer.settings)


def test_the_checks_before_a_start_log_in_too(secured: Broker) -> None:
    options = options_of(secured)
    topic = check_topic(secured.bootstrap, "out", options)
    assert topic is not None
    assert len(topic.partitions) == PARTITIONS
    assert latest_offsets(secured.bootstrap, ["in"], options) == {"in": {0: 0}}
    with pytest.raises(UserError, match=r"(?i)login|authentication"):
        check_topic(secured.bootstrap, "out", options_of(secured, "wrong"))


def test_kerberos_is_left_to_sparks_own_client() -> None:
    options = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "GSSAPI", "minPartitions": "2"}
    assert not can_connect(options)
    assert check_topic("127.0.0.1:1", "any", options) is None
    assert security_options(options).keys() == {"kafka.security.protocol", "kafka.sasl.mechanism"}


def test_a_transform_reads_and_writes_a_secured_broker(spark: Any, secured: Broker, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    from kbroker.pipeline import transform

    producer = Producer({"bootstrap.servers": secured.bootstrap, **secured.client_settings(USER, "SCRAM-SHA-512")})
    for number in range(50):
        producer.produce("in", f"{number:02d}")
    assert producer.flush(60) == 0
    options = options_of(secured)
    query = transform(
        spark,
        bootstrap=secured.bootstrap,
        topics=["in"],
        to="out",
        sql="SELECT key, value FROM records",
        checkpoint=str(tmp_path / "state"),
        trigger="available-now",
        name="secured",
        options=options,
        sink_options=options,
    )
    query.awaitTermination()
    assert values(secured) == [f"{number:02d}" for number in range(50)]
