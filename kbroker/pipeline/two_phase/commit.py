"""The driver's part: decides each batch, ends its transactions, and finishes or undoes what a crash has left.

    begun      old transactions of this sink are aborted; the tasks write, each in a transaction that it leaves open
    written    all tasks have returned their transactions
    deciding   the new decision is on disk, but not under its name
    decided    the decision is recorded: from here on the batch is committed, whatever happens
    ended      one transaction is committed (once for each of them)
    finished   all are committed

A crash before "decided" leaves open transactions, which the next run aborts before it writes the batch again. A crash
after it leaves a decision, which the next run finishes without writing. Tests stop the driver at each step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import trio

from kbroker.client.address import parse_addresses
from kbroker.client.admin.transactions import abort_transaction, list_transactions
from kbroker.client.cluster import Cluster, open_cluster
from kbroker.client.transactional_producing import (
    ProducerTransaction,
    TransactionForgotten,
    TransactionLost,
    end_transaction,
    init_producer,
)
from kbroker.clock import Clock, SystemClock
from kbroker.errors import UserError
from kbroker.pipeline.client_options import connection_security
from kbroker.pipeline.two_phase.decision import FINISHED, BatchDecision, DecisionFile, TaskResult
from kbroker.pipeline.two_phase.settings import SinkSettings, read_settings
from kbroker.pipeline.two_phase.task import TaskPlan

__all__ = ["STEPS", "BatchCommitter", "abort_open", "end_all"]

T = TypeVar("T")

STEPS: Final = ("begun", "written", "deciding", "decided", "ended", "finished")
_ONGOING: Final = "Ongoing"
# A batch that took longer than this part of the transaction timeout is not committed: the broker could abort it.
_USABLE_TIMEOUT: Final = 0.9
_NAME: Final = re.compile(r"[\w.-]+")


class Ends(NamedTuple):
    """Transactions that could be committed with the ones that may begin next, and those that were lost."""

    committed: dict[int, ProducerTransaction | None]
    lost: list[TaskResult]


class BatchCommitter:
    """`write` is called with each batch, in the order of the batch ids; a batch may be repeated after a crash."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        directory: str | os.PathLike[str],
        options: Mapping[str, str],
        *,
        on_step: Callable[[str], None] = lambda step: None,
        clock: Clock | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise UserError(f"The name of the sink is '{name}'; use letters, digits, '.', '_' and '-'.")
        self.settings: SinkSettings = read_settings(bootstrap, options)
        self._name = name
        self._decisions = DecisionFile(directory, name)
        self._on_step = on_step
        self._clock = clock or SystemClock()
        self._run: str | None = None
        self._leases: dict[int, ProducerTransaction] = {}

    def close(self) -> None:
        """Releases the lock of the directory."""
        self._decisions.close()

    def write(
        self, batch_id: int, run_tasks: Callable[[TaskPlan], list[TaskResult]], *, may_speculate: bool = False
    ) -> int:
        """Writes a batch exactly once. Returns the number of records, 0 if an earlier run had committed them.

        `run_tasks` runs the tasks and returns the result of the accepted attempt of each. `may_speculate`: Spark may
        run several attempts of a task at a time.
        """
        self._decisions.lock()
        decision = self._decisions.read()
        if decision is not None and decision.batch_id > batch_id:
            raise UserError(
                f"Sink '{self._name}' has committed batch {decision.batch_id}, but the query repeats batch {batch_id}: "
                "its checkpoint is older than the sink's, or deleted. Use the checkpoint that belongs to "
                f"{self._decisions.path}, or a new name and directory for the sink."
            )
        if decision is not None and decision.batch_id == batch_id and self._finish(decision):
            return 0
        try:
            return self._write(batch_id, run_tasks, may_speculate=may_speculate)
        except BaseException:
            self._run = None  # what this attempt has left is aborted before the next one writes
            raise

    def _write(self, batch_id: int, run_tasks: Callable[[TaskPlan], list[TaskResult]], *, may_speculate: bool) -> int:
        started_s = self._clock.monotonic()
        if self._run is None:
            self._leases = {}
            self._in_cluster(self._abort_open, frozenset())
            self._run = os.urandom(6).hex()
        self._on_step("begun")
        prefix = f"{self._name}/{self._run}/{batch_id}"
        results = run_tasks(TaskPlan(self.settings, prefix, dict(self._leases)))
        self._on_step("written")
        if may_speculate or any(result.attempt for result in results):
            self._in_cluster(self._abort_losers, results)
        written = tuple(result for result in results if result.transaction is not None)
        self._refuse_if_late(started_s)
        if written:
            decision = BatchDecision(batch_id, written)
            self._decisions.record(decision, on_written=lambda: self._on_step("deciding"))
            self._on_step("decided")
            if not self._finish(decision):
                raise UserError(f"The broker aborted all transactions of batch {batch_id}. Run the query again.")
        return sum(result.record_count for result in written)

    def _refuse_if_late(self, started_s: float) -> None:
        elapsed_ms = round(1000 * (self._clock.monotonic() - started_s))
        timeout_ms = self.settings.transaction_timeout_ms
        if elapsed_ms > _USABLE_TIMEOUT * timeout_ms:
            self._in_cluster(self._abort_open, frozenset())
            raise UserError(
                f"The batch took {elapsed_ms} ms, too long for transaction.timeout.ms={timeout_ms}. "
                "Nothing was committed. Make batches smaller (maxOffsetsPerTrigger), or raise the timeout and the "
                "broker's transaction.max.timeout.ms."
            )

    def _finish(self, decision: BatchDecision) -> bool:
        """Ends the transactions of a decision.

        Returns False if the broker has aborted all of them: then the batch can be written again. Raises UserError if
        it has aborted some of them.
        """
        if decision.state == FINISHED:
            return True
        ends = self._in_cluster(end_all, decision.results, True, lambda: self._on_step("ended"))
        if not ends.lost:
            self._on_step("finished")
            self._renew_leases(decision, ends)
            return True
        if not ends.committed:
            self._decisions.remove()
            return False
        lost = sum(result.record_count for result in ends.lost)
        raise UserError(
            f"Batch {decision.batch_id} of sink '{self._name}' is incomplete: the broker aborted {len(ends.lost)} of "
            f"{len(decision.results)} transactions ({lost} records, of tasks "
            f"{', '.join(str(result.task) for result in ends.lost)}) after the decision to commit, because the driver "
            f"was away for longer than transaction.timeout.ms. In {self._decisions.path}, set the state to 'finished' "
            "to go on without these records; or remove the file to write the whole batch again, which doubles the "
            "records of the other tasks."
        )

    def _renew_leases(self, decision: BatchDecision, ends: Ends) -> None:
        if self._run is None:
            return  # these are transactions of an earlier run
        for result in decision.results:
            assert result.transaction is not None
            following = ends.committed[result.task]
            if following is None:
                following = self._in_cluster(self._next_transaction, result.transaction)
            self._leases[result.task] = following

    async def _next_transaction(self, cluster: Cluster, transaction: ProducerTransaction) -> ProducerTransaction:
        """Raises the epoch, where EndTxn does not: a late write must not land in the next transaction."""
        timeout_ms = self.settings.transaction_timeout_ms
        return await init_producer(cluster, transaction.transactional_id, timeout_ms, previous=transaction)

    async def _abort_open(self, cluster: Cluster, kept: Collection[str]) -> None:
        await abort_open(cluster, f"{self._name}/", kept)

    async def _abort_losers(self, cluster: Cluster, results: list[TaskResult]) -> None:
        """Aborts the transactions of attempts that Spark has not accepted."""
        accepted = {result.transaction.transactional_id for result in results if result.transaction is not None}
        for result in results:
            # The first attempt may still hold the lease.
            if result.attempt:
                self._leases.pop(result.task, None)
        await self._abort_open(cluster, accepted)

    def _in_cluster(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        return in_cluster(self.settings, work, *arguments)


def in_cluster(settings: SinkSettings, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Runs `work` with a connection of its own."""

    async def run() -> T:
        security = connection_security(settings.security)
        addresses = parse_addresses(settings.bootstrap)
        async with open_cluster(addresses, retry_s=settings.retry_s, security=security) as cluster:
            return await work(cluster, *arguments)

    return trio.run(run)


async def abort_open(cluster: Cluster, prefix: str, kept: Collection[str]) -> None:
    """Aborts the open transactions whose ids begin with the prefix, and fences their producers."""
    for listed in await list_transactions(cluster, states=[_ONGOING]):
        if listed.transactional_id.startswith(prefix) and listed.transactional_id not in kept:
            await abort_transaction(cluster, listed.transactional_id)


async def end_all(
    cluster: Cluster, results: Collection[TaskResult], is_commit: bool, on_ended: Callable[[], None] = lambda: None
) -> Ends:
    """Ends the transactions of all results at the same time.

    Raises TransactionForgotten if the broker does not know one of them any more.
    """
    ends = Ends({}, [])
    failures: list[Exception] = []

    async def end_one(result: TaskResult) -> None:
        assert result.transaction is not None
        try:
            ends.committed[result.task] = await end_transaction(cluster, result.transaction, is_commit=is_commit)
            on_ended()
        except TransactionLost:
            ends.lost.append(result)
        except TransactionForgotten as problem:
            failures.append(_forgotten(result, problem))
        except Exception as failure:  # The first one is raised below: callers do not expect an exception group.
            failures.append(failure)

    async with trio.open_nursery() as nursery:
        for result in results:
            nursery.start_soon(end_one, result)
    if failures:
        raise failures[0]
    ends.lost.sort()
    return ends


def _forgotten(result: TaskResult, problem: Exception) -> UserError:
    return UserError(
        f"The broker has forgotten the transaction of task {result.task} ({problem}), so it is unknown whether its "
        f"{result.record_count} records were committed: the driver was away for longer than "
        "transactional.id.expiration.ms, or this is another cluster. Compare the topic with the source, then set the "
        "state in decision.json to 'finished', or remove the file to write the batch again."
    )
