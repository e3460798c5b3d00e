"""Reads the quotas in force from the metadata image."""

from __future__ import annotations

from typing import Final

from kbroker.controller.image import Image
from kbroker.server.quotas.client_quotas import CLIENT_ID, IP, USER, Entity, matching_quota
from kbroker.web import metrics_table as table
from kbroker.web.exposition import Samples

__all__ = ["MAX_ENTITIES", "read_quotas"]

MAX_ENTITIES: Final = 1000
_DEFAULT: Final = "<default>"


def read_quotas(samples: Samples, image: Image) -> None:
    found = (matching_quota(path, texts, (), is_strict=False) for path, texts in image.entity_configs.items())
    quotas = [quota for quota in found if quota is not None]
    samples.add(table.QUOTAS, len(quotas))
    for entity, values in quotas[:MAX_ENTITIES]:
        labels = [_name(entity, kind) for kind in (USER, CLIENT_ID, IP)]
        for name, value in sorted(values.items()):
            samples.add(table.QUOTA, value, *labels, name)


def _name(entity: Entity, kind: str) -> str:
    """Returns the name of the entity; empty if the quota does not depend on this kind."""
    return (entity[kind] or _DEFAULT) if kind in entity else ""
