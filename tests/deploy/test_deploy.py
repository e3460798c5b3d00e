"""Files below deploy/. No image is built: these tests read the files as Docker and Kubernetes do, run the entry point,
and validate the configs that the files set."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deploy import entrypoint
from deploy.entrypoint import properties_of, properties_text, serve_command
from kbroker.cli.main import kbroker
from kbroker.config.broker import BROKER_CONFIGS, BrokerConfig
from kbroker.config.properties import parse_properties
from kbroker.testing.tls_files import make_tls_files
from kbroker.web.metrics_table import METRICS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\b(?:kafka|kbroker|process|python)_[a-z0-9_]+\b")
HISTOGRAM_SUFFIXES = ("", "_bucket", "_sum", "_count")


def properties_in(environment: Mapping[str, str], *options: str, mounted: str | None = None) -> dict[str, str]:
    """Returns the configs of `kbroker serve` in a container with these variables."""
    return parse_properties(properties_text(options, environment, mounted))


# Entry point


def test_without_variables_clients_of_the_machine_can_connect() -> None:
    config = BrokerConfig.from_properties(properties_in({"PATH": "/bin", "HOME": "/"}))
    (endpoint,), (advertised,) = config.endpoints, config.advertised_endpoints
    assert (endpoint.host, endpoint.port) == ("0.0.0.0", 9092)
    assert (advertised.host, advertised.port) == ("localhost", 9092)
    assert config.data_dirs == ("/var/lib/kbroker",)


def test_variables_set_configs() -> None:
    assert properties_of(
        {
            "KAFKA_NUM_PARTITIONS": "3",
            "KAFKA_A__B": "underscore",
            "KAFKA_A___B": "dash",
            "KAFKA_HEAP_OPTS": "-Xmx1G",
            "KBROKER_BOOTSTRAP": "x:9092",
        }
    ) == {"num.partitions": "3", "a_b": "underscore", "a-b": "dash"}
    assert properties_in({"KAFKA_LOG_DIRS": "/disk1,/disk2"})["log.dirs"] == "/disk1,/disk2"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_variable_may_have_any_value(value: str) -> None:
    assert properties_in({"KAFKA_SSL_KEYSTORE_PASSWORD": value})["ssl.keystore.password"] == value


def test_listeners_of_the_environment_are_not_mixed_with_the_default_address() -> None:
    assert "advertised.listeners" not in properties_in({"KAFKA_LISTENERS": "PLAINTEXT://broker:9092"})


def test_a_mounted_properties_file_says_where_to_listen_and_variables_win() -> None:
    mounted = "broker.id=1\nlog.dirs=/disk"
    assert properties_in({"KAFKA_BROKER_ID": "7"}, mounted=mounted) == {
        "kbroker.metrics.listeners": "0.0.0.0:9308",
        "broker.id": "7",
        "log.dirs": "/disk",
    }


def test_a_secured_broker_gets_its_address_by_options() -> None:
    assert "listeners" not in properties_in({}, "--secure")
    words = serve_command(["--secure", "--advertise=kafka.example.com:9092"], "FILE")
    assert words == [
        *("kbroker", "serve", "--config", "FILE", "--listen", "0.0.0.0:9092"),
        *("--secure", "--advertise=kafka.example.com:9092"),
    ]


def test_another_configuration_file_replaces_that_of_the_image() -> None:
    assert serve_command(["--config=my.properties"], "FILE") == ["kbroker", "serve", "--config=my.properties"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["topics", "list"], "topics list"),
        (["version"], "version"),
        ([], "serve --config FILE"),
        (["--topic", "orders"], "serve --config FILE --topic orders"),
        (["serve", "--topic", "orders"], "serve --config FILE --topic orders"),
        (["serve", "--secure"], "serve --config FILE --listen 0.0.0.0:9092 --advertise localhost:9092 --secure"),
    ],
)
def test_the_entry_point_becomes_kbroker_and_no_password_is_an_argument(
    arguments: list[str], shown: str, tmp_path: Path
) -> None:
    program = tmp_path / "kbroker"
    program.write_text('#!/bin/sh\necho "$@"\ncase "$1" in serve) cat "$3";; esac\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "KAFKA_SSL_KEY_PASSWORD": "secret"}
    call = [sys.executable, str(DEPLOY / "entrypoint.py"), *arguments]
    printed = subprocess.run(call, env=environment, capture_output=True, text=True, check=True).stdout
    line, *file = printed.splitlines()
    assert re.sub(r"/proc/self/fd/\d+", "FILE", line) == shown
    assert ("ssl.key.password=secret" in file) == ("FILE" in shown)


def test_variables_of_every_config_reach_the_broker() -> None:
    for name in BROKER_CONFIGS:
        variable = "KAFKA_" + name.replace("_", "__").replace("-", "___").replace(".", "_").upper()
        assert list(properties_of({variable: "1"})) == [name.lower()]


class ReadyPage(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def ready_page(monkeypatch: pytest.MonkeyPatch, tls: ssl.SSLContext | None = None) -> Iterator[None]:
    """Serves the page at the address that the health check asks."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ReadyPage) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        monkeypatch.setattr(server, "handle_error", lambda *_: None)
        monkeypatch.setattr(entrypoint, "READY_ADDRESS", f"127.0.0.1:{server.server_port}")
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield
        server.shutdown()
        serving.join()


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_asks_whether_the_broker_is_ready(
    monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    monkeypatch.setattr(ReadyPage, "status", status)
    with ready_page(monkeypatch), pytest.raises(SystemExit) as ended:
        entrypoint.main(["ready"])
    assert ended.value.code == code


def test_the_health_check_asks_over_tls_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(make_tls_files(str(tmp_path)).broker)
    with ready_page(monkeypatch, context):
        assert entrypoint.is_ready()


def test_a_broker_that_does_not_run_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrypoint, "READY_ADDRESS", "127.0.0.1:1")
    assert not entrypoint.is_ready()


