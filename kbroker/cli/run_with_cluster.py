"""Runs an asynchronous call to a cluster from a synchronous command, and turns failures into errors for users."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from kbroker.errors import PeerError, UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

__all__ = ["run_with_cluster"]

T = TypeVar("T")


def run_with_cluster(bootstrap: str, call: Callable[[Cluster], Awaitable[T]]) -> T:
    """Opens a cluster, runs `call` with it, and closes it. Raises UserError if the cluster cannot be used."""
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
        _raise_for_user(_first_failure(group), bootstrap)
    except (UserError, PeerError) as failure:
        _raise_for_user(failure, bootstrap)


def _first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the first exception of a group. An interrupt has precedence: its exit code must be 130."""
    leaves = [
        _first_failure(exception) if isinstance(exception, BaseExceptionGroup) else exception
        for exception in group.exceptions
    ]
    return next((leaf for leaf in leaves if isinstance(leaf, KeyboardInterrupt)), leaves[0])


def _raise_for_user(failure: BaseException, bootstrap: str) -> NoReturn:
    from kbroker.client.failures import CouldNotConnect, NoSuchGroup, NoSuchTopic

    if isinstance(failure, CouldNotConnect):
        # The address that failed is not always one of --bootstrap: the cluster may advertise others.
        source = "" if str(failure.address) == bootstrap else f" (--bootstrap {bootstrap})"
        raise UserError(f"{failure}{source}. Start a broker with 'kbroker serve', or set --bootstrap.")
    if isinstance(failure, NoSuchTopic):
        raise UserError(f"Topic '{failure.topic}' does not exist. Run 'kbroker topics list' to see all topics.")
    if isinstance(failure, NoSuchGroup):
        raise UserError(f"Group '{failure.group}' does not exist. Run 'kbroker groups list' to see all groups.")
    if isinstance(failure, PeerError):
        raise UserError(f"{failure}. Check that --bootstrap {bootstrap} is a PLAINTEXT listener of a Kafka broker.")
    raise failure
