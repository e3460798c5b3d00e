"""Which broker a scenario meets: kbroker and Apache Kafka in turn, or the one that `--bootstrap HOST:PORT` names."""

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

from compat_tests.judge import JavaTools, run_judge
from compat_tests.process import run_kbroker

BROKERS = ["kbroker", "apache-kafka"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bootstrap", metavar="HOST:PORT", help="run the scenarios against this broker alone")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker_name" in metafunc.fixturenames:
        given = metafunc.config.getoption("--bootstrap")
        metafunc.parametrize("broker_name", [given] if given else BROKERS, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs all scenarios, so that each broker is started once; what meets the judge starts a JVM."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("compat"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            if item.callspec.params.get("broker_name") == "apache-kafka":
                item.add_marker(pytest.mark.jvm)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """What meets Apache Kafka gets three tries: its metadata follows a moment after it has answered.

    What runs against kbroker alone gets one: there, an answer means that it is so.
    """
    if "judge" not in getattr(item, "fixturenames", ()) and "[apache-kafka" not in item.nodeid:
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
def collect_what_clients_leak() -> Iterator[None]:
    """kafka-python leaves sockets open; they are collected here, not in some later test that would take the blame."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def bootstrap(broker_name: str, request: pytest.FixtureRequest) -> str:
    """HOST:PORT of the broker under test."""
    if broker_name == "kbroker":
        return str(request.getfixturevalue("kbroker_address"))
    if broker_name == "apache-kafka":
        return str(request.getfixturevalue("judge"))
    return broker_name


@pytest.fixture(scope="session")
def kbroker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("kbroker")
    with run_kbroker(directory, "--data-dir", str(directory / "data")) as (address, _):
        yield address


@pytest.fixture(scope="session")
def judge(java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_judge(java_tools, tmp_path_factory.mktemp("judge")) as address:
        yield address


@pytest.fixture(scope="session")
def java_tools(java: str, judge_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    """Kafka's own tools; they work against any broker."""
    return JavaTools(java, judge_classpath, tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="session")
def kcat() -> str:
    """The `kcat` command."""
    command = shutil.which("kcat") or shutil.which("kafkacat")
    if command is None:
        pytest.skip("needs kcat: it is not on the PATH")
    return command


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that nobody used before; the broker creates it on first use."""
    test = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.originalname)[:60]
    return f"{test}-{uuid.uuid4().hex[:8]}"
