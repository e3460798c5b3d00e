"""Options of the exactly-once sink: Kafka's names, with or without the prefix "kafka." of Spark's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kbroker.client.address import parse_addresses
from kbroker.errors import UserError
from kbroker.names import topic_name_problem
from kbroker.pipeline.client_options import connection_security, is_security_property
from kbroker.protocol.compression import Codec

__all__ = ["SinkSettings", "read_settings"]

# The default of a broker's transaction.max.timeout.ms: the time that a driver has to restart after a crash between its
# decision and the end of the transactions.
TRANSACTION_TIMEOUT_MS: Final = 900_000
DELIVERY_TIMEOUT_MS: Final = 120_000
# Half of a broker's default message.max.bytes: large batches cost the broker least.
BATCH_BYTES: Final = 512 * 1024
_PREFIX: Final = "kafka."
_NUMBERS: Final = {
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
    "batch.size": BATCH_BYTES,
}


@dataclass(frozen=True, slots=True)
class SinkSettings:
    bootstrap: str
    topic: str | None = None
    """Topic of all records; None: the records have a column `topic`."""
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS
    batch_bytes: int = BATCH_BYTES
    codec: int = Codec.NONE
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of TLS and SASL. They travel to the tasks, which cannot share a TLS context."""

    @property
    def retry_s(self) -> float:
        return self.delivery_timeout_ms / 1000


def read_settings(bootstrap: str, options: Mapping[str, str]) -> SinkSettings:
    """Raises UserError if an option is unknown or has a wrong value."""
    parse_addresses(bootstrap)
    given = {name.lower().removeprefix(_PREFIX): value for name, value in options.items()}
    security = {name: given.pop(name) for name in list(given) if is_security_property(name)}
    connection_security(security)  # fails here, and not in a task
    topic = given.pop("topic", None)
    problem = None if topic is None else topic_name_problem(topic)
    if problem is not None:
        raise UserError(problem)
    numbers = {name: _number(name, given.pop(name, default)) for name, default in _NUMBERS.items()}
    codec = _codec(given.pop("compression.type", "none"))
    if given:
        known = ", ".join(sorted(["topic", "compression.type", *_NUMBERS]))
        raise UserError(f"The exactly-once sink has no option {min(given)}; it knows: {known}, and TLS and SASL.")
    return SinkSettings(
        bootstrap,
        topic,
        numbers["transaction.timeout.ms"],
        numbers["delivery.timeout.ms"],
        numbers["batch.size"],
        codec,
        security,
    )


def _number(name: str, text: str | int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number <= 0:
        raise UserError(f"{name} is '{text}'; it must be a whole number above 0.")
    return number


def _codec(name: str) -> int:
    try:
        return Codec[name.upper()]
    except KeyError:
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise UserError(f"compression.type is '{name}'; expected one of: {known}.") from None
