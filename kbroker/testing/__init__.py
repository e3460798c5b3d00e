"""Kafka for tests: `Broker` for any program, `run_broker` for trio, fixtures for pytest, and fakes for kbroker's tests.

The names below are imported on first use: pytest loads this package in every run if kbroker is installed, and most runs
never start a broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Bootstrap", "Broker", "Fault", "Faults", "KafkaRecord", "RunningBroker", "run_broker"]

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker
    from kbroker.testing.faults import Fault, Faults
    from kbroker.testing.kafka_record import KafkaRecord
    from kbroker.testing.running_broker import Bootstrap, RunningBroker, run_broker
else:
    _HOMES = {
        "Bootstrap": "running_broker",
        "Broker": "broker",
        "Fault": "faults",
        "Faults": "faults",
        "KafkaRecord": "kafka_record",
        "RunningBroker": "running_broker",
        "run_broker": "running_broker",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
