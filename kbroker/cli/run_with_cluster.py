"""Runs an asynchronous call to a cluster from a synchronous command, and turns failures into errors for users."""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from kbroker.cli.command import COMMAND_CONFIG, SELECTED_PROFILE
from kbroker.errors import PeerError, UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.connection_security import ConnectionSecurity

__all__ = ["run_with_cluster", "security_of"]

T = TypeVar("T")


def run_with_cluster(bootstrap: str, call: Callable[[Cluster], Awaitable[T]]) -> T:
    """Opens a cluster, runs `call` with it, and closes it. Raises UserError if the cluster cannot be used."""
    import trio

    from kbroker.client.address import parse_addresses
    from kbroker.client.cluster import open_cluster

    addresses = parse_addresses(bootstrap)
    security = security_of(bootstrap)

    async def run() -> T:
        async with open_cluster(addresses, client_id="kbroker-cli", security=security) as cluster:
            return await call(cluster)

    try:
        return trio.run(_run_until_interrupted, run)
    except BaseExceptionGroup as group:
        _raise_for_user(_first_failure(group), bootstrap)
    except (UserError, PeerError) as failure:
        _raise_for_user(failure, bootstrap)


def security_of(bootstrap: str) -> ConnectionSecurity | None:
    """Returns the security of --command-config, or else of the selected profile, if its addresses are used.

    Other addresses never get the secrets of a profile.
    """
    ctx = click.get_current_context(silent=True)
    properties = None if ctx is None else ctx.meta.get(COMMAND_CONFIG)
    if properties is not None:
        from kbroker.client.client_properties import client_security

        return client_security(properties, source="--command-config")
    profile = None if ctx is None else ctx.meta.get(SELECTED_PROFILE)
    if profile is None or profile.bootstrap != bootstrap or not profile.properties:
        return None
    from kbroker.client.client_properties import client_security

    return client_security(profile.properties, source=f"profile {profile.name}")


async def _run_until_interrupted(run: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of `run`. Ctrl-C cancels it and raises KeyboardInterrupt; a second Ctrl-C ends the process.

    Trio's own handler can raise KeyboardInterrupt between any two instructions, also between the creation of a
    coroutine and its await: Python then warns that the coroutine was never awaited.
    """
    import trio

    if threading.current_thread() is not threading.main_thread():
        return await run()  # signals arrive in the main thread only
    results: list[T] = []
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:

            async def cancel_on_interrupt() -> None:
                async for _ in signals:
                    signal.signal(signal.SIGINT, signal.SIG_DFL)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(cancel_on_interrupt)
            results.append(await run())
            nursery.cancel_scope.cancel()
    if not results:
        raise KeyboardInterrupt
    return results[0]


def _first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the first exception of a group. An interrupt has precedence: its exit code must be 130."""
    leaves = [
        _first_failure(exception) if isinstance(exception, BaseExceptionGroup) else exception
        for exception in group.exceptions
    ]
    return next((leaf for leaf in leaves if isinstance(leaf, KeyboardInterrupt)), leaves[0])


def _raise_for_user(failure: BaseException, bootstrap: str) -> NoReturn:
    from kbroker.client.failures import ConnectionFailed, CouldNotConnect, NoSuchGroup, NoSuchTopic

    if isinstance(failure, CouldNotConnect):
        # The address that failed is not always one of --bootstrap: the cluster may advertise others.
        source = "" if str(failure.address) == bootstrap else f" (--bootstrap {bootstrap})"
        raise UserError(f"{failure}{source}. Start a broker with 'kbroker serve', or set --bootstrap.")
    if type(failure) is ConnectionFailed and security_of(bootstrap) is None:
        # A listener with TLS or SASL closes the connection of a client that sends a plain request.
        raise UserError(f"{failure}. If the listener needs TLS or SASL, set --profile or --command-config.")
    if isinstance(failure, NoSuchTopic):
        raise UserError(f"Topic '{failure.topic}' does not exist. Run 'kbroker topics list' to see all topics.")
    if isinstance(failure, NoSuchGroup):
        raise UserError(f"Group '{failure.group}' does not exist. Run 'kbroker groups list' to see all groups.")
    if isinstance(failure, PeerError):
        raise UserError(f"{failure}. Check that --bootstrap {bootstrap} is a listener of a Kafka broker.")
    raise failure
