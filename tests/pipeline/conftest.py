"""One Spark session for all tests of a process, with the jars of `.cache/jars`, and a broker for each test."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from compat_tests.scenarios.spark_kafka import SHORT_LIVED_JVM
from kbroker.testing import Broker
from tests.cluster.conftest import three, zookeeper

__all__ = ["three", "zookeeper"]

# Versions that Spark itself brings: older ones in spark.jars would be loaded beside them.
NOT_FOR_SPARK = ("hadoop-client", "scala-library", "scala-parallel", "slf4j-api", "snappy-java", "lz4-java", "jsr305")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assigns all tests with Spark to one worker, so that they share a session."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            # py4j leaves its sockets to the garbage collector, which Python reports as a warning.
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(autouse=True)
def collected_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collects the sockets of py4j in the test that has used them, and not in a later one."""
    yield
    if "spark" in request.fixturenames:
        gc.collect()


@pytest.fixture(scope="session")
def spark_jars(spark_connector_jars: list[Path], table_jars: list[Path]) -> list[str]:
    """Jars for `spark.jars`: the connector, Delta, Iceberg and Avro, without what pyspark brings."""
    pytest.importorskip("pyspark", reason="needs pyspark")
    return [str(jar) for jar in [*spark_connector_jars, *table_jars] if not jar.name.startswith(NOT_FOR_SPARK)]


@pytest.fixture(scope="session")
def spark_conf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Confs of a small Spark on loopback that leaves nothing behind."""
    directory = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.driver.extraJavaOptions": f"{SHORT_LIVED_JVM} -Dderby.system.home={directory}",
    }


@pytest.fixture(scope="session")
def spark(spark_jars: list[str], spark_conf: Mapping[str, str]) -> Iterator[Any]:
    """A session `local[2]` that all tests of this process share: give queries and views names of their own."""
    from pyspark.sql import SparkSession

    from kbroker.pipeline.session import open_session

    other = SparkSession.getActiveSession()
    if other is not None:
        other.stop()  # of the scenarios in compat_tests, which this worker has run before: it lacks Delta and Iceberg
    session = open_session(
        "kbroker tests", master="local[2]", jars=spark_jars, formats=("delta", "iceberg"), conf=spark_conf
    )
    yield session
    session.stop()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def produce(broker: Broker) -> Callable[..., None]:
    """Writes records to a topic: `produce("orders", [("key", "value"), ...], partition=0)`."""
    from confluent_kafka import Producer

    def write(topic: str, records: Any, **options: Any) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        for key, value in records:
            producer.produce(topic, key=key, value=value, **options)
            producer.poll(0)
        assert producer.flush(60) == 0

    return write
