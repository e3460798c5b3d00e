"""Parses and validates the configs `listeners` and `advertised.listeners`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.config.broker import BrokerConfig

__all__ = [
    "SECURITY_PROTOCOLS",
    "Endpoint",
    "advertised_endpoints",
    "format_address",
    "inter_broker_endpoint",
    "listener_endpoints",
]


def format_address(host: str, port: int) -> str:
    """Returns HOST:PORT; an IPv6 host is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Endpoint(NamedTuple):
    """A named listener. Port 0 means any free port, an empty host means all interfaces."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        return f"{self.name}://{format_address(self.host, self.port)}"


SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_WILDCARDS: Final = ("0.0.0.0", "::")


def listener_endpoints(config: BrokerConfig) -> tuple[Endpoint, ...]:
    found = _parse_endpoints("listeners", config.listeners, config)
    if not found:
        raise UserError("listeners is empty: at least one NAME://HOST:PORT is required")
    by_address: dict[tuple[str, int], Endpoint] = {}
    for endpoint in found:
        # Port 0 never conflicts: a negative number makes its key unique.
        other = by_address.setdefault((endpoint.host, endpoint.port or -len(by_address) - 1), endpoint)
        if other is not endpoint:
            raise UserError(f"Each listener must have a different address: {other} and {endpoint} have the same")
    return found


def advertised_endpoints(config: BrokerConfig) -> tuple[Endpoint, ...]:
    found = _parse_endpoints("advertised.listeners", config.advertised_listeners or config.listeners, config)
    names = {endpoint.name for endpoint in config.endpoints}
    for endpoint in found:
        if endpoint.host in _WILDCARDS:
            raise UserError(
                f"Clients cannot connect to {endpoint.host}: set advertised.listeners to an address they can reach"
            )
        if endpoint.name not in names:
            raise UserError(f"advertised.listeners has {endpoint}, but listeners has no listener {endpoint.name}")
    return found


def inter_broker_endpoint(config: BrokerConfig) -> Endpoint:
    """Returns the advertised endpoint of connections between brokers.

    It is the listener of inter.broker.listener.name, or has the protocol of security.inter.broker.protocol. Raises
    UserError if there is none. A single node has no such connections: there, any listener will do.
    """
    name, protocol = config.inter_broker_listener_name, config.security_inter_broker_protocol
    is_protocol_set = "security.inter.broker.protocol" in config.texts
    if name is not None and is_protocol_set:
        raise UserError("Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.")
    endpoints = config.advertised_endpoints
    wanted = protocol if name is None else name.upper()
    found = [endpoint for endpoint in endpoints if endpoint.name == wanted]
    if not found and name is None:
        found = [endpoint for endpoint in endpoints if endpoint.security_protocol == protocol]
        if not found and not is_protocol_set and not config.zookeeper_connect:
            return endpoints[0]
    if not found:
        names = ",".join(endpoint.name for endpoint in endpoints)
        raise UserError(
            f"inter.broker.listener.name must be a listener name defined in advertised.listeners: {wanted} is none. "
            f"The valid options based on currently configured listeners are {names}"
        )
    return found[0]


def _parse_endpoints(source: str, texts: tuple[str, ...], config: BrokerConfig) -> tuple[Endpoint, ...]:
    protocols = _protocols(config)
    endpoints: dict[str, Endpoint] = {}
    for text in filter(None, texts):
        name, separator, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        name = name.upper()
        if not (separator and colon and port.isascii() and port.isdigit() and int(port) < 65536 and name):
            raise UserError(f"{source} has the invalid listener '{text}': expected NAME://HOST:PORT")
        if name in endpoints:
            raise UserError(f"{source} has the listener name {name} twice")
        if name in (other.upper() for other in config.controller_listener_names):
            continue
        if name not in protocols:
            raise UserError(
                f"No security protocol defined for listener {name}: add it to listener.security.protocol.map"
            )
        endpoints[name] = Endpoint(name, host.removeprefix("[").removesuffix("]"), int(port), protocols[name])
    return tuple(endpoints.values())


def _protocols(config: BrokerConfig) -> dict[str, str]:
    protocols: dict[str, str] = {}
    for pair in config.listener_security_protocol_map:
        name, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not colon or protocol not in SECURITY_PROTOCOLS:
            raise UserError(f"listener.security.protocol.map has the invalid entry '{pair}': expected NAME:PROTOCOL")
        protocols[name] = protocol
    return protocols
