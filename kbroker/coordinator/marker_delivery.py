"""Delivers the markers of decided transactions to the leaders of their partitions, here and on other brokers.

Retries until the marker of every partition is committed or the partition is deleted. Each retry looks up the leader
again, because leaders move. The codes of a leader mean:

NONE                            the marker is written
INVALID_PRODUCER_EPOCH          a newer epoch of the producer has written to the partition: it needs this marker no more
UNSUPPORTED_FOR_MESSAGE_FORMAT  the partition has an old message format, and so no transactions
TRANSACTION_COORDINATOR_FENCED  a newer coordinator has written markers: it completes the transaction, this one stops
any other                       is tried again
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from kbroker.controller.image import NO_LEADER
from kbroker.coordinator.marker_requests import OutgoingMarker
from kbroker.coordinator.markers import TransactionEnd
from kbroker.coordinator.shard_log import Timers
from kbroker.names import TopicPartition
from kbroker.protocol.error_codes import ErrorCode, error_code

__all__ = ["MarkerDelivery"]

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.1
_MAX_RETRY_SECONDS: Final = 1.0
_NEEDLESS: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT})


class MarkerDelivery:
    def __init__(
        self,
        *,
        broker_id: int,
        leader_of: Callable[[str, int], int | None],
        append: Callable[[TransactionEnd, str, int, Callable[[int], None]], None],
        send: Callable[[int, OutgoingMarker], None],
        timers: Timers,
    ) -> None:
        """`leader_of` returns a broker id, NO_LEADER, or None if the partition does not exist.

        `append` appends a marker to a partition that this broker leads. `send` sends a marker to another broker.
        """
        self._broker_id = broker_id
        self._leader_of = leader_of
        self._append = append
        self._send = send
        self._timers = timers

    def write(
        self,
        end: TransactionEnd,
        partitions: Iterable[TopicPartition],
        done: Callable[[], None],
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Writes all markers, and calls `done` when every marker is committed; perhaps before it returns.

        Stops without a call of `done` when `is_wanted` is false: this broker does not coordinate the transaction now.
        """
        writing = _Writing(end, set(partitions), done, is_wanted)
        for partition in sorted(writing.left):
            self._write(writing, partition, _RETRY_SECONDS)
        writing.end_if_done()

    def _write(self, writing: _Writing, partition: TopicPartition, pause_s: float) -> None:
        if not writing.is_wanted():
            return
        on_written = partial(self._on_written, writing, partition, pause_s)
        leader = self._leader_of(*partition)
        if leader is None:
            writing.complete(partition)  # deleted
        elif leader == self._broker_id:
            self._append(writing.end, *partition, on_written)
        elif leader == NO_LEADER:
            on_written(ErrorCode.LEADER_NOT_AVAILABLE)
        else:
            self._send(leader, OutgoingMarker(writing.end, partition, on_written))

    def _on_written(self, writing: _Writing, partition: TopicPartition, pause_s: float, number: int) -> None:
        code = error_code(number)
        if code is ErrorCode.NONE:
            writing.complete(partition)
        elif code in _NEEDLESS:
            _log_refusal(writing.end, partition, code)
            writing.complete(partition)
        elif code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            _log_refusal(writing.end, partition, code)
            writing.is_wanted = lambda: False
        else:
            again = partial(self._write, writing, partition, min(2 * pause_s, _MAX_RETRY_SECONDS))
            self._timers.add(pause_s, again)


def _log_refusal(end: TransactionEnd, partition: TopicPartition, code: ErrorCode) -> None:
    logger.warning("%s-%d refused the transaction marker of producer %d: %s", *partition, end.producer_id, code.name)


class _Writing:
    """One transaction whose markers are being written."""

    __slots__ = ("_done", "_is_begun", "end", "is_wanted", "left")

    def __init__(
        self,
        end: TransactionEnd,
        left: set[TopicPartition],
        done: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self.end = end
        self.left = left
        self.is_wanted = is_wanted
        # `done` must be called once: during the first round, in which appends may complete at once, only `write`
        # checks for the end.
        self._is_begun = False
        self._done = done

    def complete(self, partition: TopicPartition) -> None:
        self.left.discard(partition)
        if self._is_begun:
            self.end_if_done()

    def end_if_done(self) -> None:
        self._is_begun = True
        if not self.left:
            self._done()