# Dockerfile


def instructions() -> list[tuple[str, str]]:
    """Returns the instructions of the Dockerfile, each with its continued lines joined."""
    text = "\n".join(
        line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")
    )
    lines = [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def final_stage() -> list[tuple[str, str]]:
    steps = instructions()
    starts = [index for index, (name, _) in enumerate(steps) if name == "FROM"]
    return steps[starts[-1] :]


KNOWN = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def test_the_dockerfile_has_only_known_instructions_and_pinned_images() -> None:
    steps = instructions()
    assert {name for name, _ in steps} <= KNOWN
    images = [rest.split()[0] for name, rest in steps if name == "FROM"]
    assert all(re.fullmatch(r"python:3\.1\d-slim", image) for image in images)
    assert len(set(images)) == 1, "the compiled code runs on the Python that it was compiled for"


def test_the_dockerfile_copies_files_that_exist_and_that_the_context_has() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for rest in [rest for name, rest in instructions() if name == "COPY" and not rest.startswith("--from")]:
        *sources, _target = rest.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source.rstrip('/')}" in ignored, source


def test_every_lock_file_is_installed_with_its_hashes() -> None:
    runs = " && ".join(rest for name, rest in instructions() if name == "RUN")
    for lock in ("build", "core", "tls", "compile"):
        installs = [part for part in runs.split("&&") if f"requirements/{lock}.lock" in part]
        assert installs
        assert all("--require-hashes" in part for part in installs)
    assert "KBROKER_COMPILE=1" in runs, "an image without compiled code must not be built by accident"


def test_the_container_runs_without_root_with_a_volume_and_a_health_check() -> None:
    steps = dict(final_stage())
    assert steps["USER"] == "10001:10001"
    names = [name for name, _ in final_stage()]
    assert names.index("USER") > max(index for index, name in enumerate(names) if name in ("RUN", "COPY"))
    assert json.loads(steps["VOLUME"]) == ["/var/lib/kbroker"]
    assert steps["EXPOSE"].split() == ["9092", "9308"]
    entry_point = json.loads(steps["ENTRYPOINT"])
    (copied,) = [rest.split()[1] for name, rest in final_stage() if name == "COPY" and "entrypoint" in rest]
    assert entry_point == ["python", copied]
    assert json.loads(steps["HEALTHCHECK"].partition("CMD")[2]) == [*entry_point, "ready"]
    assert json.loads(steps["CMD"]) == ["serve"]


def test_the_image_has_the_versions_that_are_tested() -> None:
    def versions(lock: str) -> set[str]:
        return set(re.findall(r"^(\S+==\S+)", (ROOT / "requirements" / f"{lock}.lock").read_text(), re.MULTILINE))

    assert versions("core") < versions("tls") < versions("test")


def test_shell_scripts_of_the_dockerfile_are_valid() -> None:
    for name, rest in instructions():
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)


