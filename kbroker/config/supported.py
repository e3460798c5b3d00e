"""Properties that refuse the start, because kbroker without them would be less safe than the operator expects.

Security: a broker that is configured for a protection that kbroker does not have must not run without it.
KRaft: kbroker has no quorum of controllers. Brokers that are configured for one must not become a cluster each.
"""

from __future__ import annotations

import re
from typing import Final

from kbroker.config.authorizer import authorizer_config
from kbroker.config.broker import BROKER_CONFIGS, BrokerConfig
from kbroker.config.listener import split_name
from kbroker.errors import UserError

__all__ = ["check_supported"]

_SECURITY: Final = re.compile(
    r"([^.]+\.)?(ssl|sasl)\..+"
    r"|zookeeper\.(ssl\..+|set\.acl)"
    r"|principal\.builder\.class|connections\.max\.reauth\.ms"
    r"|delegation\.token\..+|security\..+|password\.encoder\..+"
)
_HARMLESS: Final = frozenset(
    {
        "security.providers",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "zookeeper.ssl.keystore.type",
        "zookeeper.ssl.truststore.type",
    }
)
"""Configs without effect that make nothing safer: a warning is enough."""


def check_supported(config: BrokerConfig) -> None:
    """Raises UserError if a property asks for security that kbroker lacks, or for a KRaft quorum."""
    for name, text in config.texts.items():
        if not _is_supported(name, text):
            raise UserError(
                f"{name} is set, but kbroker does not support it yet and would run without it. Remove {name} to accept "
                "that."
            )
    if config.texts.get("control.plane.listener.name"):
        raise UserError(
            "control.plane.listener.name is set, but kbroker has no listener of its own for requests of the "
            "controller. Remove it: these requests then use the listener between brokers."
        )
    authorizer_config(config)
    if not config.zookeeper_connect:
        _check_quorum(config)
        _check_zookeeper(config)


def _is_supported(name: str, text: str) -> bool:
    """Whether a property has an effect, or asks for no security."""
    prefixed = split_name(name)
    base = name if prefixed is None else prefixed.base
    key = BROKER_CONFIGS.get(base)
    if not _SECURITY.fullmatch(base) or base in _HARMLESS:
        return True
    if key is not None:
        return key.has_effect or bool(key.parse(text) == key.default)
    return text.strip().lower() in ("", "false")


def _check_zookeeper(config: BrokerConfig) -> None:
    """Raises UserError if the connection to a ZooKeeper must be safe, but there is none."""
    for name, is_set in (
        ("zookeeper.ssl.client.enable", config.zookeeper_ssl_client_enable),
        ("zookeeper.set.acl", config.zookeeper_set_acl),
    ):
        if is_set:
            raise UserError(
                f"{name}=true has no effect without zookeeper.connect: this broker would be a cluster of its own. Set "
                f"zookeeper.connect, or remove {name} for a single node."
            )


def _check_quorum(config: BrokerConfig) -> None:
    """Raises UserError if the KRaft cluster has other nodes. Otherwise these configs have no further effect."""
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
