"""One transaction shard over its partition: appends and replays a result, then sends its response.

When the end of a transaction is decided and committed, its markers are written. When all are written, the shard's log
records that too.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final, Protocol

from kbroker.clock import Clock
from kbroker.coordinator.marker_delivery import MarkerDelivery
from kbroker.coordinator.markers import TransactionEnd
from kbroker.coordinator.pending_response import PendingResponse
from kbroker.coordinator.shard_log import CoordinatedPartition, ShardLog, Timers
from kbroker.protocol.error_codes import ErrorCode
from kbroker.transaction.records import Transaction
from kbroker.transaction.result import TransactionResult
from kbroker.transaction.shard import TransactionShard
from kbroker.transaction.states import PREPARED, TransactionState

__all__ = ["LedPartition", "TransactionDriver"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5


class LedPartition(CoordinatedPartition, Protocol):
    leader_epoch: int


class TransactionDriver:
    def __init__(
        self, partition: LedPartition, shard: TransactionShard, *, clock: Clock, timers: Timers, markers: MarkerDelivery
    ) -> None:
        self.log = ShardLog(partition, shard.replay, clock=clock, timers=timers)
        self.shard = shard
        self.is_loaded = False
        self._partition = partition
        self._clock = clock
        self._timers = timers
        self._markers = markers
        self._is_unloaded = False

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def on_loaded(self) -> None:
        """Resumes the transactions whose end the previous coordinator decided: writes their markers.

        Waits until the loaded decisions are committed: a replica without them may still become the coordinator.
        """
        self.is_loaded = True
        for transactional_id in self.shard.prepared():
            prepared = self.shard.transactions[transactional_id]
            self.log.when_committed(partial(self._write_markers, transactional_id, prepared))

    def flush(self) -> None:
        """Does nothing: a transaction shard queues no records."""

    def unload(self) -> None:
        self._is_unloaded = True

    def apply(self, transactional_id: str, result: TransactionResult, pending: PendingResponse) -> None:
        """Appends and replays a result, and sends it as the response. Then writes markers if the transaction ended."""
        updated = result.updated
        if updated is None:
            self.log.answer(pending, result)
            return
        code = self.log.append([self.shard.record(transactional_id, result)])
        if code:
            pending.refuse(code)
            return
        self.shard.on_appended(transactional_id, result)
        self.log.answer(pending, result)
        if updated.state in PREPARED:
            # Markers must not precede the committed decision: a new coordinator might decide otherwise.
            self.log.when_committed(partial(self._write_markers, transactional_id, updated))

    def abort(self, transactional_id: str) -> None:
        """Aborts a transaction that exceeded its timeout, and fences its producer."""
        timeout_ms = self.shard.transactions[transactional_id].timeout_ms
        result = self.shard.abort_fencing(transactional_id, self.now_ms())
        # A warning: it explains why read_committed consumers stood still, and why the producer is fenced.
        text = "Aborting transaction %s: it was open for longer than its timeout of %d ms"
        logger.warning(text, transactional_id, timeout_ms, extra={"transactional_id": transactional_id})
        self.apply(transactional_id, result, PendingResponse(_ignore, partial(_log_failed_abort, transactional_id)))

    def _write_markers(self, transactional_id: str, prepared: Transaction) -> None:
        if self._is_unloaded:
            return
        end = TransactionEnd(
            prepared.producer_id,
            prepared.producer_epoch,
            prepared.state is TransactionState.PREPARE_COMMIT,
            self._partition.leader_epoch,
        )
        completed = partial(self._complete, transactional_id, prepared)
        self._markers.write(end, prepared.partitions, completed, is_wanted=lambda: not self._is_unloaded)

    def _complete(self, transactional_id: str, prepared: Transaction) -> None:
        if self._is_unloaded or self.shard.transactions.get(transactional_id) != prepared:
            return
        result = self.shard.complete(transactional_id, self.now_ms())
        code = self.log.append([self.shard.record(transactional_id, result)])
        if code:
            logger.error("Could not complete transaction %s; retrying: %s", transactional_id, ErrorCode(code).name)
            self._timers.add(_RETRY_SECONDS, partial(self._complete, transactional_id, prepared))


def _ignore(result: TransactionResult) -> None:
    pass


def _log_failed_abort(transactional_id: str, code: int) -> None:
    logger.error("Could not abort transaction %s: %s", transactional_id, ErrorCode(code).name)
