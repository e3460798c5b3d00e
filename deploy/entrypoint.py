"""Entry point of the container image: configures the broker from the environment, then becomes `kbroker serve`.

    serve [OPTION...]   starts the broker, with further options of `kbroker serve`
    ready               exits with 0 if /readyz answers 200, for health checks
    anything else       is a command of kbroker: `docker run --rm kbroker topics list -b ...`

KAFKA_NUM_PARTITIONS=3 sets num.partitions=3, as in the images of Apache Kafka: an underscore is a dot, two underscores
are an underscore, three are a dash. /etc/kbroker/server.properties is read if it exists; variables override it.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["command", "main", "properties_of"]

CONFIG_FILE: Final = "/etc/kbroker/server.properties"
READY_URL: Final = "http://127.0.0.1:9308/readyz"

# Without an advertised address, clients on the machine that runs the container can connect: docker run -p 9092:9092.
DEFAULTS: Final = {
    "listeners": "PLAINTEXT://0.0.0.0:9092",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
    "log.dirs": "/var/lib/kbroker",
}
METRICS: Final = {"kbroker.metrics.listeners": "0.0.0.0:9308"}

# Variables of Apache Kafka's scripts and images that are not configs.
NOT_CONFIGS: Final = ("HEAP_OPTS", "OPTS", "JMX_", "LOG4J", "JVM_", "GC_", "TOOLS_", "VERSION", "DEBUG")


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["ready"]:
        sys.exit(0 if is_ready() else 1)
    words = command(arguments, os.environ, has_config_file=os.path.exists(CONFIG_FILE))
    os.execvp(words[0], words)


def command(arguments: Sequence[str], environment: Mapping[str, str], *, has_config_file: bool) -> list[str]:
    """Returns the command to run."""
    if arguments and arguments[0] != "serve" and not arguments[0].startswith("-"):
        return ["kbroker", *arguments]
    options = arguments[1:] if arguments[:1] == ["serve"] else arguments
    given = properties_of(environment)
    # A file says for itself where to listen; variables with listeners say what they advertise.
    defaults = METRICS if has_config_file else {**_defaults_beside(given), **METRICS}
    words = ["kbroker", "serve"]
    if has_config_file:
        words += ["--config", CONFIG_FILE]
    for name, value in {**defaults, **given}.items():
        words += ["--set", f"{name}={value}"]
    return [*words, *options]


def _defaults_beside(given: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in DEFAULTS.items() if name != "advertised.listeners" or "listeners" not in given
    }


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
    try:
        with urllib.request.urlopen(READY_URL, timeout=4) as response:
            return bool(response.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
