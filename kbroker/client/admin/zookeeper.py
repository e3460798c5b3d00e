"""Health of the ZooKeeper servers of a cluster: the brokers name the servers, and each server answers `srvr` itself.

`srvr` is the only four-letter command that ZooKeeper allows without configuration. The servers may be reachable for the
brokers only: a server that does not answer here may be well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import trio

from kbroker.client.address import Address, parse_addresses
from kbroker.client.cluster import Cluster
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, NotServed
from kbroker.errors import UserError

__all__ = ["ZooKeeperHealth", "ZooKeeperServer", "parse_srvr", "read_zookeeper_health"]

NOT_SERVING: Final = "not serving"
UNREACHABLE: Final = "unreachable"
UNKNOWN: Final = "unknown"

_CONNECT: Final = "zookeeper.connect"
_DEFAULT_PORT: Final = 2181
_TIMEOUT_SECONDS: Final = 3.0
_LONGEST_ANSWER: Final = 64 * 1024
_VERSION: Final = re.compile(r"^Zookeeper version: ([0-9.]+)", re.MULTILINE)
_MODE: Final = re.compile(r"^Mode: (\w+)", re.MULTILINE)


class ZooKeeperServer(NamedTuple):
    address: Address
    state: str
    """leader, follower, observer or standalone; `NOT_SERVING`, `UNREACHABLE`, or `UNKNOWN` if `srvr` is forbidden."""
    version: str | None


class ZooKeeperHealth(NamedTuple):
    path: str
    """Path of the cluster in ZooKeeper."""
    servers: tuple[ZooKeeperServer, ...]

    @property
    def problem(self) -> str | None:
        """Returns one sentence if the servers have no quorum, as far as this machine can see."""
        states = {server.state for server in self.servers}
        if states == {UNREACHABLE}:
            return "No ZooKeeper server is reachable from this machine."
        if states <= {NOT_SERVING, UNREACHABLE}:
            return "ZooKeeper has no quorum: leaders, ISRs, topics and configs cannot change."
        return None


async def read_zookeeper_health(cluster: Cluster) -> ZooKeeperHealth | None:
    """Returns None if the brokers use no ZooKeeper, or do not name it to this client."""
    connect = await _read_connect(cluster)
    if not connect:
        return None
    hosts, _slash, path = connect.partition("/")
    addresses = _addresses(hosts)
    servers: dict[Address, ZooKeeperServer] = {}

    async def ask(address: Address) -> None:
        servers[address] = await _read_server(address)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(ask, address)
    return ZooKeeperHealth(f"/{path}", tuple(servers[address] for address in addresses))


async def _read_connect(cluster: Cluster) -> str | None:
    from kbroker.client.admin.configs import describe_configs
    from kbroker.config.resources import ConfigResourceType

    for broker_id in sorted(cluster.brokers):
        try:
            entries = await describe_configs(cluster, ConfigResourceType.BROKER, str(broker_id), keys=[_CONNECT])
        except (BrokerRefusal, ConnectionFailed, NotServed):
            continue
        return next((entry.value for entry in entries if entry.name == _CONNECT), None)
    return None


def _addresses(hosts: str) -> Sequence[Address]:
    """Returns the addresses of `zookeeper.connect`, whose default port is 2181; none if they cannot be read."""
    parts = [part.strip() for part in hosts.split(",")]
    with_ports = (part if re.search(r":\d+$", part) else f"{part}:{_DEFAULT_PORT}" for part in parts)
    try:
        return list(dict.fromkeys(parse_addresses(",".join(with_ports))))
    except UserError:
        return ()


async def _read_server(address: Address) -> ZooKeeperServer:
    answer = b""
    try:
        with trio.fail_after(_TIMEOUT_SECONDS):
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await stream.send_all(b"srvr")
                while len(answer) < _LONGEST_ANSWER and (data := await stream.receive_some()):
                    answer += data
    except (OSError, trio.TooSlowError):
        return ZooKeeperServer(address, UNREACHABLE, None)
    except trio.BrokenResourceError:
        pass  # a port that expects TLS breaks the connection
    return parse_srvr(address, answer.decode(errors="replace"))


def parse_srvr(address: Address, answer: str) -> ZooKeeperServer:
    """Parses the answer to `srvr`. Anything else than ZooKeeper's lines is `UNKNOWN`."""
    version, mode = _VERSION.search(answer), _MODE.search(answer)
    if mode is not None:
        return ZooKeeperServer(address, mode[1], version[1] if version else None)
    state = NOT_SERVING if "not currently serving requests" in answer else UNKNOWN
    return ZooKeeperServer(address, state, None)
