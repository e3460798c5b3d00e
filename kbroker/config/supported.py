"""Properties that refuse the start, because kbroker without them would be less safe than the operator expects.

Security: kbroker has no TLS and no SASL. A broker that is configured for them must not run without them.
KRaft: kbroker has no quorum of controllers. Brokers that are configured for one must not become a cluster each.
"""

from __future__ import annotations

import re
from typing import Final

from kbroker.config.authorizer import authorizer_config
from kbroker.config.broker import BROKER_CONFIGS, BrokerConfig
from kbroker.errors import UserError

__all__ = ["check_supported"]

_SECURITY: Final = re.compile(
    r"(listener\.name\.[^.]+\.)?([^.]+\.)?(ssl|sasl)\..+"
    r"|zookeeper\.(ssl\..+|set\.acl)"
    r"|(listener\.name\.[^.]+\.)?(principal\.builder\.class|connections\.max\.reauth\.ms)"
    r"|delegation\.token\..+|security\..+|password\.encoder\..+"
)


def check_supported(config: BrokerConfig) -> None:
    """Raises UserError for the first property that asks for security or for a KRaft quorum."""
    for endpoint in config.endpoints:
        if endpoint.security_protocol != "PLAINTEXT":
            protocol = endpoint.security_protocol
            raise UserError(f"Unsupported security protocol {protocol}; only PLAINTEXT is supported.")
    for name, text in config.texts.items():
        if _SECURITY.fullmatch(name) and not _is_harmless(name, text):
            raise UserError(
                f"{name} is set, but kbroker has no TLS or SASL yet and would run without them. Remove {name} to "
                "accept that."
            )
    authorizer_config(config)
    if not config.zookeeper_connect:
        _check_quorum(config)


def _is_harmless(name: str, text: str) -> bool:
    key = BROKER_CONFIGS.get(name)
    if key is not None:
        return bool(key.parse(text) == key.default)
    return text.strip().lower() in ("", "false")


def _check_quorum(config: BrokerConfig) -> None:
    """Raises UserError unless this node is the whole KRaft cluster. Then these configs have no further effect."""
    voters = _names(config, "controller.quorum.voters")
    for name in ("controller.quorum.voters", "controller.quorum.bootstrap.servers"):
        if len(members := _names(config, name)) > 1:
            raise _several_nodes(f"{name} has {len(members)} members")
    roles = _names(config, "process.roles")
    if roles and set(roles) != {"broker", "controller"}:
        raise _several_nodes(f"process.roles={','.join(roles)} needs other nodes")
    if voters and config.broker_id >= 0 and voters[0].partition("@")[0].strip() != str(config.broker_id):
        raise _several_nodes(f"controller.quorum.voters has another node than node.id={config.broker_id}")


def _names(config: BrokerConfig, name: str) -> list[str]:
    value = config.value_of(name)
    assert isinstance(value, tuple)
    return [text for text in value if text]


def _several_nodes(problem: str) -> UserError:
    return UserError(
        f"{problem}, but kbroker has no KRaft quorum: each node would become a separate cluster. Set "
        "zookeeper.connect for a cluster, or process.roles=broker,controller and one voter for a single node."
    )
