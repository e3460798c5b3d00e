"""Runs every command of the README and the pages in order, and compares its output with the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks_of, commands_in, page_names
from tests.docs.screen import matches
from tests.docs.shell import BROKER, Shell

pytestmark = pytest.mark.slow

COMMANDS = ("console", "sh")
ELSEWHERE = {
    "docs/cli.md": "test_examples.py",
    "docs/testing.md": "tests/testing/test_docs.py",
    "docs/three-machines.md": "tests/cluster/test_three_machines.py",
    "docs/performance.md": "tests/benchmarks; they are benchmarks, and take minutes",
}
PAGES = [name for name in page_names() if name not in ELSEWHERE and any(b.kind in COMMANDS for b in blocks_of(name))]
NOT_RUN = {
    "kbroker cluster balance --throttle 20000000",
    "make install",
    "make check",
    "make test",
    "make shuffle",
    "make bench",
    "make docs",
    "make help",
    "make wheel",
    "pip install .",
    "pip install '.[spark]'",
    "pip install dist/kbroker-0.1.0-*.whl",
    "docker build -f deploy/Dockerfile -t kbroker .",
    "docker run --rm -p 127.0.0.1:9092:9092 -v kbroker-data:/var/lib/kbroker kbroker",
    "docker compose -f deploy/compose-cluster.yaml up",
    "docker run --name kbroker -p 127.0.0.1:9092:9092 -v kbroker-data:/var/lib/kbroker kbroker serve --secure",
    "docker cp kbroker:/var/lib/kbroker/secure/client.properties .",
    "docker cp kbroker:/var/lib/kbroker/secure/ca.pem .",
    "kubectl apply -f deploy/kubernetes.yaml",
    "kubectl exec kbroker-0 -- kbroker cluster describe --bootstrap kbroker-0.kbroker:9092",
    "kbroker serve &",
    "systemctl stop kafka",
    "systemctl start kbroker",
    "kbroker leaders elect --all",
    "kbroker topics create orders --partitions 3",
    """echo '{"id": 1, "customer": "ann", "amount": 2.5}' | kbroker produce orders""",
    "kbroker pipeline validate examples/pipelines/archive.toml",
    "kbroker pipeline run examples/pipelines/archive.toml",
    ".venv/bin/pytest compat_tests/scenarios/test_spark_killed.py --spark-kills 20",
    ".venv/bin/pytest compat_tests/scenarios/test_produce_consume.py",
    ".venv/bin/pytest compat_tests --bootstrap 127.0.0.1:9092",
    ".venv/bin/pytest compat_tests --bootstrap 127.0.0.1:9093 --client-config client.properties",
    "kbroker serve --listen 0.0.0.0:9092 --advertise broker.example.com:9092",
    "kbroker users add admin --data-dir kbroker-data",
    "kbroker serve --config server.properties",
    "kbroker topics list --bootstrap 127.0.0.1:9093 --command-config client.properties",
    "kbroker configs alter broker 1 --set listener.name.ssl.ssl.keystore.location=/etc/kbroker/broker.pem",
    "kbroker users add alice --profile secured",
    "kbroker users list --profile secured",
    # tests/cli/test_tokens.py
    "echo security.protocol=SASL_SSL > token.properties",
    "chmod 600 token.properties",
    "kbroker tokens create --renewer User:scheduler --profile secured >> token.properties",
    "kbroker tokens list --profile secured",
    "kbroker tokens renew Tn8xG0mZQsWcJ4mX2VbK1g --profile secured",
    "kbroker tokens expire Tn8xG0mZQsWcJ4mX2VbK1g --profile secured",
    "kbroker users add admin --zookeeper zk1.example.com:2182/kafka --zookeeper-config server.properties",
    "pip install '.[tls]'",
    # "A secured cluster of three" needs three machines; tests/cluster/test_sasl.py starts one
    "for number in 1 2 3; do kbroker certs new --broker broker$number --host kafka$number.example.com; done",
    "kbroker users add broker --zookeeper zk1.example.com:2181/kafka",
    "kbroker users add admin --zookeeper zk1.example.com:2181/kafka",
    "kbroker serve --secure",
    "export KBROKER_COMMAND_CONFIG=kbroker-data/secure/client.properties",
    "kbroker users add alice",
    "kbroker acls allow User:alice read,write --topic orders",
    "kbroker acls allow User:alice read --group 'alice-*'",
    "openssl rand -hex 32 > metrics.token",
    "chmod 600 metrics.token",
    "kbroker serve --metrics-listen 127.0.0.1:9308 --set kbroker.metrics.token.file=metrics.token",
    'curl -H "Authorization: Bearer $(cat metrics.token)" http://127.0.0.1:9308/metrics',
}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_page_do_what_it_says(page: str, shell: Shell) -> None:
    for block in blocks_of(page):
        if block.kind == "python" and block.file_name is not None:
            run_source(block, shell)
        elif block.kind in COMMANDS and block.is_run:
            run_commands(block, shell)


def run_commands(block: Block, shell: Shell) -> None:
    if block.remark == "stops the broker":
        shell.stop_broker()
    for command in commands_in(block):
        printed = shell.run(command.line)
        if block.kind == "console" and not command.line.startswith("kbroker serve"):
            assert matches(command.shown, printed), f"$ {command.line}\n{printed}"
        elif block.kind == "console":
            assert command.shown[-1] == printed.splitlines()[-1] == f"kbroker is ready on {BROKER}"
    if block.remark == "stops the broker":
        shell.start_broker_again()


def run_source(block: Block, shell: Shell) -> None:
    name = block.file_name
    assert name is not None
    (shell.directory / name).write_text(shell._with_real_addresses(block.text), encoding="utf-8")
    shell.run(f"pytest -q -p no:cacheprovider {name}" if name.startswith("test_") else f"python {name}")


def test_skipped_commands_are_listed() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page) if block.kind in COMMANDS and not block.is_run]
    assert {command.line for block in blocks for command in commands_in(block)} == NOT_RUN


def test_the_readme_shows_what_make_run_shows(shell: Shell) -> None:
    command, *_ = [
        command for block in blocks_of("README.md") for command in commands_in(block) if block.kind == "console"
    ]
    assert command.line == "make run"
    assert matches(command.shown, shell.run("make run"))
    shell.stop_broker()


def test_every_remark_is_known() -> None:
    remarks = {block.remark for page in PAGES for block in blocks_of(page) if block.is_run}
    assert remarks <= {"", "stops the broker"}
