"""Producers, zombies, timeouts, crashes and markers in any order: nothing of an aborted transaction is ever read."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from kbroker.log.producers.producer_state import ProducerState
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.keyed_batch import KeyAndValue
from kbroker.protocol.record_batch import BatchHeader, read_header
from kbroker.protocol.records import EndTransactionMarker, Record, build_batch, build_end_transaction_batch
from kbroker.transaction.result import TransactionResult
from kbroker.transaction.shard import TransactionShard
from kbroker.transaction.states import TransactionState

ID = "pay"  # one is enough: they know nothing of each other
PARTITIONS = st.integers(0, 1)
TIMEOUT_MS = 50


class Handle:
    """A producer as its client sees it, perhaps long replaced."""

    def __init__(self, producer_id: int, epoch: int, version: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.version = version
        self.sequences: dict[int, int] = {}
        self.sent: list[str] = []  # in the transaction that it takes for its own
        self.added: set[int] = set()  # to it
        self.is_committing: bool | None = None  # an end that was not answered; it has to ask again


class Partition:
    """The producers of one partition, and what is in it, markers as booleans."""

    def __init__(self) -> None:
        self.producers = ProducerState()
        self.entries: list[tuple[int, str | bool]] = []

    def append(self, header: BatchHeader, value: str) -> bool:
        if self.producers.check(header) is not None:
            return False
        self.producers.update(header, len(self.entries))
        self.entries.append((header.producer_id, value))
        return True

    def mark(self, producer_id: int, epoch: int, *, is_commit: bool) -> None:
        batch = build_end_transaction_batch(
            EndTransactionMarker(is_commit, 0), producer_id=producer_id, producer_epoch=epoch, timestamp=0
        )
        assert self.producers.check_marker(producer_id, producer_epoch=epoch, coordinator_epoch=0) is None, (
            "a marker is never too old"
        )
        offset = len(self.entries)
        self.producers.end_transaction(read_header(batch), offset=offset, coordinator_epoch=0, is_abort=not is_commit)
        self.entries.append((producer_id, is_commit))
        self.producers.on_high_watermark(offset + 1)

    def committed(self) -> list[str]:
        """What a reader of committed records gets, by the markers alone."""
        stable = self.producers.first_unstable_offset
        end = len(self.entries) if stable is None else stable
        fates: dict[int, bool] = {}
        found: list[str] = []
        for offset in range(len(self.entries) - 1, -1, -1):
            producer_id, entry = self.entries[offset]
            if isinstance(entry, bool):
                fates[producer_id] = entry
            elif offset < end and fates.get(producer_id, False):
                found.append(entry)
        return found[::-1]


class TransactionMachine(RuleBasedStateMachine):
    handles: Bundle[Handle] = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.shard = TransactionShard()
        self.log: list[KeyAndValue] = []
        self.partitions = [Partition(), Partition()]
        self.now = 1_000
        self.next_id = 0
        self.count = 0
        self.epochs: dict[tuple[str, int], int] = {}
        self.promised: set[str] = set()  # their commit was answered
        self.forsaken: set[str] = set()  # their abort was, or their producer was fenced

    def apply(self, transactional_id: str, result: TransactionResult) -> TransactionResult:
        if result.updated is not None:
            record = self.shard.record(transactional_id, result)
            self.log.append(record)
            self.shard.replay([record])
            self.shard.on_appended(transactional_id, result)
        return result

    def finish(self, transactional_id: str) -> None:
        now = self.shard.transactions[transactional_id]
        for _, index in now.partitions:
            is_commit = now.state is TransactionState.PREPARE_COMMIT
            self.partitions[index].mark(now.producer_id, now.producer_epoch, is_commit=is_commit)
        self.apply(transactional_id, self.shard.complete(transactional_id, self.now))

    @initialize(target=handles, version=st.sampled_from([0, 2]))
    def begin(self, version: int) -> Handle:
        return self.new_handle(version)

    def new_handle(self, version: int) -> Handle:
        """Comes again while something is still under way, as clients do."""
        while True:
            self.next_id += 1
            result = self.apply(ID, self.shard.init_producer_id(ID, TIMEOUT_MS, None, self.next_id, self.now))
            if not result.error:
                return Handle(result.producer_id, result.producer_epoch, version)
            assert result.error == ErrorCode.CONCURRENT_TRANSACTIONS
            self.write_markers()

    @rule(target=handles, version=st.sampled_from([0, 2]))
    def another_producer(self, version: int) -> Handle:
        return self.new_handle(version)

    @rule(handle=handles, index=PARTITIONS)
    def send(self, handle: Handle, index: int) -> None:
        """The partition asks first, as a broker makes it. Of a client whose epoch does not grow that is not enough: it
        has to wait until its partition is added, or what comes late would go into the transaction before."""
        if handle.is_committing is not None or (handle.version < 2 and index not in handle.added):
            return
        partition = self.partitions[index]
        entry = partition.producers.entries.get(handle.producer_id)
        is_open = entry is not None and entry.epoch == handle.epoch and entry.current_txn_first_offset >= 0
        key = ("t", index)
        if handle.version >= 2 and not is_open:
            result = self.shard.add_partitions(ID, handle.producer_id, handle.epoch, [key], self.now, client_version=2)
            if self.apply(ID, result).error:
                return
        elif not is_open and self.shard.verify(ID, handle.producer_id, handle.epoch, key):
            return
        self.count += 1
        value = f"{self.count}"
        sequence = handle.sequences.get(index, 0)
        batch = build_batch(
            [Record(0, self.now, b"k", b"v")],
            producer_id=handle.producer_id,
            producer_epoch=handle.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        if partition.append(read_header(batch), value):
            handle.sequences[index] = sequence + 1
            handle.sent.append(value)

    @rule(handle=handles, index=PARTITIONS)
    def add_partition(self, handle: Handle, index: int) -> None:
        if handle.is_committing is not None:
            return
        result = self.shard.add_partitions(
            ID,
            handle.producer_id,
            handle.epoch,
            [("t", index)],
            self.now,
            client_version=handle.version,
        )
        if not self.apply(ID, result).error:
            handle.added.add(index)

    @rule(handle=handles, is_commit=st.booleans(), answer_is_lost=st.booleans())
    def end(self, handle: Handle, is_commit: bool, answer_is_lost: bool) -> None:
        if handle.is_committing is None:
            handle.is_committing = is_commit
        is_commit = handle.is_committing
        self.next_id += 1
        result = self.shard.end(
            ID,
            handle.producer_id,
            handle.epoch,
            is_commit=is_commit,
            now_ms=self.now,
            client_version=handle.version,
            new_id=self.next_id,
        )
        # An abort may have happened already, because it took too long: then it is answered as a retry.
        if result.updated is not None or (not result.error and not is_commit):
            (self.promised if is_commit else self.forsaken).update(handle.sent)
            handle.sent, handle.added = [], set()
        self.apply(ID, result)
        if answer_is_lost or result.error == ErrorCode.CONCURRENT_TRANSACTIONS:
            return
        handle.is_committing = None
        if not result.error and handle.version >= 2:
            if result.producer_epoch != handle.epoch:
                handle.sequences = {}
            handle.producer_id, handle.epoch = result.producer_id, result.producer_epoch

    @rule()
    def write_markers(self) -> None:
        if self.shard.prepared():
            self.finish(ID)

    @rule(wait_ms=st.integers(0, 2 * TIMEOUT_MS))
    def time_goes_by(self, wait_ms: int) -> None:
        self.now += wait_ms
        for transactional_id in self.shard.timed_out(self.now):
            self.apply(transactional_id, self.shard.abort_fencing(transactional_id, self.now))

    @rule(is_half_marked=st.booleans())
    def crash(self, is_half_marked: bool) -> None:
        """Markers that were written before it are written again."""
        prepared = self.shard.prepared()
        if prepared and is_half_marked:
            now = self.shard.transactions[prepared[0]]
            for _, index in sorted(now.partitions)[:1]:
                is_commit = now.state is TransactionState.PREPARE_COMMIT
                self.partitions[index].mark(now.producer_id, now.producer_epoch, is_commit=is_commit)
        self.shard = TransactionShard()
        self.shard.replay(self.log)
        for transactional_id in self.shard.prepared():
            self.finish(transactional_id)

    @invariant()
    def epochs_only_grow(self) -> None:
        for transactional_id, each in self.shard.transactions.items():
            key = transactional_id, each.producer_id
            assert each.producer_epoch >= self.epochs.get(key, 0)
            self.epochs[key] = each.producer_epoch

    @invariant()
    def a_replay_is_what_lives(self) -> None:
        other = TransactionShard()
        other.replay(self.log)
        assert other.transactions == self.shard.transactions

    @invariant()
    def readers_see_nothing_that_was_not_promised(self) -> None:
        seen = {value for partition in self.partitions for value in partition.committed()}
        assert seen <= self.promised
        assert not seen & self.forsaken

    def teardown(self) -> None:
        """Once everything has ended, all that was promised is there."""
        for transactional_id, each in list(self.shard.transactions.items()):
            if each.state is TransactionState.ONGOING:
                self.apply(transactional_id, self.shard.abort_fencing(transactional_id, self.now))
        for transactional_id in self.shard.prepared():
            self.finish(transactional_id)
        for partition in self.partitions:
            assert partition.producers.first_unstable_offset is None
        assert {value for partition in self.partitions for value in partition.committed()} == self.promised


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
