"""SCRAM credentials of users in the image, and of delegation tokens: found for logins, listed, and changed. Pure.

Those of a user are configs of its entity, `users/<name>`, beside its quotas, as in Kafka 3.9. Those of a token are
computed from its HMAC.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kbroker.controller.config_entities import entity_path, split_entity_path
from kbroker.controller.image import Image
from kbroker.security.credentials import SCRAM_HASHES, SCRAM_MECHANISMS, ScramCredential, ScramHash, parse_credential
from kbroker.security.scram import TokenCredential

if TYPE_CHECKING:
    from kbroker.controller.token_store import TokenStore

__all__ = ["all_credentials", "credentials_of", "find_credential", "find_token", "user_entity"]

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


def all_credentials(image: Image) -> dict[str, dict[ScramHash, ScramCredential]]:
    """Returns the credentials of all users that have one, sorted by name."""
    names = sorted(_users(image.entity_configs))
    return {name: found for name in names if (found := credentials_of(image, name))}


def _users(entities: Mapping[str, Iterable[str]]) -> list[str]:
    users = []
    for entity, configs in entities.items():
        if entity.startswith("users/") and any(name in SCRAM_MECHANISMS for name in configs):
            parts = split_entity_path(entity)
            if len(parts) == 1 and parts[0][1] is not None:
                users.append(parts[0][1])
    return users
