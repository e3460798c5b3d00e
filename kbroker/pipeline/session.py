"""Spark sessions with the Kafka connector of the installed pyspark, and with kbroker on the executors.

The connector comes from Maven (`spark.jars.packages`), or from jars that the caller names.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import kbroker
from kbroker.errors import UserError
from kbroker.pipeline.problems import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "connector_package",
    "open_session",
    "require_classic",
    "require_connect_server",
    "require_java",
    "require_pyspark",
    "zip_sources",
]

SCALA: Final = "2.13"  # of Spark 4
SUPPORTED: Final = re.compile(r"4\.\d")
LOCAL: Final = "local[*]"
_MASTER: Final = re.compile(r"local(\[[\d*]+(, *\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s|sc)://.+")
CONNECT_PORT: Final = 15002
CONNECT_SECONDS: Final = 10.0
# Spark's default, 200, is for clusters: on one machine each batch with a window would write 200 small files of state.
LOCAL_SHUFFLE: Final = ("spark.sql.shuffle.partitions", "8")

# Formats of tables and values -> the package of each, and the conf that it needs. {} is the version of Spark.
FORMAT_PACKAGES: Final = {
    "avro": f"org.apache.spark:spark-avro_{SCALA}:{{}}",
    "delta": f"io.delta:delta-spark_{SCALA}:4.0.0",
    "iceberg": f"org.apache.iceberg:iceberg-spark-runtime-4.0_{SCALA}:1.10.0",
    "protobuf": f"org.apache.spark:spark-protobuf_{SCALA}:{{}}",
}
FORMAT_CONF: Final[dict[str, dict[str, str]]] = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"},
}


def require_pyspark() -> str:
    """Returns the version of pyspark. Raises UserError if pyspark is missing or another major version than 4."""
    try:
        import pyspark
    except ImportError:
        raise UserError("Pipelines need pyspark, which is not installed. Run: pip install 'kbroker[spark]'") from None
    version: str = pyspark.__version__
    if not SUPPORTED.match(version):
        raise UserError(f"Pipelines need pyspark 4, but {version} is installed. Run: pip install 'kbroker[spark]'")
    return version


def check_master(master: str) -> None:
    """Raises UserError if Spark does not know such an address: Spark would print a stack."""
    if not _MASTER.fullmatch(master):
        raise UserError(
            f"--master is '{master}'; expected local[N], spark://HOST:PORT, yarn, k8s://... or sc://HOST:PORT"
        )


def require_java() -> None:
    """Raises UserError if there is no Java for Spark."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME is {home}, which holds no bin/java" if home else "java is not on the PATH"
        raise UserError(f"Spark needs Java 17 or newer: {where}. Install a JDK, or set JAVA_HOME")
    result = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', result.stderr + result.stdout)
    if found is not None and int(found[1]) < 17:
        raise UserError(f"Spark needs Java 17 or newer, but {java} is Java {found[1]}. Install a JDK, or set JAVA_HOME")


def connector_package(version: str) -> str:
    """Returns the Maven coordinates of Spark's Kafka connector."""
    return f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{version}"


def check_jars(jars: Iterable[str], version: str) -> None:
    """Raises UserError if a jar of Spark belongs to another version than the installed pyspark."""
    for jar in jars:
        found = re.fullmatch(rf"(spark-[\w-]+)_{re.escape(SCALA)}-(\d[\w.]*)\.jar", Path(jar).name)
        if found is not None and found[2] != version:
            raise UserError(
                f"{Path(jar).name} is for Spark {found[2]}, but pyspark {version} is installed. "
                f"Use {found[1]}_{SCALA}-{version}.jar, or run: pip install pyspark=={found[2]}"
            )


def check_packages(packages: Iterable[str], version: str) -> None:
    """Raises UserError if a package of Spark belongs to another version than the installed pyspark."""
    for package in packages:
        group, _, rest = package.partition(":")
        artifact, _, wanted = rest.partition(":")
        if group == "org.apache.spark" and wanted != version:
            raise UserError(
                f"The package {package} is for Spark {wanted}, but pyspark {version} is installed. "
                f"Use {group}:{artifact}:{version}, or run: pip install pyspark=={wanted}"
            )


