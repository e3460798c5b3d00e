"""Quotas of users, client ids and addresses (KIP-546): who has which, what may be set, and how they are looked up.

They are kept as configs of the entity, under the names and in the nodes of Kafka 3.9. Pure: nothing is enforced here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kbroker.config_key import format_value
from kbroker.controller.znodes import entity_path, split_entity_path
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = [
    "CLIENT_ID",
    "IP",
    "USER",
    "Component",
    "Entity",
    "Quota",
    "address_rates",
    "find_quotas",
    "quota_entity",
    "quota_texts",
]

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2

# What may be limited, and whether the value is a whole number.
_RATES: Final = {
    "producer_byte_rate": True,
    "consumer_byte_rate": True,
    "request_percentage": False,
    "controller_mutation_rate": False,
}
_CONNECTION_RATE: Final = "connection_creation_rate"
_IP_RATES: Final = {_CONNECTION_RATE: True}
_MAX_INT: Final = 2**31 - 1
_MAX_LONG: Final = 2**63 - 1

_KINDS: Final = {"users": USER, "clients": CLIENT_ID, "ips": IP}

Entity = Mapping[str, str | None]
"""user, client-id, ip -> name; None stands for whoever has no quota of their own."""


class Quota(NamedTuple):
    entity: Entity
    values: Mapping[str, float]


class Component(NamedTuple):
    """One condition of a filter."""

    kind: str
    match_type: int
    match: str | None


def quota_entity(parts: Sequence[tuple[str, str | None]]) -> str:
    """The path below /config at which quotas of this entity are kept; a Refusal if there can be none."""
    entity = dict(parts)
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP in entity:
        if len(entity) > 1:
            raise _invalid("Invalid quota entity combination: an ip stands alone, without user or client id")
        return entity_path("ips", entity[IP])
    if USER not in entity:
        return entity_path("clients", entity[CLIENT_ID])
    if CLIENT_ID not in entity:
        return entity_path("users", entity[USER])
    return entity_path("users", entity[USER], "clients", entity[CLIENT_ID])


def quota_texts(current: Mapping[str, str], changes: Mapping[str, float | None], *, is_ip: bool) -> dict[str, str]:
    """The configs with quotas set, and taken away where the value is None. What else the entity has is kept."""
    texts = dict(current)
    for name, value in changes.items():
        if value is None:
            texts.pop(name, None)
        else:
            texts[name] = _text(name, value, _IP_RATES if is_ip else _RATES)
    return texts


def _text(name: str, value: float, rates: Mapping[str, bool]) -> str:
    if name not in rates:
        raise _invalid(f"Invalid configuration key {name}")
    if not value > 0 or math.isinf(value):
        raise _invalid(f"Quota {name} must be a number greater than 0")
    if not rates[name]:
        return format_value(value) or ""
    if value > (_MAX_INT if rates is _IP_RATES else _MAX_LONG):
        raise _invalid(f"{value:g} is too large for {name}")
    if value % 1 > 1e-6:
        raise _invalid(f"{name} cannot be a fractional value.")
    return str(int(value))


def find_quotas(
    configs: Mapping[str, Mapping[str, str]], components: Sequence[Component], *, is_strict: bool
) -> list[Quota]:
    """The quotas of all entities that meet every condition; a strict filter wants no further parts in an entity."""
    _check_filter(components)
    found = []
    for quota in _quotas(configs):
        matches = all(_matches(quota.entity, component) for component in components)
        if matches and (not is_strict or len(quota.entity) == len(components)):
            found.append(quota)
    return found


def address_rates(configs: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """How many connections an address may open in a second; under "" what holds for the others."""
    return {
        quota.entity[IP] or "": quota.values[_CONNECTION_RATE]
        for quota in _quotas(configs)
        if IP in quota.entity and _CONNECTION_RATE in quota.values
    }


def _check_filter(components: Sequence[Component]) -> None:
    kinds = [component.kind for component in components]
    for kind, match_type, match in components:
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind not in (USER, CLIENT_ID, IP):
            raise Refusal(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if kinds.count(kind) > 1:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if match_type not in (EXACT, DEFAULT, ANY):
            raise _invalid(f"Unknown match type {match_type}")
        if (match is None) is (match_type == EXACT):
            raise _invalid("A name belongs to an exact match, and to no other.")
    if IP in kinds and len(kinds) > 1:
        raise _invalid("Invalid entity filter: an ip stands alone, without user or client id.")


def _matches(entity: Entity, component: Component) -> bool:
    if component.kind not in entity:
        return False
    name = entity[component.kind]
    if component.match_type == ANY:
        return True
    return name == component.match  # None is both the default entity and what a default match holds


def _quotas(configs: Mapping[str, Mapping[str, str]]) -> Iterable[Quota]:
    for path, texts in configs.items():
        if path.partition("/")[0] not in _KINDS:
            continue
        values = {name: float(text) for name, text in texts.items() if name in _RATES or name in _IP_RATES}
        if values:
            yield Quota({_KINDS[kind]: name for kind, name in split_entity_path(path)}, values)


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
