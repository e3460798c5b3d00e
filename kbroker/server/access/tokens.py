"""Creates the store of delegation tokens from configs. A broker without `delegation.token.secret.key` has none."""

from __future__ import annotations

import os

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.controller.token_store import TokenStore
from kbroker.controller.trees.tree import Tree
from kbroker.security.delegation_token import TokenRules

__all__ = ["open_tokens"]


async def open_tokens(config: BrokerConfig, secret_key: str, tree: Tree, clock: Clock) -> TokenStore:
    """Returns the store once all tokens are read."""
    rules = TokenRules(secret_key, config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms)
    tokens = TokenStore(tree, rules, clock, random_bytes=os.urandom, timeout_s=config.request_timeout_ms / 1000)
    await tokens.load()
    return tokens