# Compose and Kubernetes


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def brokers_of(name: str) -> dict[str, Any]:
    (compose,) = documents(name)
    assert all(
        volume.split(":")[0] in compose["volumes"] for s in compose["services"].values() for volume in s["volumes"]
    )
    return {service: spec for service, spec in compose["services"].items() if "kbroker" in service}


@pytest.mark.parametrize(("name", "count"), [("compose.yaml", 1), ("compose-cluster.yaml", 3)])
def test_the_brokers_of_a_compose_file_have_valid_configs(name: str, count: int) -> None:
    brokers = brokers_of(name)
    assert len(brokers) == count
    ids, host_ports = set(), []
    for service, spec in brokers.items():
        assert (DEPLOY / spec["build"]["context"] / spec["build"]["dockerfile"]).is_file()
        config = BrokerConfig.from_properties(properties_in(spec["environment"]))
        assert config.warnings == ()
        advertised = {endpoint.name: endpoint for endpoint in config.advertised_endpoints}
        assert advertised["DOCKER"].host == service
        published = dict(reversed(port.split(":")[-2:]) for port in spec["ports"])
        assert published[str(advertised["HOST"].port)] == str(advertised["HOST"].port)
        host_ports += [port.rpartition(":")[0] for port in spec["ports"]]
        ids.add(config.broker_id)
    assert len(ids) == count
    assert len(set(host_ports)) == len(host_ports)


def test_the_brokers_of_kubernetes_have_valid_configs_and_probes() -> None:
    service, _budget, stateful_set = documents("kubernetes.yaml")
    assert service["spec"]["clusterIP"] == "None"
    assert stateful_set["spec"]["serviceName"] == service["metadata"]["name"]
    pod = stateful_set["spec"]["template"]
    assert pod["metadata"]["labels"] == service["spec"]["selector"] == stateful_set["spec"]["selector"]["matchLabels"]
    (container,) = pod["spec"]["containers"]
    values = {variable["name"]: variable.get("value") for variable in container["env"]}
    values |= {"POD_NAME": "kbroker-2", "KAFKA_BROKER_ID": "2"}
    environment = {name: text.replace("$(POD_NAME)", "kbroker-2") for name, text in values.items()}
    config = BrokerConfig.from_properties(properties_in(environment))
    assert config.warnings == ()
    assert [str(endpoint) for endpoint in config.advertised_endpoints] == ["PLAINTEXT://kbroker-2.kbroker:9092"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {port["name"]: port["port"] for port in service["spec"]["ports"]}
    probes = {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")}
    assert probes == {"/healthz", "/readyz"}
    assert container["readinessProbe"]["httpGet"]["port"] in ports
    assert pod["spec"]["securityContext"]["runAsUser"] == int(dict(final_stage())["USER"].split(":")[0])
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claims = {claim["metadata"]["name"] for claim in stateful_set["spec"]["volumeClaimTemplates"]}
    assert mounted == claims | {volume["name"] for volume in pod["spec"]["volumes"]}


# systemd and Grafana


def test_the_systemd_unit_uses_valid_options_of_serve() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "kbroker.service", encoding="utf-8")
    program, name, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/kbroker")
    serve = kbroker.get_command(kbroker.make_context("kbroker", ["serve"]), name)
    assert serve is not None
    options = {option for parameter in serve.params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= options


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return list(dashboard["panels"])


def test_every_metric_of_the_dashboard_exists() -> None:
    known = {metric.name + suffix for metric in METRICS for suffix in HISTOGRAM_SUFFIXES}
    queries = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    named = {name for query in queries for name in METRIC.findall(query)}
    assert len(named) > 20
    assert named <= known


def test_every_label_of_the_dashboard_is_a_label_of_its_metric() -> None:
    labels = {metric.name + suffix: set(metric.labels) for metric in METRICS for suffix in HISTOGRAM_SUFFIXES}
    for target in [target for panel in panels() for target in panel.get("targets", ())]:
        query = target["expr"]
        known = {"instance", "le"}.union(*(labels[name] for name in METRIC.findall(query)))
        grouped = [name.strip() for names in re.findall(r"by \(([^)]*)\)", query) for name in names.split(",")]
        selected = [name for braces in re.findall(r"{([^}]*)}", query) for name in re.findall(r"(\w+)[=!]", braces)]
        shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
        assert {*grouped, *selected, *shown} <= known, query
        assert ("_bucket" in query) == ("le" in grouped), query


def test_panels_of_the_dashboard_have_their_own_place_and_number() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"], panel["title"]
