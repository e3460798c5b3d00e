"""Carries proposed in-sync sets to the controller: all that have come together in one request, one request at a time.

While nobody answers it tries again. Sleeps while there is nothing to propose.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from kbroker.controller.image import Partition as PartitionState
from kbroker.controller.isr_rules import IsrProposal
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.peers import Decision

__all__ = ["IsrProposer"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.05  # Kafka's retry of AlterPartition

# After these it makes no sense to say the same again: it was judged, or the image will tell.
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
        """`alter` asks the controller, and answers for each proposal; Refusal: it could not be asked."""
        self._alter = alter
        self._waiting: list[tuple[IsrProposal, Callable[[Decision], None]]] = []
        self._has_work = trio.Event()

    def propose(self, proposal: IsrProposal, done: Callable[[Decision], None]) -> None:
        self._waiting.append((proposal, done))
        self._has_work.set()

    async def run(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work = trio.Event()
            taken, self._waiting = self._waiting, []
            again = await self._ask(taken)
            if again:
                self._waiting = again + self._waiting
                await trio.sleep(_RETRY_SECONDS)
            if self._waiting:
                self._has_work.set()

    async def _ask(
        self, taken: list[tuple[IsrProposal, Callable[[Decision], None]]]
    ) -> list[tuple[IsrProposal, Callable[[Decision], None]]]:
        """What has to be asked again."""
        try:
            outcomes = await self._alter([proposal for proposal, _ in taken])
        except Refusal as refusal:
            logger.info("the controller cannot be asked for in-sync sets, and is asked again: %s", refusal)
            return taken
        again = []
        for (proposal, done), outcome in zip(taken, outcomes, strict=True):
            if not isinstance(outcome, Refusal):
                done(outcome)
            elif outcome.code in _FINAL:
                done(ErrorCode(outcome.code))
            else:
                again.append((proposal, done))
        return again
