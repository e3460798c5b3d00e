"""Resource types and operations of the config APIs, with their numbers in the protocol. Used by broker and client."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ConfigOperation", "ConfigResourceType"]


class ConfigResourceType(IntEnum):
    """Kafka's `ConfigResource.Type`."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """Kafka's `AlterConfigOp.OpType`, as IncrementalAlterConfigs sends it."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
