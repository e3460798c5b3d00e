"""Copies all partitions that this broker follows from one leader: one connection, one Fetch after the other.

A failure of one partition delays this partition only. Restarts of the task and assignment: `ReplicaFetchers`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any, Final

import trio

from kbroker.client.address import Address
from kbroker.client.connection import open_connection
from kbroker.client.connection_security import ConnectionSecurity
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, NotServed
from kbroker.client.frames import SocketWatch
from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.errors import PeerError, StorageFailure
from kbroker.histogram import Histogram
from kbroker.log.leader_epochs import EpochEntry
from kbroker.protocol.error_codes import ErrorCode, error_code
from kbroker.protocol.record_batch import InvalidBatch
from kbroker.replication.fetching.incremental_fetch import FetchKey, FetchPosition
from kbroker.replication.fetching.leader_endpoint import FetchMembers, LeaderEndpoint
from kbroker.replication.flusher import Flusher
from kbroker.replication.follower_view import restart_after
from kbroker.replication.partition import Partition
from kbroker.replication.replication_quota import ReplicationQuota
from kbroker.time_slice import TimeSlice

__all__ = ["FetcherStats", "LeaderFetcher"]

logger = logging.getLogger(__name__)

_FIRST_DELAY_SECONDS: Final = 0.02
# So often all partitions are looked at: the start of a log moves without a fetch.
_ALL_POSITIONS_SECONDS: Final = 0.5
_MAX_IN_ONE_STEP: Final = 100  # partitions of a response
_SESSION_ERRORS: Final = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)
# The leader has another image than this broker: it does not know yet that it leads, or that it no longer does.
_METADATA_ERRORS: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


class _PartitionFetchState:
    __slots__ = ("delay_seconds", "error", "lag", "partition", "resume_at")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.resume_at = 0.0
        self.delay_seconds = _FIRST_DELAY_SECONDS
        # Committed records of the leader that this replica did not have after its last fetch. None: it has not fetched.
        self.lag: int | None = None
        self.error: ErrorCode | None = None  # the error that was logged last: logged once, not at every retry


class FetcherStats:
    """Responses of one leader: their times, and the bytes of their record batches. Kept while the broker runs."""

    __slots__ = ("bytes", "requests", "times")

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self.times = Histogram()


class LeaderFetcher:
    def __init__(
        self,
        leader_id: int,
        flusher: Flusher,
        config: BrokerConfig,
        clock: Clock,
        quota: ReplicationQuota,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        address: Callable[[int], Address | None],
        checkpoint: Callable[[], Awaitable[None]],
        security: ConnectionSecurity | None = None,
        watch: Callable[[], SocketWatch | None] = lambda: None,
    ) -> None:
        self.leader_id = leader_id
        self._flusher = flusher
        self._config = config
        self._clock = clock
        self._quota = quota
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._address = address
        self._checkpoint = checkpoint
        self._security = security
        self._has_lowered_recovery_point = False
        self._states: dict[FetchKey, _PartitionFetchState] = {}
        self._positions: dict[FetchKey, FetchPosition] = {}
        """Positions of the last fetch."""
        self._touched: dict[FetchKey, _PartitionFetchState] = {}
        """Partitions in the last response: only their positions have changed since."""
        self._all_positions_at = 0.0  # when to look at all partitions; 0: with the next fetch
        self._keys: dict[tuple[str, int], FetchKey] = {}
        self._has_changed = trio.Event()
        self._is_reachable = True  # as logged last
        self._sent_at = 0.0  # the last fetch
        self._is_taken = False  # the last response
        self._watch = watch
        self.stats = FetcherStats()

    @property
    def client_id(self) -> str:
        """Returns the name of this fetcher in metrics, as Kafka writes it."""
        return f"ReplicaFetcherThread-0-{self.leader_id}"

    def lags(self) -> list[tuple[Partition, int]]:
        return [(state.partition, state.lag or 0) for state in self._states.values()]

    @property
    def failed_partitions(self) -> int:
        """Returns the number of partitions whose last fetch was an error that takes longer than a leader change."""
        return sum(state.error is not None for state in self._states.values())

    @property
    def has_partitions(self) -> bool:
        return bool(self._states)

    def add(self, partition: Partition) -> None:
        """Adds a partition, or resets its state after its leader epoch has changed."""
        key = (partition.topic_id, partition.index)
        self._keys[partition.topic, partition.index] = key
        self._states[key] = _PartitionFetchState(partition)
        self._all_positions_at = 0.0
        self._has_changed.set()

    def remove(self, topic: str, index: int) -> None:
        key = self._keys.pop((topic, index), None)
        if key is not None:
            del self._states[key]
            self._all_positions_at = 0.0
            self._has_changed.set()

    async def run(self) -> None:
        """Fetches over one connection until it fails, then backs off; or until no partition is left."""
        address = self._address(self.leader_id)
        try:
            if address is None:
                raise ConnectionFailed(address, f"broker {self.leader_id} is not registered")
            client_id = f"broker-{self._broker_id}-fetcher-0"
            async with open_connection(
                address, client_id=client_id, security=self._security, lends=True, watch=self._watch()
            ) as connection:
                leader = LeaderEndpoint(
                    connection, self._config, broker_id=self._broker_id, broker_epoch=self._broker_epoch
                )
                while self._states and self._address(self.leader_id) == address:
                    await self._fetch_once(leader)
                return
        except (ConnectionFailed, PeerError, NotServed, BrokerRefusal) as failure:
            self._log_unreachable(str(failure))
        except Exception:
            logger.exception("Unexpected error fetching from broker %d", self.leader_id)
        await self._back_off(self._backoff_seconds)

    def _log_unreachable(self, reason: str) -> None:
        if self._is_reachable:
            self._is_reachable = False
            logger.warning("Fetching from broker %d failed; retrying: %s", self.leader_id, reason)

    @property
    def _backoff_seconds(self) -> float:
        return self._config.replica_fetch_backoff_ms / 1000

    async def _back_off(self, seconds: float) -> None:
        """Waits, at most until a partition is added or removed."""
        self._has_changed = trio.Event()
        with trio.move_on_after(seconds):
            await self._has_changed.wait()

    # One fetch

    async def _fetch_once(self, leader: LeaderEndpoint) -> None:
        is_of_all = not self._may_look_at_touched(leader)
        if is_of_all:
            await self._look_at_all()
        positions = self._positions
        if not positions:
            resume_at = min((state.resume_at for state in self._states.values()), default=0.0)
            await self._back_off(max(resume_at - trio.current_time(), 0.001))
            return
        max_wait_ms = self._max_wait_ms(positions)
        if is_of_all:
            asked = leader.ask(positions, max_wait_ms=max_wait_ms)
        else:
            asked = leader.ask_again(self._look_at_touched(), max_wait_ms=max_wait_ms)
        self._sent_at = self._clock.monotonic()
        self._is_taken = False
        response = await leader.fetch(asked, partial(self._go_on, leader))
        if not self._is_taken and not await self._take(leader, response):
            return
        if self._has_lowered_recovery_point:
            # Before the next append: after a crash, recovery trusts everything below the checkpointed recovery point.
            self._has_lowered_recovery_point = False
            await self._checkpoint()
        await self._wait_flushed(self._states if is_of_all else self._touched)

    def _go_on(self, leader: LeaderEndpoint, response: Any) -> FetchMembers | None:
        """Takes a usual response, and returns the next fetch. Returns None if the task must go on instead."""
        if not self._is_usual(leader, response):
            return None
        self._is_taken = True
        self._on_answer(leader, response)
        positions, touched = self._positions, self._touched
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                state = touched[key] = self._states[key]
                if _is_current(state.partition, positions[key]):
                    self._guard(state, data, self._process)
        if (
            self._has_lowered_recovery_point
            or not self._may_look_at_touched(leader)
            or self._address(self.leader_id) != leader.address
        ):
            return None
        asked = leader.ask_again(self._look_at_touched(), max_wait_ms=self._max_wait_ms(positions))
        self._is_taken = False
        self._sent_at = self._clock.monotonic()
        return asked

    def _is_usual(self, leader: LeaderEndpoint, response: Any) -> bool:
        """Whether the response can be taken in one step: few partitions, no error, nothing to truncate or to fsync."""
        if response.error_code or not response.session_id:
            return False
        count = 0
        for topic in response.responses:
            count += len(topic.partitions)
            if count > _MAX_IN_ONE_STEP:
                return False
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                state = self._states.get(key)
                if (
                    data.error_code
                    or data.diverging_epoch.end_offset >= 0
                    or state is None
                    or state.partition.is_durable
                    or key not in self._positions
                ):
                    return False
        return True

    def _on_answer(self, leader: LeaderEndpoint, response: Any) -> None:
        self._touched = {}
        self.stats.requests += 1
        self.stats.times.observe((self._clock.monotonic() - self._sent_at) * 1000)
        if not response.error_code:
            self._is_reachable = True
            leader.session.on_answer(response.session_id)

    async def _take(self, leader: LeaderEndpoint, response: Any) -> bool:
        """Takes any response, in time slices. Returns False if its session has ended."""
        self._on_answer(leader, response)
        code = error_code(response.error_code)
        if code in _SESSION_ERRORS:
            leader.session.reset()
            return False
        if code:
            raise BrokerRefusal(code, f"a fetch from broker {self.leader_id}")
        positions, touched = self._positions, self._touched
        out_of_range: list[tuple[_PartitionFetchState, FetchPosition]] = []
        time_slice = TimeSlice(self._clock)
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                state, position = self._states.get(key), positions.get(key)
                if state is None or position is None:
                    continue
                touched[key] = state
                if not _is_current(state.partition, position):
                    continue
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    out_of_range.append((state, position))
                else:
                    self._guard(state, data, self._process)
                await time_slice.checkpoint_if_over()
        for state, position in out_of_range:
            await self._handle_out_of_range(leader, state, position)
        return True

    def _may_look_at_touched(self, leader: LeaderEndpoint) -> bool:
        """Whether the next fetch has the partitions of the last one, and all positions but those touched are known."""
        return (
            leader.session.epoch > 0
            and trio.current_time() < self._all_positions_at
            and len(self._positions) == len(self._states)
            and self._quota.bytes_per_second() is None
        )

    async def _look_at_all(self) -> None:
        """Sets the positions of all partitions that are not delayed."""
        await self._load_logs()
        now = trio.current_time()
        self._all_positions_at = now + _ALL_POSITIONS_SECONDS  # before `_delay`, which asks for it again
        self._positions = positions = {}
        for key, state in self._states.items():
            if state.resume_at <= now and not self._is_throttled(state, now):
                try:
                    positions[key] = _position(state.partition)
                except StorageFailure as failure:
                    self._delay(state, ErrorCode.KAFKA_STORAGE_ERROR, str(failure))

    def _look_at_touched(self) -> dict[FetchKey, FetchPosition]:
        """Returns the positions of the partitions in the last response, which were fetched without an error."""
        positions: dict[FetchKey, FetchPosition] = {}
        for key, state in self._touched.items():
            try:
                positions[key] = _position(state.partition)
            except StorageFailure as failure:
                self._delay(state, ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
        self._positions.update(positions)
        return positions

    def _is_throttled(self, state: _PartitionFetchState, now: float) -> bool:
        """Whether the throttle of the partition is exceeded. Then the partition is delayed."""
        if state.lag == 0 or not self._quota.covers(state.partition):
            return False
        seconds = self._quota.excess_seconds()
        if seconds:
            state.resume_at = now + min(seconds, self._config.replica_fetch_wait_max_ms / 1000)
        return seconds > 0

    async def _load_logs(self) -> None:
        """Loads logs in time slices: reading the ends of thousands of logs takes seconds."""
        handles = [state.partition.log_handle for state in self._states.values()]
        time_slice = TimeSlice(self._clock)
        for handle in [handle for handle in handles if handle.opened is None]:
            with suppress(StorageFailure):  # the next use of the log raises it again, and delays its partition
                handle.open()
            await time_slice.checkpoint_if_over()

    def _max_wait_ms(self, positions: Mapping[FetchKey, FetchPosition]) -> int:
        """Returns how long the leader may hold the response: not longer than the shortest delay of a partition.

        At least a millisecond: with 0 the fetches would follow each other without a pause until the delay is over.
        """
        wait_ms = self._config.replica_fetch_wait_max_ms
        if len(positions) < len(self._states):
            resume_at = min(state.resume_at for key, state in self._states.items() if key not in positions)
            wait_ms = max(min(wait_ms, ceil((resume_at - trio.current_time()) * 1000)), 1)
        return wait_ms

    def _guard(self, state: _PartitionFetchState, data: Any, work: Callable[[_PartitionFetchState, Any], None]) -> None:
        """Delays the partition if `work` fails, so that other partitions of the leader go on."""
        handle = state.partition.log_handle
        recovery_point = handle.recovery_point
        try:
            work(state, data)
        except StorageFailure as failure:
            self._delay(state, ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
        except InvalidBatch as problem:
            self._delay(state, ErrorCode.CORRUPT_MESSAGE, str(problem))
        except Exception:
            logger.exception("Unexpected error processing fetched data of %r", state.partition)
            self._delay(state, ErrorCode.UNKNOWN_SERVER_ERROR, "")
        self._has_lowered_recovery_point |= handle.recovery_point < recovery_point

    def _process(self, state: _PartitionFetchState, data: Any) -> None:
        partition = state.partition
        code = error_code(data.error_code)
        if code:
            self._delay(state, code, "")
            return
        if partition.gate.is_closed:
            self._delay(state, ErrorCode.KAFKA_STORAGE_ERROR, "its data directory accepts no writes")
            return
        diverging = data.diverging_epoch
        if diverging.end_offset >= 0:
            self._truncate(state, EpochEntry(diverging.epoch, diverging.end_offset))
        else:
            records = data.records or b""
            partition.append_fetched(records, data.high_watermark, data.log_start_offset)
            self.stats.bytes += len(records)
            if self._broker_id in partition.adding_replicas:
                partition.reassignment_bytes_in += len(records)
            state.lag = max(data.high_watermark - partition.log.log_end_offset, 0)
            if records and self._quota.covers(partition):
                self._quota.record(len(records))
            state.error = None
            state.delay_seconds = _FIRST_DELAY_SECONDS

    def _truncate(self, state: _PartitionFetchState, diverging: EpochEntry) -> None:
        partition, log = state.partition, state.partition.log
        before = (log.log_end_offset, log.leader_epochs.latest)
        offset = partition.truncate_diverged(diverging)
        text = "Truncating %s-%d from offset %d to %d: its log diverges from the leader's in epoch %d"
        logger.info(text, partition.topic, partition.index, before[0], offset, diverging.epoch)
        if before == (log.log_end_offset, log.leader_epochs.latest):
            # The next fetch would get the same response: without a delay this would be a busy loop.
            self._delay(state, ErrorCode.UNKNOWN_LEADER_EPOCH, "the truncation changed nothing")

    def _delay(self, state: _PartitionFetchState, code: ErrorCode, reason: str) -> None:
        """Excludes the partition from fetches for a while, and logs the error once."""
        self._all_positions_at = 0.0
        # Followers often learn of a new leader a moment before the leader does: short delays first, then the backoff.
        is_short = code in _METADATA_ERRORS and state.delay_seconds < self._backoff_seconds
        delay_seconds = state.delay_seconds if is_short else self._backoff_seconds
        state.delay_seconds *= 2
        state.resume_at = trio.current_time() + delay_seconds
        if state.error is not code and not is_short:
            state.error = code
            partition = state.partition
            level = logging.INFO if code in _METADATA_ERRORS else logging.ERROR
            text = "Fetching %s-%d from broker %d failed; retrying: %s %s"
            logger.log(level, text, partition.topic, partition.index, self.leader_id, code.name, reason)

    # Out of range

    async def _handle_out_of_range(
        self, leader: LeaderEndpoint, state: _PartitionFetchState, position: FetchPosition
    ) -> None:
        """Truncates the log, or restarts it at the leader's log start offset."""
        try:
            leader_end = await leader.end_offset(state.partition)
            leader_start = await leader.start_offset(state.partition)
        except BrokerRefusal as refusal:
            self._delay(state, refusal.code, str(refusal))
            return
        if _is_current(state.partition, position):
            self._guard(state, (leader_start, leader_end), self._restart)

    def _restart(self, state: _PartitionFetchState, leader_range: tuple[int, int]) -> None:
        partition = state.partition
        leader_start, leader_end = leader_range
        end = partition.log.log_end_offset
        restart = restart_after(end, leader_start=leader_start, leader_end=leader_end)
        text = "Fetch offset %d of %s-%d is out of range, the leader has %d to %d: %s"
        logger.warning(text, end, partition.topic, partition.index, leader_start, leader_end, restart)
        partition.restart(restart)

    async def _wait_flushed(self, states: Mapping[FetchKey, _PartitionFetchState]) -> None:
        """Waits until fetched records are fsynced where flush.messages=1.

        The next fetch offset confirms to the leader that this replica has the records below it, and with
        flush.messages=1 only fsynced records count.
        """
        while unflushed := [state.partition for state in states.values() if _needs_flush(state.partition)]:
            for partition in unflushed:
                self._flusher.request(partition)
            await self._flusher.wait_round()


def _position(partition: Partition) -> FetchPosition:
    log = partition.log
    return FetchPosition(partition.leader_epoch, log.log_end_offset, log.leader_epochs.latest, log.log_start_offset)


def _is_current(partition: Partition, position: FetchPosition) -> bool:
    """Whether a response to a fetch at `position` may still be applied.

    While the request was on its way, the leader, the leader epoch or the end of the log may have changed.
    """
    return (
        not partition.is_leader
        and not partition.is_gone
        and partition.leader_epoch == position.leader_epoch
        and partition.log.log_end_offset == position.offset
    )


def _needs_flush(partition: Partition) -> bool:
    log = partition.log_handle.opened
    return (
        partition.is_durable
        and not partition.is_gone
        and not partition.gate.is_closed
        and log is not None
        and log.recovery_point < log.log_end_offset
    )
