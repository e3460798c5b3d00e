"""Completes names of topics and groups in the shell: asks the broker, and completes nothing if it does not answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import click

from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

__all__ = ["complete_configured_name", "complete_group", "complete_topic"]

PATIENCE_SECONDS: Final = 2.0
"""A shell that waits for longer seems to hang."""


def complete_topic(ctx: click.Context, argument: click.Parameter, incomplete: str) -> list[str]:
    async def read(cluster: Cluster) -> list[str]:
        return [topic.name for topic in await cluster.topics()]

    return _complete(ctx, argument, incomplete, read)


def complete_group(ctx: click.Context, argument: click.Parameter, incomplete: str) -> list[str]:
    async def read(cluster: Cluster) -> list[str]:
        from kbroker.client.admin.groups import list_groups

        return [group.group_id for group in await list_groups(cluster)]

    return _complete(ctx, argument, incomplete, read)


def complete_configured_name(ctx: click.Context, argument: click.Parameter, incomplete: str) -> list[str]:
    """Completes NAME after the KIND of `kbroker configs`."""
    complete = {"topic": complete_topic, "group": complete_group}.get(ctx.params.get("kind") or "")
    return [] if complete is None else complete(ctx, argument, incomplete)


def _complete(
    ctx: click.Context, argument: click.Parameter, incomplete: str, read: Callable[[Cluster], Awaitable[Iterable[str]]]
) -> list[str]:
    from kbroker.cli.run_with_cluster import run_with_cluster

    async def call(cluster: Cluster) -> list[str]:
        import trio

        with trio.move_on_after(PATIENCE_SECONDS):
            return sorted(await read(cluster))
        return []

    try:
        found = run_with_cluster(ctx.params["bootstrap"], call)
    except (UserError, KeyError):
        return []
    given = ctx.params.get(argument.name or "") if argument.nargs == -1 else None
    # Internal topics only if they are asked for.
    return [
        name
        for name in found
        if name.startswith(incomplete)
        and name not in (given or ())
        and (incomplete.startswith("_") or not name.startswith("__"))
    ]
