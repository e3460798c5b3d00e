"""Brokers of the scenarios: kbroker and Apache Kafka in turn, or the broker named by `--bootstrap HOST:PORT`."""

from __future__ import annotations

import gc
import re
import shutil
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from compat_tests.apache_kafka import JavaTools, run_apache_kafka
from compat_tests.process import run_kbroker
from compat_tests.secured_clients import secure_clients

BROKERS = ["kbroker", "apache-kafka"]
# Modules whose clients are Java programs take about as long as all others together.
ON_JVM = ("test_spark", "test_streams")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bootstrap", metavar="HOST:PORT", help="run the scenarios against this broker alone")
    parser.addoption("--client-config", metavar="FILE", help="properties with which all clients of scenarios log in")
    parser.addoption("--spark-kills", type=int, help="how often a Spark driver is killed and resumed")


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--client-config")) is not None:
        secure_clients(path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker_name" in metafunc.fixturenames:
        given = metafunc.config.getoption("--bootstrap")
        metafunc.parametrize("broker_name", [given] if given else BROKERS, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assigns the scenarios to two workers, so that brokers start seldom; marks those that need Apache Kafka."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            is_on_jvm = item.path.name.startswith(ON_JVM)
            item.add_marker(pytest.mark.xdist_group("compat-jvm" if is_on_jvm else "compat"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            if item.callspec.params.get("broker_name") == "apache-kafka":
                item.add_marker(pytest.mark.jvm)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs scenarios with Apache Kafka up to three times: its metadata may change a moment after the response.

    Scenarios with kbroker alone run once: kbroker responds when the change is visible.
    """
    if "apache_kafka" not in getattr(item, "fixturenames", ()) and "[apache-kafka" not in item.nodeid:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for _ in range(2):
        if not any(report.failed for report in reports):
            break
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(autouse=True)
def collect_leaked_sockets() -> Iterator[None]:
    """Collects the sockets that kafka-python leaves open, so that no later test fails because of their warnings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def bootstrap(broker_name: str, request: pytest.FixtureRequest) -> str:
    """Returns HOST:PORT of the broker under test."""
    if broker_name == "kbroker":
        return str(request.getfixturevalue("kbroker_address"))
    if broker_name == "apache-kafka":
        return str(request.getfixturevalue("apache_kafka"))
    return broker_name


@pytest.fixture(scope="session")
def kbroker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("kbroker")
    with run_kbroker(directory, "--data-dir", str(directory / "data")) as (address, _):
        yield address


@pytest.fixture(scope="session")
def apache_kafka(java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_apache_kafka(java_tools, tmp_path_factory.mktemp("apache-kafka")) as address:
        yield address


@pytest.fixture(scope="session")
def java_tools(java: str, judge_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    """Returns Kafka's tools, which work with any broker."""
    return JavaTools(java, judge_classpath, tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="session")
def kcat() -> str:
    """Returns the path of `kcat`; skips the test if it is not installed."""
    command = shutil.which("kcat") or shutil.which("kafkacat")
    if command is None:
        pytest.skip("needs kcat: it is not on the PATH")
    return command


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Returns a new topic name; the broker creates the topic on first use."""
    test = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.originalname)[:60]
    return f"{test}-{uuid.uuid4().hex[:8]}"
