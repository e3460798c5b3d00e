"""What every test may ask for: the jars of Kafka and Spark, and the rule that CI lacks nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from compat_tests.scenarios.spark_kafka import SHORT_LIVED_JVM
from tools.jars import MavenMissing, fetch_jars

# The fixtures of the sources: the entry point would import kbroker from the environment, which may hold compiled code.
pytest_plugins = ["kbroker.testing.pytest_plugin", "tools.random_order"]

# Programs that tests start run the sources too. A run over the compiled code has a PYTHONPATH with both.
if os.environ.get("KBROKER_COMPILED") != "1":
    os.environ["PYTHONPATH"] = os.path.dirname(__file__)

# Versions that Spark itself brings: older ones in spark.jars would be loaded beside them.
NOT_FOR_SPARK = ("hadoop-client", "scala-library", "scala-parallel", "slf4j-api", "snappy-java", "lz4-java", "jsr305")

JVM_FIXTURES = frozenset({"java", "apache_kafka", "judge_classpath", "judge39_classpath", "clients28_classpath"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests that take minutes, and no others")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks tests that start Java, however deep in their fixtures, and selects either the long tests or the others."""
    for item in items:
        if JVM_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.jvm)
    is_long = config.getoption("--long")
    others = [item for item in items if (item.get_closest_marker("long") is not None) != is_long]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_ci_lacks_something(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_ci_lacks_something(report)
    return report


def fail_if_ci_lacks_something(report: pytest.TestReport | pytest.CollectReport) -> None:
    """A skip that says "needs …" is a lack of the machine: fine at home, a failure where CI=true."""
    if os.environ.get("CI", "").lower() not in ("1", "true"):
        return
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if reason.startswith("needs "):
        report.outcome = "failed"
        report.longrepr = f"CI must run every test, and this one {reason}"


def jars_or_skip(name: str) -> dict[str, Path]:
    try:
        return fetch_jars(name)
    except MavenMissing as problem:
        pytest.skip(f"needs Maven: {problem}")


@pytest.fixture(scope="session")
def kafka_spec_jars() -> dict[str, Path]:
    """The jars that carry Kafka's message specs, by name and version: "kafka-clients-4.1.0" -> path."""
    return jars_or_skip("specs")


@pytest.fixture(scope="session")
def kafka_clients_jar(kafka_spec_jars: dict[str, Path]) -> Path:
    return kafka_spec_jars["kafka-clients-4.1.0"]


@pytest.fixture(scope="session")
def java() -> str:
    """The `java` command."""
    command = shutil.which("java")
    if command is None:
        pytest.skip("needs a JDK: java is not on the PATH")
    return command


@pytest.fixture(scope="session")
def judge_classpath(java: str) -> str:
    """Apache Kafka 4.1 with its tools, as a Java class path."""
    return os.pathsep.join(str(jar) for jar in jars_or_skip("judge41").values())


@pytest.fixture(scope="session")
def judge39_classpath(java: str) -> str:
    """Apache Kafka 3.9 (ZooKeeper mode) with its tools, as a Java class path."""
    return os.pathsep.join(str(jar) for jar in jars_or_skip("judge39").values())


@pytest.fixture(scope="session")
def clients28_classpath(java: str) -> str:
    """The Java client of Kafka 2.8, as a Java class path."""
    return os.pathsep.join(str(jar) for jar in jars_or_skip("clients28").values())


@pytest.fixture(scope="session")
def streams_jar(java: str) -> Path:
    """Kafka Streams 4.1, to be put beside what `judge_classpath` names."""
    return jars_or_skip("streams")["kafka-streams-4.1.0"]


@pytest.fixture(scope="session")
def spark_connector_jars(java: str) -> list[Path]:
    """Spark's Kafka connector and what it depends on, for `spark.jars`."""
    return list(jars_or_skip("spark").values())


@pytest.fixture(scope="session")
def table_jars(java: str) -> list[Path]:
    """Delta Lake, Iceberg and Avro for Spark, to be put beside `spark_connector_jars`."""
    return list(jars_or_skip("tables").values())


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
def shared_spark(spark_jars: list[str], spark_conf: Mapping[str, str]) -> Iterator[Any]:
    """A session `local[2]` with tables. A process has one Spark: other sessions are made of it by `newSession`."""
    from kbroker.pipeline.session import open_session

    session = open_session(
        "kbroker tests", master="local[2]", jars=spark_jars, formats=("delta", "iceberg"), conf=spark_conf
    )
    yield session
    session.stop()
