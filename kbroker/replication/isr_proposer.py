"""Task that sends ISR proposals to the controller (AlterPartition), and retries them while it cannot be reached.

One request at a time; it holds all proposals that were made during the previous request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from kbroker.controller.image import PartitionState
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.peers import Decision

__all__ = ["IsrProposer"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.05  # Kafka's retry of AlterPartition

# Errors after which a retry is useless: the controller has decided, or the image will bring a newer state.
_FINAL: Final = frozenset(
    (
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


class IsrProposer:
    def __init__(self, alter: Callable[[Sequence[IsrProposal]], Awaitable[Sequence[PartitionState | Refusal]]]) -> None:
        """`alter` sends proposals and returns an outcome for each. Raises Refusal if the controller was not reached."""
        self._alter = alter
        self._queue: list[tuple[IsrProposal, Callable[[Decision], None]]] = []
        self._has_work = trio.Event()

    def propose(self, proposal: IsrProposal, done: Callable[[Decision], None]) -> None:
        self._queue.append((proposal, done))
        self._has_work.set()

    async def run(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work = trio.Event()
            batch, self._queue = self._queue, []
            failed = await self._send(batch)
            if failed:
                self._queue = failed + self._queue
                await trio.sleep(_RETRY_SECONDS)
            if self._queue:
                self._has_work.set()

    async def _send(
        self, batch: list[tuple[IsrProposal, Callable[[Decision], None]]]
    ) -> list[tuple[IsrProposal, Callable[[Decision], None]]]:
        """Sends the proposals and reports the outcomes. Returns the proposals to retry."""
        try:
            outcomes = await self._alter([proposal for proposal, _ in batch])
        except Refusal as refusal:
            logger.info("Failed to send AlterPartition to the controller; retrying: %s", refusal)
            return batch
        failed = []
        for (proposal, done), outcome in zip(batch, outcomes, strict=True):
            if not isinstance(outcome, Refusal):
                done(outcome)
            elif outcome.code in _FINAL:
                done(ErrorCode(outcome.code))
            else:
                failed.append((proposal, done))
        return failed
