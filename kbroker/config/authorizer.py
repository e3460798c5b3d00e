"""Configs of the authorizer: Kafka's class names, super users, and what is allowed without ACLs.

`super.users` and `allow.everyone.if.no.acl.found` are not in the table of broker configs, in Kafka neither: only the
authorizer reads them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.config.broker import BrokerConfig
from kbroker.errors import UserError

__all__ = ["AuthorizerConfig", "authorizer_config"]

_CLASSES: Final = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
_SUPER_USERS: Final = "super.users"
_WITHOUT_ACL: Final = "allow.everyone.if.no.acl.found"


class AuthorizerConfig(NamedTuple):
    super_users: frozenset[str]
    """Principals that may do everything, for example `User:admin`."""
    allows_without_acl: bool
    """Whether a resource without any ACL is open to all principals."""


def authorizer_config(config: BrokerConfig) -> AuthorizerConfig | None:
    """Returns None if no authorizer is configured. Raises UserError if kbroker does not have its class."""
    name = config.authorizer_class_name.strip()
    if not name:
        return None
    if name not in _CLASSES:
        raise UserError(
            f"authorizer.class.name must be {' or '.join(_CLASSES)}, not {name}: kbroker runs no Java class"
        )
    text = config.texts.get(_WITHOUT_ACL, "false").strip().lower()
    if text not in ("true", "false"):
        raise UserError(f"{_WITHOUT_ACL} must be true or false, not {text}")
    return AuthorizerConfig(_principals(config.texts.get(_SUPER_USERS, "")), text == "true")


def _principals(text: str) -> frozenset[str]:
    principals = [principal.strip() for principal in text.split(";") if principal.strip()]
    for principal in principals:
        if ":" not in principal:
            raise UserError(f"{_SUPER_USERS}: expected principals like User:admin, separated by ';', got {principal}")
    return frozenset(principals)
