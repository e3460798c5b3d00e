"""Creates the authorizer and its ACL store from configs. A broker without an authorizer never imports it."""

from __future__ import annotations

from kbroker.clock import Clock
from kbroker.config.authorizer import AuthorizerConfig
from kbroker.controller.acl_store import AclStore
from kbroker.controller.trees.tree import Tree
from kbroker.security.acls.decision import AclRules
from kbroker.security.acls.index import AclIndex
from kbroker.server.access.acl_authorizer import AclAuthorizer

__all__ = ["AclAccess", "open_acls"]


class AclAccess:
    """ACLs of a broker: `authorizer` decides, `store` reads and writes them."""

    def __init__(self, config: AuthorizerConfig, tree: Tree, clock: Clock, *, timeout_s: float) -> None:
        index = AclIndex(AclRules(config.super_users, config.allows_without_acl))
        self.store = AclStore(tree, index, clock, timeout_s=timeout_s)
        self.authorizer = AclAuthorizer(index, clock)


async def open_acls(config: AuthorizerConfig, tree: Tree, clock: Clock, *, timeout_s: float) -> AclAccess:
    """Returns the ACLs once all entries are read. Raises UserError if a node of the tree is damaged."""
    acls = AclAccess(config, tree, clock, timeout_s=timeout_s)
    await acls.store.load()
    return acls
