"""One shard of transactions over its partition: a step is appended and replayed at once, and answered when committed.

A transaction whose end is decided, and committed, gets its markers; when they are written, that is written down too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from kbroker.clock import Clock
from kbroker.coordinator.markers import Ending, Markers
from kbroker.coordinator.shard_log import CoordinatedPartition, ShardLog, Timers
from kbroker.coordinator.ticket import Ticket
from kbroker.protocol.error_codes import ErrorCode
from kbroker.transaction.records import Transaction
from kbroker.transaction.shard import TransactionShard
from kbroker.transaction.states import PREPARED, TransactionState
from kbroker.transaction.step import Step

__all__ = ["LedPartition", "TransactionDriver"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5


class LedPartition(CoordinatedPartition, Protocol):
    leader_epoch: int


class TransactionDriver(ShardLog):
    def __init__(
        self, partition: LedPartition, shard: TransactionShard, *, clock: Clock, timers: Timers, markers: Markers
    ) -> None:
        super().__init__(partition, shard.replay, clock=clock, timers=timers)
        self.shard = shard
        self.is_loaded = False
        self._led = partition
        self._markers = markers
        self._is_gone = False

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def on_loaded(self) -> None:
        """What was decided before is carried out."""
        self.is_loaded = True
        for transactional_id in self.shard.prepared():
            self._write_markers(transactional_id, self.shard.transactions[transactional_id])

    def leave(self) -> None:
        self._is_gone = True

    def take(self, transactional_id: str, step: Step, ticket: Ticket) -> None:
        """Append, replay, answer with the step; then, if a transaction has ended, its markers."""
        becomes = step.becomes
        if becomes is None:
            self.answer(ticket, step)
            return
        code = self.append([self.shard.record(transactional_id, step)])
        if code:
            ticket.refuse(code)
            return
        self.shard.on_appended(transactional_id, step)
        self.answer(ticket, step)
        if becomes.state in PREPARED:
            self._when_committed(partial(self._write_markers, transactional_id, becomes))

    def abort(self, transactional_id: str) -> None:
        """It took too long: its producer is fenced."""
        step = self.shard.abort_fencing(transactional_id, self.now_ms())
        logger.info("transaction %s took too long: aborted", transactional_id)
        self.take(transactional_id, step, Ticket(_ignore, partial(_tell_refused, transactional_id)))

    def _when_committed(self, then: Callable[[], None]) -> None:
        if self.partition.is_committed(self._last_offset):
            then()
        else:
            self.partition.wait_committed(self._last_offset, lambda code: None if code else then())

    def _write_markers(self, transactional_id: str, prepared: Transaction) -> None:
        if self._is_gone:
            return
        ending = Ending(
            prepared.producer_id,
            prepared.producer_epoch,
            prepared.state is TransactionState.PREPARE_COMMIT,
            self._led.leader_epoch,
        )
        self._markers.write(ending, prepared.partitions, partial(self._complete, transactional_id, prepared))

    def _complete(self, transactional_id: str, prepared: Transaction) -> None:
        if self._is_gone or self.shard.transactions.get(transactional_id) != prepared:
            return
        step = self.shard.complete(transactional_id, self.now_ms())
        code = self.append([self.shard.record(transactional_id, step)])
        if code:
            logger.error("the end of transaction %s cannot be written: %s", transactional_id, ErrorCode(code).name)
            self._timers.add(_RETRY_SECONDS, partial(self._complete, transactional_id, prepared))


def _ignore(step: Step) -> None:
    pass


def _tell_refused(transactional_id: str, code: int) -> None:
    logger.error("transaction %s cannot be aborted: %s", transactional_id, ErrorCode(code).name)