def zip_sources(target: Path) -> Path:
    """Writes kbroker's Python sources to a zip file for executors that have no kbroker."""
    (package,) = kbroker.__path__
    root = Path(package)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(root.rglob("*.py")):
            archive.write(source, Path("kbroker") / source.relative_to(root))
    return target


def open_session(
    name: str,
    *,
    master: str = LOCAL,
    jars: Sequence[str | os.PathLike[str]] = (),
    packages: Sequence[str] = (),
    formats: Iterable[str] = (),
    conf: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> SparkSession:
    """Opens or returns a session. Raises UserError if Spark cannot start.

    With `jars`, only `packages` come from Maven: the jars must hold the connector and what `formats` need. The zip of
    kbroker's sources for the executors is written to `directory`, by default a temporary one.
    """
    version = require_pyspark()
    check_master(master)
    from pyspark.sql import SparkSession

    if master.startswith("sc://"):  # Spark Connect: jars and confs belong to its server
        require_connect_server(master)
        return _start(SparkSession.builder.appName(name).remote(master))
    require_java()
    chosen = dict(conf or {})
    if master.startswith("local"):
        # Spark would start the first python3 on the PATH, which may lack kbroker's dependencies.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        chosen.setdefault(*LOCAL_SHUFFLE)
    settings = _settings(version, [str(jar) for jar in jars], [*packages], [*formats], chosen)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if master.startswith("local["):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # one machine: listens to no other
        # The workers of Python run here: they get kbroker as it is installed here, with its compiled modules.
        builder = builder.config("spark.executorEnv.PYTHONPATH", _python_path())
    session = _start(builder)
    if not master.startswith("local["):
        _ship_sources(session, directory)
    return session


def require_connect_server(master: str) -> None:
    """Raises UserError if nothing listens at the address of Spark Connect: its client would try for ten minutes."""
    found = urlsplit(master)
    try:
        address = (found.hostname or "", found.port or CONNECT_PORT)
    except ValueError:
        raise UserError(f"--master is {master}; expected sc://HOST:PORT") from None
    try:
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except OSError as problem:
        reason = problem.strerror or problem
        raise UserError(
            f"No Spark Connect server answers at {master}: {reason}. Start it, or correct --master"
        ) from None


def require_classic(session: SparkSession, part: str) -> None:
    """Raises UserError if the session is one of Spark Connect, whose server runs the code of a batch."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise UserError(f"{part} does not run on Spark Connect. Use another --master")


def _settings(
    version: str, jars: list[str], packages: list[str], formats: list[str], conf: dict[str, str]
) -> dict[str, str]:
    check_jars(jars, version)
    check_packages(packages, version)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for chosen in formats:
        for key, value in FORMAT_CONF.get(chosen, {}).items():
            known = settings.get(key)
            settings[key] = f"{known},{value}" if known and key.endswith("extensions") else value
    wanted = [] if jars else [connector_package(version), *format_packages(formats, version)]
    if jars:
        settings["spark.jars"] = ",".join(jars)
    if wanted or packages:
        settings["spark.jars.packages"] = ",".join(dict.fromkeys([*wanted, *packages]))
    return {**settings, **conf}


def format_packages(formats: Iterable[str], version: str) -> list[str]:
    return [FORMAT_PACKAGES[name].format(version) for name in formats if name in FORMAT_PACKAGES]


def _python_path() -> str:
    (package,) = kbroker.__path__
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(part for part in (str(Path(package).parent), inherited) if part)


def _start(builder: Any) -> SparkSession:
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as failure:
        reason = first_line(failure).rstrip(".")
        raise UserError(f"Spark could not start: {reason}. The lines above have the reason") from failure
    return session


def _ship_sources(session: SparkSession, directory: Path | None) -> None:
    target = Path(directory or tempfile.mkdtemp(prefix="kbroker-pipeline-")) / "kbroker-sources.zip"
    session.sparkContext.addPyFile(str(zip_sources(target)))
