"""Paths and contents of the nodes of delegation tokens, as in Apache Kafka 3.9 with ZooKeeper. Pure.

/delegation_token/tokens/<id>                   owner, renewers and times of a token; its HMAC is stored nowhere
/delegation_token/token_changes/token_change_   announcements of changes, for the other brokers: the id
"""

from __future__ import annotations

import json
from typing import Any, Final

from kbroker.controller.config_entities import desanitize, sanitize
from kbroker.controller.trees.znodes import BadNode
from kbroker.security.delegation_token import DelegationToken

__all__ = ["TOKENS", "TOKEN_CHANGE", "TOKEN_CHANGES", "decode_token", "encode_token", "token_path"]

TOKENS: Final = "/delegation_token/tokens"
TOKEN_CHANGES: Final = "/delegation_token/token_changes"
TOKEN_CHANGE: Final = f"{TOKEN_CHANGES}/token_change_"
"""Path of an announcement, without its sequence number."""

_VERSION: Final = 3
_WITH_REQUESTER: Final = 3


def token_path(token_id: str) -> str:
    return f"{TOKENS}/{token_id}"


def encode_token(token: DelegationToken) -> bytes:
    content = {
        "version": _VERSION,
        "owner": sanitize(token.owner),
        "tokenRequester": sanitize(token.requester),
        "renewers": [sanitize(renewer) for renewer in token.renewers],
        "issueTimestamp": token.issue_ms,
        "maxTimestamp": token.max_ms,
        "expiryTimestamp": token.expiry_ms,
        "tokenId": token.token_id,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode_token(token_id: str, data: bytes) -> DelegationToken:
    """Returns the token. Raises BadNode if the node has no valid token, or that of another id."""
    try:
        content = json.loads(data.decode())
        if not 0 < content["version"] <= _VERSION or content["tokenId"] != token_id:
            raise ValueError
        owner = _principal(content["owner"])
        return DelegationToken(
            token_id,
            owner,
            _principal(content["tokenRequester"]) if content["version"] >= _WITH_REQUESTER else owner,
            tuple(map(_principal, content["renewers"])),
            issue_ms=_time(content["issueTimestamp"]),
            expiry_ms=_time(content["expiryTimestamp"]),
            max_ms=_time(content["maxTimestamp"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadNode(f"The node {token_path(token_id)} has no valid delegation token. Repair or delete it.") from None


def _principal(text: Any) -> str:
    principal = desanitize(text)
    if principal is None or ":" not in principal:
        raise ValueError
    return principal


def _time(value: Any) -> int:
    if value.__class__ is not int:
        raise ValueError
    return int(value)
