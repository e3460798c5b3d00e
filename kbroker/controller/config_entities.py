"""Names of entities that have configs or quotas: brokers, users, clients, addresses, groups. Pure.

An entity is named by its path below /config, for example brokers/1 or users/alice/clients/<default>.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

__all__ = [
    "DEFAULT_BROKERS",
    "DEFAULT_ENTITY",
    "ENTITY_TYPES",
    "desanitize",
    "entity_path",
    "sanitize",
    "split_entity_path",
]

DEFAULT_ENTITY: Final = "<default>"
"""Name of the default entity, whose configs apply to all entities that have none."""
DEFAULT_BROKERS: Final = f"brokers/{DEFAULT_ENTITY}"
# Kafka 3.9 has the last two only in KRaft; kbroker stores them in nodes of the same format.
ENTITY_TYPES: Final = ("brokers", "users", "clients", "ips", "groups", "client-metrics")


def entity_path(*parts: str | None) -> str:
    """Returns the path of an entity below /config: users, alice, clients, None -> users/alice/clients/<default>."""
    kinds, names = parts[::2], parts[1::2]
    return "/".join(f"{kind}/{sanitize(name)}" for kind, name in zip(kinds, names, strict=True))


def split_entity_path(entity: str) -> list[tuple[str, str | None]]:
    """Returns kinds and names of an entity; a name is None for the default entity."""
    parts = entity.split("/")
    return [(kind, desanitize(name)) for kind, name in zip(parts[::2], parts[1::2], strict=True)]


def sanitize(name: str | None) -> str:
    """Returns a name as Kafka writes it into the name of a node; None is the default entity."""
    if name is None:
        return DEFAULT_ENTITY
    # ZooKeeper does not allow . and .. as names, so Kafka cannot store these entities; kbroker escapes the dots.
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe=".-_").replace("~", "%7E")


def desanitize(name: str) -> str | None:
    return None if name == DEFAULT_ENTITY else unquote(name)
