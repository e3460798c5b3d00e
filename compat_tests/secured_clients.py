"""Lets the scenarios run against a secured cluster: every client of this process gets the settings of a login.

Constructors are changed before the scenarios import them, so the scenarios need not know. `kbroker` commands find the
file of the settings in their environment, and Kafka's tools get it as an option.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka

from kbroker.config.properties import parse_properties

__all__ = ["secure_clients", "tool_options"]

_paths: list[str] = []  # of the properties, once the clients are secured
_CONFIG_OPTIONS = {
    "org.apache.kafka.tools.ConsoleProducer": "--producer.config",
    "org.apache.kafka.tools.consumer.ConsoleConsumer": "--consumer.config",
    "org.apache.kafka.tools.ProducerPerformance": "--producer.config",
}


def secure_clients(path: str) -> None:
    """`path`: properties of a Java client with SASL_SSL, `sasl.username` and `sasl.password`."""
    with open(path, encoding="utf-8") as file:
        properties = parse_properties(file.read())
    os.environ["KBROKER_COMMAND_CONFIG"] = path
    _paths.append(path)
    librdkafka = _of_librdkafka(properties)
    for name in ("Producer", "Consumer"):
        setattr(confluent_kafka, name, _with_settings(getattr(confluent_kafka, name), librdkafka))
    admin: Any = confluent_kafka.admin
    _give_dict(admin.AdminClient, librdkafka)
    python = _of_kafka_python(properties)
    for kind in (kafka.KafkaProducer, kafka.KafkaConsumer, kafka.KafkaAdminClient):
        _give_keywords(kind, lambda: python)
    for kind in (aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer):
        _give_keywords(kind, lambda: _of_aiokafka(properties))


def tool_options(main_class: str) -> tuple[str, ...]:
    """Returns the option of a tool of Kafka for the settings. Empty without `secure_clients`."""
    if not _paths or not main_class.startswith(("org.apache.kafka.tools.", "kafka.admin.")):
        return ()
    return _CONFIG_OPTIONS.get(main_class, "--command-config"), _paths[-1]


def _with_settings(kind: Any, settings: Mapping[str, str]) -> Any:
    """Returns a class in place of one that is not written in Python."""

    class Secured(kind):
        def __init__(self, config: Any = None, /, *arguments: Any, **more: Any) -> None:
            super().__init__({**settings, **(config or {})}, *arguments, **more)

    return Secured


def _give_dict(kind: Any, settings: Mapping[str, str]) -> None:
    begin = kind.__init__

    def begin_secured(self: Any, config: Mapping[str, Any], *arguments: Any, **more: Any) -> None:
        begin(self, {**settings, **config}, *arguments, **more)

    kind.__init__ = begin_secured


def _give_keywords(kind: Any, settings: Callable[[], Mapping[str, Any]]) -> None:
    begin = kind.__init__

    def begin_secured(self: Any, *arguments: Any, **more: Any) -> None:
        begin(self, *arguments, **{**settings(), **more})

    kind.__init__ = begin_secured


def _of_librdkafka(properties: Mapping[str, str]) -> dict[str, str]:
    settings = {name: text for name, text in properties.items() if name.startswith(("security.", "sasl."))}
    return {**settings, "ssl.ca.location": properties["ssl.truststore.location"]}


def _of_kafka_python(properties: Mapping[str, str]) -> dict[str, str]:
    return {
        "security_protocol": properties["security.protocol"],
        "ssl_cafile": properties["ssl.truststore.location"],
        "sasl_mechanism": properties["sasl.mechanism"],
        "sasl_plain_username": properties["sasl.username"],
        "sasl_plain_password": properties["sasl.password"],
    }


def _of_aiokafka(properties: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = _of_kafka_python(properties)
    cafile = settings.pop("ssl_cafile")
    return {**settings, "ssl_context": ssl.create_default_context(cafile=cafile)}
