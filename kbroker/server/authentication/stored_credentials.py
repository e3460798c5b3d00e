"""SCRAM credentials of users in the image, and of delegation tokens: found for logins, listed, and changed. Pure.

Those of a user are configs of its entity, `users/<name>`, beside its quotas, as in Kafka 3.9. Those of a token are
computed from its HMAC.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kbroker.controller.config_entities import entity_path, split_entity_path
from kbroker.controller.image import Image
from kbroker.security.credentials import SCRAM_HASHES, SCRAM_MECHANISMS, ScramCredential, ScramHash, parse_credential
from kbroker.security.scram import TokenCredential

if TYPE_CHECKING:
    from kbroker.controller.token_store import TokenStore

__all__ = ["credentials_of", "find_credential", "find_token", "user_entity", "user_with_credential"]

logger = logging.getLogger(__name__)


def user_entity(user: str) -> str:
    """Returns the path of a user below /config."""
    return entity_path("users", user)


def find_credential(image: Image, scram: ScramHash, user: str) -> ScramCredential | None:
    """Returns the credential of a user. None without one, or if it cannot be read."""
    text = image.configs_of(user_entity(user)).get(scram.mechanism)
    if text is None:
        return None
    try:
        return parse_credential(text)
    except ValueError as problem:
        logger.error("Ignored the credential of a user in %s: %s", user_entity(user), problem)
        return None


def find_token(tokens: TokenStore | None, scram: ScramHash, token_id: str) -> TokenCredential | None:
    """Returns the credential of a token. None without one, or if it has expired."""
    known = None if tokens is None else tokens.find(token_id)
    if known is None:
        return None
    return TokenCredential(known.credential(scram), known.token.user, known.token.expiry_ms)


def credentials_of(image: Image, user: str) -> dict[ScramHash, ScramCredential]:
    found = ((scram, find_credential(image, scram, user)) for scram in SCRAM_HASHES)
    return {scram: credential for scram, credential in found if credential is not None}


def user_with_credential(entity: str, configs: Mapping[str, str]) -> str | None:
    """Returns the user whose configs these are, if they have a credential. None for other entities."""
    if not entity.startswith("users/") or not any(name in SCRAM_MECHANISMS for name in configs):
        return None
    parts = split_entity_path(entity)
    return parts[0][1] if len(parts) == 1 else None
