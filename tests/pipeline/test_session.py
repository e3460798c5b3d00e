"""Spark needs pyspark, Java, and the connector of its own version. If one is missing, the error is one line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kbroker
from kbroker.errors import UserError
from kbroker.pipeline.session import (
    check_jars,
    check_master,
    check_packages,
    connector_package,
    require_classic,
    require_connect_server,
    require_java,
    zip_sources,
)

WITHOUT_PYSPARK = """
import sys
sys.modules["pyspark"] = None
import kbroker.pipeline
from kbroker.pipeline import definition
try:
    kbroker.pipeline.archive
except Exception as failure:
    print(type(failure).__name__, failure)
"""


def test_without_pyspark_one_line_says_what_to_install() -> None:
    result = subprocess.run([sys.executable, "-c", WITHOUT_PYSPARK], capture_output=True, text=True, check=False)
    line = "UserError Pipelines need pyspark, which is not installed. Run: pip install 'kbroker[spark]'\n"
    assert (result.stdout, result.stderr) == (line, "")


@pytest.mark.parametrize(
    "master", ["", "foo", "127.0.0.1:7077", "local[x]", "local-cluster", "spark://", "yarn://host", "local[2] "]
)
def test_an_address_that_spark_does_not_know_is_one_line(master: str) -> None:
    with pytest.raises(UserError, match=r"^--master is .*; expected local\[N\], spark://HOST:PORT, yarn"):
        check_master(master)


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[2]",
        "local[*,4]",
        "local[2, 4]",
        "local-cluster[2,1,1024]",
        "spark://a:7077,b:7077",
        "yarn",
        "k8s://https://host:443",
        "sc://host:15002/;token=x",
    ],
)
def test_masters_of_spark_are_accepted(master: str) -> None:
    check_master(master)


def test_no_java_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^Spark needs Java 17 or newer: java is not on the PATH\. Install a JDK"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"^Spark needs Java 17 or newer: JAVA_HOME is .*, which holds no bin/java"):
        require_java()


def test_an_old_java_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.1\" 2018-10-16' >&2\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
    with pytest.raises(UserError, match=r"^Spark needs Java 17 or newer, but .*/java is Java 11\."):
        require_java()


def test_a_connector_of_another_spark_is_named() -> None:
    jar = "/jars/spark-sql-kafka-0-10_2.13-4.0.1.jar"
    check_jars([jar, "/jars/kafka-clients-3.9.0.jar"], "4.0.1")
    with pytest.raises(
        UserError, match=r"is for Spark 4\.0\.1, but pyspark 4\.0\.0 is installed\. Use spark-sql-kafka"
    ):
        check_jars([jar], "4.0.0")
    check_packages([connector_package("4.0.0"), "io.delta:delta-spark_2.13:4.0.0"], "4.0.0")
    with pytest.raises(UserError, match=r"is for Spark 4\.0\.1, but pyspark 4\.0\.0 is installed"):
        check_packages([connector_package("4.0.1")], "4.0.0")


def test_the_zip_for_executors_holds_all_sources(tmp_path: Path) -> None:
    path = zip_sources(tmp_path / "kbroker.zip")
    (root,) = kbroker.__path__
    with zipfile.ZipFile(path) as archive:
        assert set(archive.namelist()) == {
            str(Path("kbroker") / source.relative_to(root)) for source in Path(root).rglob("*.py")
        }


def test_a_session_of_spark_connect_is_refused_where_code_runs_in_the_driver() -> None:
    classic = type("SparkSession", (), {"__module__": "pyspark.sql.session"})
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    require_classic(classic(), "The exactly-once sink")
    with pytest.raises(UserError, match=r"^The exactly-once sink does not run on Spark Connect\. Use another --master"):
        require_classic(remote(), "The exactly-once sink")


def test_a_spark_connect_server_that_does_not_answer_is_one_line() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # bound, and not listening
        port = server.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"^No Spark Connect server answers at sc://127.0.0.1:{port}: \w.*Start it"
        ):
            require_connect_server(f"sc://127.0.0.1:{port}")
        server.listen()
        require_connect_server(f"sc://127.0.0.1:{port}/;user_id=ann")
    with pytest.raises(UserError, match="expected sc://HOST:PORT"):
        require_connect_server("sc://127.0.0.1:http")
