"""Replays batches of `__transaction_state` into a shard, during a load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kbroker.protocol.record_batch import BatchHeader
from kbroker.protocol.records import iter_records
from kbroker.transaction.records import UnreadableTransaction
from kbroker.transaction.shard import TransactionShard

__all__ = ["TransactionReplay"]

_RECORDS_BETWEEN_YIELDS: Final = 64


class TransactionReplay:
    def __init__(self, shard: TransactionShard, on_unreadable: Callable[[Exception], None]) -> None:
        self._shard = shard
        self._on_unreadable = on_unreadable

    def replay_batch(self, data: bytes, position: int, header: BatchHeader) -> Iterator[None]:
        """Replays one batch. Yields every few records, so that the loader can let other tasks run."""
        if header.is_control:
            return
        for index, record in enumerate(iter_records(data, position)):
            if record.key is not None:
                try:
                    self._shard.replay([(record.key, record.value)])
                except UnreadableTransaction as problem:
                    self._on_unreadable(problem)
            if index % _RECORDS_BETWEEN_YIELDS == 0:
                yield
