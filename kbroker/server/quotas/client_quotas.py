"""Quotas of users, client ids and IP addresses (KIP-546): validates, formats and finds them.

They are stored as configs of the entity, with the names and nodes of Kafka 3.9. Pure. Never enforces a quota.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kbroker.config.key import format_value
from kbroker.controller.config_entities import entity_path, split_entity_path
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = [
    "CLIENT_ID",
    "IP",
    "USER",
    "Entity",
    "FilterComponent",
    "Quota",
    "address_rate",
    "check_filter",
    "matching_quota",
    "quota_entity",
    "quota_texts",
]

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2

# Quota names, and whether the value is a whole number.
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
"""Entity type (user, client-id, ip) to name. None is the default entity: it applies to names without own quotas."""


class Quota(NamedTuple):
    entity: Entity
    values: Mapping[str, float]


class FilterComponent(NamedTuple):
    """One condition of a filter (Kafka's ClientQuotaFilterComponent)."""

    kind: str
    match_type: int
    match: str | None


def quota_entity(parts: Sequence[tuple[str, str | None]]) -> str:
    """Returns the path below /config of the entity's quotas. Raises Refusal if the entity is invalid."""
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
            raise _invalid("Invalid quota entity combination, IP entity should not be used with user/client ID entity.")
        return entity_path("ips", entity[IP])
    if USER not in entity:
        return entity_path("clients", entity[CLIENT_ID])
    if CLIENT_ID not in entity:
        return entity_path("users", entity[USER])
    return entity_path("users", entity[USER], "clients", entity[CLIENT_ID])


def quota_texts(current: Mapping[str, str], changes: Mapping[str, float | None], *, is_ip: bool) -> dict[str, str]:
    """Returns `current` with the changes applied; None removes a quota. Keeps other configs of the entity."""
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
        raise _invalid(f"Quota {name} must be greater than 0")
    if not rates[name]:
        return format_value(value) or ""
    if value > (_MAX_INT if rates is _IP_RATES else _MAX_LONG):
        kind = "an INT" if rates is _IP_RATES else "a LONG"
        raise _invalid(f"Proposed value for {name} is too large for {kind}.")
    if value % 1 > 1e-6:
        raise _invalid(f"{name} cannot be a fractional value.")
    return str(int(value))


def matching_quota(
    path: str, texts: Mapping[str, str], components: Sequence[FilterComponent], *, is_strict: bool
) -> Quota | None:
    """Returns the quotas of an entity if it matches all components; with `is_strict`, if it has no other parts."""
    quota = _quota(path, texts)
    if quota is None or not all(_matches(quota.entity, component) for component in components):
        return None
    return quota if not is_strict or len(quota.entity) == len(components) else None


def address_rate(path: str, texts: Mapping[str, str]) -> tuple[str, float | None] | None:
    """Returns an IP address, and the connections per second that it may open; None if the entity is not an address.

    "" is the default for all addresses. A rate of None: no limit.
    """
    if not path.startswith("ips/"):
        return None
    ((_, name),) = split_entity_path(path)
    text = texts.get(_CONNECTION_RATE)
    return name or "", None if text is None else float(text)


def check_filter(components: Sequence[FilterComponent]) -> None:
    """Raises Refusal if a filter is invalid."""
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
        if match_type == EXACT and match is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match_type != EXACT and match is not None:
            name = "MATCH_TYPE_DEFAULT" if match_type == DEFAULT else "MATCH_TYPE_SPECIFIED"
            raise _invalid(f"Request specified {name}, but also specified a match string.")
    if IP in kinds and len(kinds) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component."
        )


def _matches(entity: Entity, component: FilterComponent) -> bool:
    if component.kind not in entity:
        return False
    name = entity[component.kind]
    if component.match_type == ANY:
        return True
    return name == component.match  # with DEFAULT both are None: the default entity


def _quota(path: str, texts: Mapping[str, str]) -> Quota | None:
    if path.partition("/")[0] not in _KINDS:
        return None
    values = {name: float(text) for name, text in texts.items() if name in _RATES or name in _IP_RATES}
    return Quota({_KINDS[kind]: name for kind, name in split_entity_path(path)}, values) if values else None


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
