"""Entry point of the container image: configures the broker from the environment, then becomes `kbroker serve`.

    serve [OPTION...]   starts the broker, with further options of `kbroker serve`
    ready               exits with 0 if /readyz answers 200, for health checks
    anything else       is a command of kbroker: `docker run --rm kbroker topics list -b ...`

KAFKA_NUM_PARTITIONS=3 sets num.partitions=3, as in the images of Apache Kafka: an underscore is a dot, two underscores
are an underscore, three are a dash. /etc/kbroker/server.properties is read if it exists; variables override it. The
configs are passed in a file in memory: arguments, and passwords in them, can be read by all users of a machine.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Final

__all__ = ["main", "properties_of", "properties_text", "serve_command"]

CONFIG_FILE: Final = "/etc/kbroker/server.properties"
READY_ADDRESS: Final = "127.0.0.1:9308"
READY_SECONDS: Final = 4

# Without an advertised address, clients on the machine that runs the container can connect: docker run -p 9092:9092.
LISTEN: Final = "0.0.0.0:9092"
ADVERTISED: Final = "localhost:9092"
LISTENERS: Final = {"listeners": f"PLAINTEXT://{LISTEN}", "advertised.listeners": f"PLAINTEXT://{ADVERTISED}"}
DATA: Final = {"log.dirs": "/var/lib/kbroker"}
METRICS: Final = {"kbroker.metrics.listeners": "0.0.0.0:9308"}

# Variables of Apache Kafka's scripts and images that are not configs.
NOT_CONFIGS: Final = ("HEAP_OPTS", "OPTS", "JMX_", "LOG4J", "JVM_", "GC_", "TOOLS_", "VERSION", "DEBUG")


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["ready"]:
        sys.exit(0 if is_ready() else 1)
    if arguments and arguments[0] != "serve" and not arguments[0].startswith("-"):
        words = ["kbroker", *arguments]
    else:
        options = arguments[1:] if arguments[:1] == ["serve"] else arguments
        words = serve_command(options, _file_in_memory(properties_text(options, os.environ, _mounted_properties())))
    os.execvp(words[0], words)


def _mounted_properties() -> str | None:
    try:
        with open(CONFIG_FILE, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _file_in_memory(text: str) -> str:
    """Returns the path of a file that this process and `kbroker serve`, which replaces it, can read."""
    descriptor = os.memfd_create("server.properties", flags=0)  # without MFD_CLOEXEC
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape", closefd=False) as file:
        file.write(text)
    return f"/proc/self/fd/{descriptor}"


def serve_command(options: Sequence[str], config_file: str) -> list[str]:
    names = {option.partition("=")[0] for option in options}
    words = ["kbroker", "serve"]
    if "--config" not in names:
        words += ["--config", config_file]
    if "--secure" in names and "--listen" not in names:  # --secure sets the listeners itself
        words += ["--listen", LISTEN]
        if "--advertise" not in names:
            words += ["--advertise", ADVERTISED]
    return [*words, *options]


def properties_text(options: Sequence[str], environment: Mapping[str, str], mounted: str | None) -> str:
    """Returns the content of the properties file: defaults, the mounted file, and above both the variables."""
    given = properties_of(environment)
    if mounted is None:
        defaults = {**DATA, **METRICS}
        if "listeners" not in given and "--secure" not in options:
            defaults |= LISTENERS
    else:
        defaults = METRICS  # the file says for itself where to listen
    return f"{_format(defaults)}\n{mounted or ''}\n{_format(given)}\n"


def _format(properties: Mapping[str, str]) -> str:
    """Returns lines of a properties file. A value may have any characters."""
    lines = []
    for name, value in properties.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        leading = "\\" if escaped[:1] in (" ", "\t", "\f") else ""
        lines.append(f"{name}={leading}{escaped}")
    return "\n".join(lines)


def properties_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the configs that variables KAFKA_... set."""
    properties = {}
    for variable, value in sorted(environment.items()):
        name = variable.removeprefix("KAFKA_")
        if name != variable and not name.startswith(NOT_CONFIGS):
            dots = name.lower().replace("___", "-").replace("__", "\0").replace("_", ".")
            properties[dots.replace("\0", "_")] = value
    return properties


def is_ready() -> bool:
    """Whether /readyz answers 200, over HTTP, or over HTTPS if kbroker.metrics.security.protocol is SSL."""
    return _answers_ok(f"http://{READY_ADDRESS}/readyz") or _answers_ok(f"https://{READY_ADDRESS}/readyz")


def _answers_ok(url: str) -> bool:
    # The certificate is for the names of the broker, and this connection does not leave the container.
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=READY_SECONDS, context=trusting) as response:
            return bool(response.status == 200)
    except (OSError, HTTPException):
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
