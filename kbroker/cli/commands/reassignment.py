"""Commands that move replicas: `kbroker cluster balance`, `drain`, `replace`, `reassign`; `kbroker topics replicas`.

Each shows its plan first. It runs the plan with --yes, or if the user agrees on a terminal. `kbroker cluster moves`
shows the moves under way.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING, Final, NamedTuple

import click

from kbroker.cli.command import Command, Function, bootstrap_option, check_topic_name, json_option
from kbroker.cli.name_completion import complete_topic
from kbroker.cli.output import format_bytes, pluralize
from kbroker.cli.reassignment_report import (
    ProgressLine,
    print_moves,
    print_moves_json,
    print_plan,
    print_plan_json,
)
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.reassignment.execution import MoveRunner
    from kbroker.client.reassignment.layout import ClusterLayout, PartitionMove, ReassignmentPlan
    from kbroker.names import TopicPartition

    MakePlan = Callable[[Cluster, ClusterLayout], Awaitable[ReassignmentPlan]]

__all__ = ["RunSettings", "balance", "drain", "is_confirmed", "moves", "reassign", "replace", "replicas"]

DEFAULT_MOVES_PER_BROKER: Final = 5
_NO_MOVES: Final = "No partition is moving."


class RunSettings(NamedTuple):
    bootstrap: str
    throttle: int | None
    moves_per_broker: int
    yes: bool
    as_json: bool


class _Planned(NamedTuple):
    plan: ReassignmentPlan
    layout: ClusterLayout


def _run_options(function: Function) -> Function:
    """Adds the options of commands that run a plan."""
    options = (
        click.option(
            "--throttle",
            type=click.IntRange(1),
            metavar="BYTES",
            help="Maximum bytes per second to copy to and from each broker. [default: unlimited]",
        ),
        click.option(
            "--moves-per-broker",
            type=click.IntRange(1),
            metavar="N",
            default=DEFAULT_MOVES_PER_BROKER,
            show_default=True,
            help="Partitions that a broker copies at a time.",
        ),
        click.option("--yes", "-y", is_flag=True, help="Run the plan without confirmation."),
        json_option,
        bootstrap_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command(
    "balance",
    cls=Command,
    examples=[
        ("kbroker cluster balance", "Show the plan; on a terminal, ask whether to run it"),
        ("kbroker cluster balance --yes --throttle 20000000", "Run it, and copy at most 20 MB per second"),
        ("kbroker cluster balance --cancel --yes", "Cancel all moves in progress"),
    ],
)
@click.option("--cancel", "is_cancel", is_flag=True, help="Cancel all moves in progress, also those of other commands.")
@_run_options
def balance(
    is_cancel: bool, bootstrap: str, throttle: int | None, moves_per_broker: int, yes: bool, as_json: bool
) -> None:
    """Spread replicas and leaders evenly over the brokers, with the fewest moves.

    Shows the plan first. Replicas of a partition stay in different racks. If moves are in progress, waits for them and
    then plans the rest.
    """
    settings = RunSettings(bootstrap, throttle, moves_per_broker, yes, as_json)
    if is_cancel:
        _cancel(settings)
        return

    async def make_plan(_cluster: Cluster, layout: ClusterLayout) -> ReassignmentPlan:
        from kbroker.client.reassignment.planner import plan_balance

        return plan_balance(layout)

    _run(settings, make_plan, elects_all=True)


@click.command(
    "drain",
    cls=Command,
    examples=[
        ("kbroker cluster drain 4", "Show how the replicas of broker 4 would move; on a terminal, ask"),
        ("kbroker cluster drain 4 --yes", "Move all replicas of broker 4, before it is shut down"),
    ],
)
@click.argument("broker", type=click.IntRange(0))
@_run_options
def drain(broker: int, bootstrap: str, throttle: int | None, moves_per_broker: int, yes: bool, as_json: bool) -> None:
    """Move all replicas of BROKER to other brokers.

    The broker may be down, if other replicas of its partitions are in sync.
    """

    async def make_plan(_cluster: Cluster, layout: ClusterLayout) -> ReassignmentPlan:
        from kbroker.client.reassignment.planner import plan_drain

        return plan_drain(layout, broker)

    _run(RunSettings(bootstrap, throttle, moves_per_broker, yes, as_json), make_plan)


@click.command(
    "replace",
    cls=Command,
    examples=[
        ("kbroker cluster replace 2 5", "Show how the replicas of broker 2 would move to broker 5; on a terminal, ask"),
        ("kbroker cluster replace 2 5 --yes --throttle 20000000", "Move them, and copy at most 20 MB per second"),
    ],
)
@click.argument("old", type=click.IntRange(0))
@click.argument("new", type=click.IntRange(0))
@_run_options
def replace(
    old: int, new: int, bootstrap: str, throttle: int | None, moves_per_broker: int, yes: bool, as_json: bool
) -> None:
    """Move all replicas of the broker OLD to the broker NEW.

    OLD may be down, if other replicas of its partitions are in sync. If NEW already has a replica of a
    partition, another broker gets the replica of OLD.
    """

    async def make_plan(_cluster: Cluster, layout: ClusterLayout) -> ReassignmentPlan:
        from kbroker.client.reassignment.planner import plan_replacement

        return plan_replacement(layout, old=old, new=new)

    _run(RunSettings(bootstrap, throttle, moves_per_broker, yes, as_json), make_plan)


@click.command(
    "reassign",
    cls=Command,
    examples=[
        ("kbroker cluster reassign plan.json", "Show the moves of a file; on a terminal, ask"),
        (
            "kbroker cluster reassign plan.json --yes --save rollback.json",
            "Run them; 'kbroker cluster reassign rollback.json' is the way back",
        ),
    ],
)
@click.argument("file", type=click.File("r"))
@click.option(
    "--save",
    "saved",
    type=click.File("w", lazy=True),
    help="Save the current replicas of the partitions that move to a file of the same format.",
)
@_run_options
def reassign(
    file: IO[str],
    saved: IO[str] | None,
    bootstrap: str,
    throttle: int | None,
    moves_per_broker: int,
    yes: bool,
    as_json: bool,
) -> None:
    """Move partitions to the replicas that FILE lists.

    FILE is the JSON file of kafka-reassign-partitions: {"partitions": [{"topic": "orders", "partition": 0, "replicas":
    [1, 2]}]}. The first replica is the preferred leader. Moves between the directories of a broker are not supported.
    """
    from kbroker.cli.assignment_file import format_assignment, read_assignment

    assignment = read_assignment(file)

    async def make_plan(_cluster: Cluster, layout: ClusterLayout) -> ReassignmentPlan:
        from kbroker.client.reassignment.planner import plan_assignment

        plan = plan_assignment(layout, assignment)
        if saved is not None:
            saved.write(format_assignment(plan.moves))
            saved.flush()  # before the moves: the command may be killed
        return plan

    _run(RunSettings(bootstrap, throttle, moves_per_broker, yes, as_json), make_plan)


@click.command(
    "moves",
    cls=Command,
    examples=[
        ("kbroker cluster moves", "Show the partitions whose replicas are moving"),
        ("kbroker cluster moves --json", "The same as JSON"),
    ],
)
@json_option
@bootstrap_option
def moves(as_json: bool, bootstrap: str) -> None:
    """Show moves in progress: partitions whose replicas are being copied to other brokers."""
    running = _read_running(bootstrap)
    if as_json:
        print_moves_json(running)
    elif running:
        print_moves(running)
    else:
        click.echo(_NO_MOVES)


@click.command(
    "replicas",
    cls=Command,
    examples=[
        ("kbroker topics replicas orders 3", "Show where the new replicas would be; on a terminal, ask"),
        ("kbroker topics replicas orders 3 --yes", "Give each partition of a topic three replicas"),
    ],
)
@click.argument("name", metavar="TOPIC", callback=check_topic_name, shell_complete=complete_topic)
@click.argument("count", metavar="N", type=click.IntRange(1))
@_run_options
def replicas(
    name: str, count: int, bootstrap: str, throttle: int | None, moves_per_broker: int, yes: bool, as_json: bool
) -> None:
    """Change the number of replicas of a topic to N.

    New replicas go to the brokers with the fewest replicas, in other racks than the existing ones.
    """

    async def make_plan(cluster: Cluster, layout: ClusterLayout) -> ReassignmentPlan:
        from kbroker.client.admin.configs import min_insync_replicas
        from kbroker.client.reassignment.planner import plan_replicas

        await cluster.topic(name)
        racks = set(layout.known_racks.values())
        if racks and count > len(racks):
            click.echo(f"There are only {pluralize(len(racks), 'rack')}: replicas of a partition share them.", err=True)
        return plan_replicas(layout, name, count, min_insync_replicas=await min_insync_replicas(cluster, name))

    _run(RunSettings(bootstrap, throttle, moves_per_broker, yes, as_json), make_plan)


# Running a plan


def _run(settings: RunSettings, make_plan: MakePlan, *, elects_all: bool = False) -> None:
    """Waits for moves under way, shows the plan, asks, and runs it.

    `elects_all`: elects the preferred leaders of all partitions at the end, not only of those that moved. The questions
    are asked between calls to the cluster: Ctrl-C would not end a question inside.
    """
    _wait_for_others(settings)

    async def read(cluster: Cluster) -> _Planned:
        from kbroker.client.reassignment.requests import read_layout

        layout = await read_layout(cluster)
        return _Planned(await make_plan(cluster, layout), layout)

    plan, layout = run_with_cluster(settings.bootstrap, read)
    elected = _keys_to_elect(layout) if elects_all else []
    if settings.as_json:
        print_plan_json(plan, layout.racks)
    elif plan.moves:
        print_plan(plan, layout.racks)
    if not plan.moves and not elected:
        if not settings.as_json:
            click.echo("Nothing to move.")
        return
    if not plan.moves and not settings.as_json:
        click.echo(f"Nothing to move. {_led_by_others(elected)}")
    if is_confirmed("Run this plan?", settings):
        _execute(settings, plan, elects_all=elects_all)


def _led_by_others(keys: Sequence[TopicPartition]) -> str:
    verb = "is" if len(keys) == 1 else "are"
    return f"{pluralize(len(keys), 'partition')} {verb} not led by the preferred leader."


def _keys_to_elect(layout: ClusterLayout) -> list[TopicPartition]:
    from kbroker.client.reassignment.execution import without_preferred_leader

    return without_preferred_leader(layout.partitions)


def is_confirmed(question: str, settings: RunSettings) -> bool:
    """Whether to go on: with --yes, or if the user agrees on a terminal. Says that nothing was changed, if not."""
    if settings.yes:
        return True
    if not sys.stdin.isatty():
        click.echo("Nothing was changed. Add --yes to run this plan.", err=True)
        return False
    if click.confirm(question, err=True):
        return True
    click.echo("Nothing was changed.", err=True)
    return False


def _read_running(bootstrap: str) -> list[PartitionMove]:
    async def read(cluster: Cluster) -> list[PartitionMove]:
        from kbroker.client.reassignment.requests import list_moves, read_layout

        if not await list_moves(cluster):
            return []
        return await list_moves(cluster, await read_layout(cluster))

    return run_with_cluster(bootstrap, read)


def _wait_for_others(settings: RunSettings) -> None:
    """Follows moves under way to their end, as after an interrupted run, and removes their throttle.

    Raises UserError if there is neither --yes nor a terminal.
    """
    running = _read_running(settings.bootstrap)
    if not running:
        return
    if not settings.as_json:
        print_moves(running)
    moving = f"{pluralize(len(running), 'partition')} {'is' if len(running) == 1 else 'are'} moving already"
    if not settings.yes and not sys.stdin.isatty():
        raise UserError(
            f"{moving}. Add --yes to wait for the end of the moves, or run 'kbroker cluster balance --cancel --yes'."
        )
    click.echo(f"{moving}.", err=True)
    if not settings.yes and not click.confirm("Wait for the end of the moves?", err=True):
        raise UserError("Nothing was changed")

    async def follow(cluster: Cluster) -> None:
        from kbroker.client.reassignment.throttle import remove_throttle, throttled

        await cluster.refresh([])
        async with _runner(cluster, settings) as runner, throttled(cluster, running, settings.throttle):
            followed = await runner.follow(running)
        await remove_throttle(cluster, followed)  # of the run that was interrupted

    run_with_cluster(settings.bootstrap, follow)


def _execute(settings: RunSettings, plan: ReassignmentPlan, *, elects_all: bool) -> None:
    async def call(cluster: Cluster) -> int:
        from kbroker.client.reassignment.execution import elect_preferred
        from kbroker.client.reassignment.requests import read_layout
        from kbroker.client.reassignment.throttle import throttled

        await cluster.refresh([])
        async with _runner(cluster, settings) as runner, throttled(cluster, plan.moves, settings.throttle):
            await runner.run(plan.moves)
        moved = {move.key for move in plan.moves}
        keys = _keys_to_elect(await read_layout(cluster))
        return await elect_preferred(cluster, [key for key in keys if elects_all or key in moved])

    try:
        elected = run_with_cluster(settings.bootstrap, call)
    except KeyboardInterrupt:
        click.echo(
            "Moves that have started continue in the cluster, without a throttle. Run the command again to wait for "
            "them, or 'kbroker cluster balance --cancel' to cancel them.",
            err=True,
        )
        raise
    click.echo(
        f"Moved {pluralize(len(plan.moves), 'partition')}: copied {pluralize(plan.added_replicas, 'replica')} "
        f"({format_bytes(plan.copied_bytes)}). Elected {pluralize(elected, 'preferred leader')}.",
        err=settings.as_json,
    )


@asynccontextmanager
async def _runner(cluster: Cluster, settings: RunSettings) -> AsyncIterator[MoveRunner]:
    """Yields a runner with a progress line."""
    from kbroker.client.reassignment.execution import MoveRunner

    line = ProgressLine()
    try:
        yield MoveRunner(cluster, line.show, moves_per_broker=settings.moves_per_broker)
    finally:
        line.end()


def _cancel(settings: RunSettings) -> None:
    running = _read_running(settings.bootstrap)
    if not running:
        click.echo(_NO_MOVES)
        return
    print_moves(running)
    if not is_confirmed("Cancel these moves?", settings):
        return

    async def call(cluster: Cluster) -> None:
        from kbroker.client.reassignment.requests import cancel_moves
        from kbroker.client.reassignment.throttle import remove_throttle

        await cluster.refresh([])
        await cancel_moves(cluster, running)
        await remove_throttle(cluster, running)

    run_with_cluster(settings.bootstrap, call)
    click.echo(f"Cancelled the moves of {pluralize(len(running), 'partition')}.")
