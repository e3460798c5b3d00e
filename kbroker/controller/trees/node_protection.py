"""Access rights of nodes in ZooKeeper when `zookeeper.set.acl` is true, as in Kafka 3.9 (ZkData)."""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["Protection", "protection_of"]

# They hold secrets: hashes of passwords, configs of brokers, delegation tokens.
_SECRET: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")
_CONSUMERS: Final = "/consumers"


class Protection(Enum):
    OPEN = "everybody may do everything"
    READABLE = "everybody may read, the creator may do everything"
    SECRET = "the creator may do everything, nobody else may do anything"


def protection_of(path: str) -> Protection:
    if path == _CONSUMERS:
        return Protection.OPEN  # consumers of old clients write below it
    return Protection.SECRET if path.startswith(_SECRET) else Protection.READABLE
