"""From a synchronous command to the client and back: one loop for each call, and failures that say what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from kbroker.errors import PeerError, UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

__all__ = ["call_cluster"]

T = TypeVar("T")


def call_cluster(bootstrap: str, call: Callable[[Cluster], Awaitable[T]]) -> T:
    """Runs `call` with a cluster that is closed behind it."""
    import trio

    from kbroker.client.address import parse_addresses
    from kbroker.client.cluster import open_cluster

    addresses = parse_addresses(bootstrap)

    async def run() -> T:
        async with open_cluster(addresses, client_id="kbroker-cli") as cluster:
            return await call(cluster)

    try:
        return trio.run(run)
    except BaseExceptionGroup as group:
        _explain(_first_of(group), bootstrap)
    except (UserError, PeerError) as failure:
        _explain(failure, bootstrap)


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What the group is about: an interrupt before all else, then whatever came first."""
    leaves = [_first_of(each) if isinstance(each, BaseExceptionGroup) else each for each in group.exceptions]
    return next((each for each in leaves if isinstance(each, KeyboardInterrupt)), leaves[0])


def _explain(failure: BaseException, bootstrap: str) -> NoReturn:
    from kbroker.client.failures import ConnectionFailed, NoSuchGroup, NoSuchTopic

    if isinstance(failure, ConnectionFailed) and "nobody answers" in str(failure):
        where = "" if str(failure.address) == bootstrap else f" (asked for {bootstrap})"
        raise UserError(f"{failure}{where}: start a broker with 'kbroker serve', or name another with --bootstrap")
    if isinstance(failure, NoSuchTopic):
        raise UserError(f"there is no topic {failure.topic}: 'kbroker topics list' shows those there are")
    if isinstance(failure, NoSuchGroup):
        raise UserError(f"there is no group {failure.group}: 'kbroker groups list' shows those there are")
    if isinstance(failure, PeerError):
        raise UserError(f"{failure}: is --bootstrap {bootstrap} a Kafka broker without TLS?")
    raise failure
