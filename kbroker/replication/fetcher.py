"""Copies partitions from their leaders: one task for each broker that leads something of which a replica is here.

    ReplicaFetchers   which partition is fetched from whom, as the image says
    LeaderFetcher     one connection, one fetch after the other; what goes wrong with a partition rests that one alone

Where there is nothing to follow there is no task. Never decides who leads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from kbroker.client.address import Address
from kbroker.client.connection import Connection, open_connection
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, NotServed, error_code
from kbroker.clock import Clock
from kbroker.config import BrokerConfig
from kbroker.controller.changes import Change, PartitionsChanged, TopicAdded, TopicRemoved
from kbroker.controller.image import NO_LEADER, Image
from kbroker.errors import PeerError, StorageFailure
from kbroker.log.leader_epochs import EpochEntry
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import fetch, list_offsets
from kbroker.protocol.record_batch import InvalidBatch
from kbroker.protocol.registry import api
from kbroker.replication.flusher import Flusher
from kbroker.replication.follower_view import restart_after
from kbroker.replication.incremental_fetch import Asked, IncrementalFetch, Key
from kbroker.replication.partition import Partition
from kbroker.replication.partition_table import PartitionTable

__all__ = ["LeaderFetcher", "ReplicaFetchers"]

logger = logging.getLogger(__name__)

_FETCH: Final = api(1)
_LIST_OFFSETS: Final = api(2)
_TOPIC_IDS_SINCE: Final = 13
_EPOCHS_SINCE: Final = 4
_LATEST: Final = -1
_EARLIEST: Final = -2
_SLICE_SECONDS: Final = 0.002
_FIRST_REST_SECONDS: Final = 0.02
_SESSION_ERRORS: Final = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)
# A leader that has not heard of its leadership yet, or no longer believes in it: the image will tell.
_PASSING: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


class ReplicaFetchers:
    def __init__(
        self, table: PartitionTable, flusher: Flusher, config: BrokerConfig, clock: Clock, *, broker_id: int
    ) -> None:
        self._table = table
        self._flusher = flusher
        self._config = config
        self._clock = clock
        self._broker_id = broker_id
        self._image = Image()
        self._leader_of: dict[tuple[str, int], int] = {}
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._nursery: trio.Nursery | None = None
        self.on_busy: Callable[[bool], None] = lambda is_busy: None
        """Called with True when there is something to follow, and with False when there is not any more."""

    def on_image(self, image: Image, changes: Sequence[Change]) -> None:
        """After the table has seen it."""
        self._image = image
        if not self._table.followers and not self._leader_of:
            return
        for change in changes:
            match change:
                case TopicAdded(topic) | TopicRemoved(topic):
                    for index in range(len(topic.partitions)):
                        self._place(topic.name, index)
                case PartitionsChanged(name, changed):
                    for index in changed:
                        self._place(name, index)

    def _place(self, topic: str, index: int) -> None:
        key = (topic, index)
        partition = self._table.followers.get(key)
        leader = NO_LEADER if partition is None else partition.leader_id
        if leader == self._broker_id:
            leader = NO_LEADER
        before = self._leader_of.pop(key, NO_LEADER)
        if before not in (NO_LEADER, leader) and before in self._fetchers:
            self._fetchers[before].remove(topic, index)
        if partition is not None and leader != NO_LEADER:
            self._leader_of[key] = leader
            self._fetcher(leader).add(partition)

    def _fetcher(self, leader: int) -> LeaderFetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = LeaderFetcher(
                leader,
                self._flusher,
                self._config,
                self._clock,
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch,
                address=self._address,
            )
            self.on_busy(True)
            if self._nursery is not None:
                self._nursery.start_soon(self._follow, fetcher)
        return fetcher

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            for fetcher in self._fetchers.values():
                self._nursery.start_soon(self._follow, fetcher)
            await trio.sleep_forever()

    async def _follow(self, fetcher: LeaderFetcher) -> None:
        while fetcher.has_work:
            await fetcher.run()
        del self._fetchers[fetcher.leader_id]
        if not self._fetchers:
            self.on_busy(False)

    def _address(self, broker_id: int) -> Address | None:
        broker = self._image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._config.inter_broker_endpoint.name)
        return None if endpoint is None else Address(endpoint.host, endpoint.port)

    def _broker_epoch(self) -> int:
        broker = self._image.brokers.get(self._broker_id)
        return -1 if broker is None else broker.epoch


class _Followed:
    __slots__ = ("partition", "rest_seconds", "resume_at", "trouble")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.resume_at = 0.0
        self.rest_seconds = _FIRST_REST_SECONDS
        self.trouble: ErrorCode | None = None  # what it rests for: told once


class LeaderFetcher:
    """Everything that is followed of one leader."""

    def __init__(
        self,
        leader_id: int,
        flusher: Flusher,
        config: BrokerConfig,
        clock: Clock,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        address: Callable[[int], Address | None],
    ) -> None:
        self.leader_id = leader_id
        self._flusher = flusher
        self._config = config
        self._monotonic = clock.monotonic
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._address = address
        self._followed: dict[Key, _Followed] = {}
        self._keys: dict[tuple[str, int], Key] = {}
        self._session = IncrementalFetch()
        self._has_changed = trio.Event()
        self._is_reachable = True  # as far as has been told

    @property
    def has_work(self) -> bool:
        return bool(self._followed)

    def add(self, partition: Partition) -> None:
        """Or anew: its leader's epoch has changed."""
        key = (partition.topic_id, partition.index)
        self._keys[partition.topic, partition.index] = key
        self._followed[key] = _Followed(partition)
        self._has_changed.set()

    def remove(self, topic: str, index: int) -> None:
        key = self._keys.pop((topic, index), None)
        if key is not None:
            del self._followed[key]
            self._has_changed.set()

    async def run(self) -> None:
        """One connection, until it fails or nothing is left to follow."""
        address = self._address(self.leader_id)
        try:
            if address is None:
                raise ConnectionFailed(address, f"broker {self.leader_id} is not there")
            async with open_connection(address, client_id=f"broker-{self._broker_id}-fetcher-0") as connection:
                self._session.reset()
                while self._followed and self._address(self.leader_id) == address:
                    await self._round(connection)
                return
        except (ConnectionFailed, PeerError, NotServed, BrokerRefusal) as failure:
            self._tell(str(failure))
        except Exception:
            logger.exception("fetching from broker %d failed", self.leader_id)
        await self._rest(self._backoff_seconds)

    def _tell(self, reason: str) -> None:
        if self._is_reachable:
            self._is_reachable = False
            logger.warning("nothing is replicated from broker %d for now: %s", self.leader_id, reason)

    @property
    def _backoff_seconds(self) -> float:
        return self._config.replica_fetch_backoff_ms / 1000

    async def _rest(self, seconds: float) -> None:
        """Or until something else is to be followed."""
        self._has_changed = trio.Event()
        with trio.move_on_after(seconds):
            await self._has_changed.wait()

    # One fetch

    async def _round(self, connection: Connection) -> None:
        wanted = await self._wanted()
        if not wanted:
            resume_at = min((each.resume_at for each in self._followed.values()), default=0.0)
            await self._rest(max(resume_at - trio.current_time(), 0.001))
            return
        response = await self._fetch(connection, wanted)
        code = error_code(response.error_code)
        if code in _SESSION_ERRORS:
            self._session.reset()
            return
        if code:
            raise BrokerRefusal(code, f"a fetch from broker {self.leader_id}")
        self._is_reachable = True
        self._session.on_answer(response.session_id)
        out_of_range: list[tuple[_Followed, Asked]] = []
        began = self._monotonic()
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                followed, asked = self._followed.get(key), wanted.get(key)
                if followed is None or asked is None or not _is_as_asked(followed.partition, asked):
                    continue  # its leader has changed meanwhile
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    out_of_range.append((followed, asked))
                else:
                    self._guard(followed, data, self._take)
                if self._monotonic() - began > _SLICE_SECONDS:
                    await trio.lowlevel.checkpoint()
                    began = self._monotonic()
        for followed, asked in out_of_range:
            await self._find_range(connection, followed, asked)
        await self._wait_flushed()

    async def _wanted(self) -> dict[Key, Asked]:
        await self._load_logs()
        now = trio.current_time()
        wanted: dict[Key, Asked] = {}
        for key, followed in self._followed.items():
            if followed.resume_at <= now:
                partition = followed.partition
                try:
                    log = partition.log
                    wanted[key] = Asked(
                        partition.leader_epoch, log.log_end_offset, log.leader_epochs.latest, log.log_start_offset
                    )
                except StorageFailure as failure:
                    self._delay(followed, ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
        return wanted

    async def _load_logs(self) -> None:
        """To read the tails of thousands of logs takes seconds, in which others want their turns."""
        unread = [each.partition.log for each in self._followed.values() if not each.partition.log.is_loaded]
        began = self._monotonic()
        for log in unread:
            with suppress(StorageFailure):  # whoever asks it next is told
                log.load()
            if self._monotonic() - began > _SLICE_SECONDS:
                await trio.lowlevel.checkpoint()
                began = self._monotonic()

    async def _fetch(self, connection: Connection, wanted: dict[Key, Asked]) -> Any:
        config, session = self._config, self._session
        said, forgotten = session.next(wanted)
        topics: dict[bytes, Any] = {}
        for (topic_id, index), asked in said.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = fetch.FetchTopic(topic_id=topic_id, partitions=[])
            topic.partitions.append(
                fetch.FetchPartition(
                    partition=index,
                    current_leader_epoch=asked.leader_epoch,
                    fetch_offset=asked.offset,
                    last_fetched_epoch=asked.last_epoch,
                    log_start_offset=asked.log_start_offset,
                    partition_max_bytes=config.replica_fetch_max_bytes,
                )
            )
        replica = fetch.ReplicaState(replica_id=self._broker_id, replica_epoch=self._broker_epoch())
        wait_ms = config.replica_fetch_wait_max_ms
        if len(wanted) < len(self._followed):  # those that rest shall not rest for longer
            resume_at = min(each.resume_at for key, each in self._followed.items() if key not in wanted)
            wait_ms = max(min(wait_ms, int((resume_at - trio.current_time()) * 1000)), 0)
        return await connection.ask(
            _FETCH,
            at_least=_TOPIC_IDS_SINCE,
            timeout_s=(config.replica_socket_timeout_ms + wait_ms) / 1000,
            replica_id=self._broker_id,
            replica_state=replica,
            max_wait_ms=wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=[
                fetch.ForgottenTopic(topic_id=topic_id, partitions=[index]) for topic_id, index in forgotten
            ],
        )

    def _guard(self, followed: _Followed, data: Any, work: Callable[[_Followed, Any], None]) -> None:
        """A broken disk, a rotten batch or a bug stops one partition, and not the others of its leader."""
        try:
            work(followed, data)
        except StorageFailure as failure:
            self._delay(followed, ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
        except InvalidBatch as problem:
            self._delay(followed, ErrorCode.CORRUPT_MESSAGE, str(problem))
        except Exception:
            logger.exception("%r cannot follow", followed.partition)
            self._delay(followed, ErrorCode.UNKNOWN_SERVER_ERROR, "")

    def _take(self, followed: _Followed, data: Any) -> None:
        partition = followed.partition
        code = error_code(data.error_code)
        if code:
            self._delay(followed, code, "")
            return
        if not partition.is_writable:
            self._delay(followed, ErrorCode.KAFKA_STORAGE_ERROR, "its directory takes no writes")
            return
        diverging = data.diverging_epoch
        if diverging.end_offset >= 0:
            self._cut(followed, EpochEntry(diverging.epoch, diverging.end_offset))
        else:
            partition.append_fetched(data.records or b"", data.high_watermark, data.log_start_offset)
            followed.trouble = None
            followed.rest_seconds = _FIRST_REST_SECONDS

    def _cut(self, followed: _Followed, diverging: EpochEntry) -> None:
        partition, log = followed.partition, followed.partition.log
        before = (log.log_end_offset, log.leader_epochs.latest)
        offset = partition.cut_diverged(diverging)
        text = "%s-%d parts from its leader in epoch %d: cut from %d to %d"
        logger.info(text, partition.topic, partition.index, diverging.epoch, before[0], offset)
        if before == (log.log_end_offset, log.leader_epochs.latest):
            self._delay(followed, ErrorCode.UNKNOWN_LEADER_EPOCH, "a cut that changes nothing")

    def _delay(self, followed: _Followed, code: ErrorCode, reason: str) -> None:
        # A leader mostly hears of its leadership a moment after its followers: they need not wait for long at first.
        is_fresh = code in _PASSING and followed.rest_seconds < self._backoff_seconds
        rest_seconds = followed.rest_seconds if is_fresh else self._backoff_seconds
        followed.rest_seconds *= 2
        followed.resume_at = trio.current_time() + rest_seconds
        if followed.trouble is not code and not is_fresh:
            followed.trouble = code
            partition = followed.partition
            level = logging.INFO if code in _PASSING else logging.ERROR
            text = "%s-%d is not replicated from broker %d for now: %s %s"
            logger.log(level, text, partition.topic, partition.index, self.leader_id, code.name, reason)

    # Out of range

    async def _find_range(self, connection: Connection, followed: _Followed, asked: Asked) -> None:
        """Its log is not where the leader's is: cut, or begin anew at the leader's start."""
        try:
            end = await self._leader_offset(connection, followed.partition, _LATEST)
            start = await self._leader_offset(connection, followed.partition, _EARLIEST)
        except BrokerRefusal as refusal:
            self._delay(followed, refusal.code, str(refusal))
            return
        if _is_as_asked(followed.partition, asked):
            self._guard(followed, (start, end), self._restart)

    def _restart(self, followed: _Followed, ends: tuple[int, int]) -> None:
        partition = followed.partition
        start, end = ends
        restart = restart_after(partition.log.log_end_offset, leader_start=start, leader_end=end)
        logger.warning(
            "%s-%d ends at %d, its leader has %d to %d: %s",
            *(partition.topic, partition.index, partition.log.log_end_offset, start, end, restart),
        )
        partition.restart(restart)

    async def _leader_offset(self, connection: Connection, partition: Partition, timestamp: int) -> int:
        wanted = list_offsets.ListOffsetsPartition(
            partition_index=partition.index, current_leader_epoch=partition.leader_epoch, timestamp=timestamp
        )
        response = await connection.ask(
            _LIST_OFFSETS,
            at_least=_EPOCHS_SINCE,
            timeout_s=self._config.replica_socket_timeout_ms / 1000,
            replica_id=self._broker_id,
            topics=[list_offsets.ListOffsetsTopic(name=partition.topic, partitions=[wanted])],
        )
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise BrokerRefusal(answer.error_code, f"{partition.topic}-{partition.index}")
        offset: int = answer.offset
        return offset

    async def _wait_flushed(self) -> None:
        """The next fetch says what this replica has. With flush.messages=1 that is what its disk has."""
        while unflushed := [each.partition for each in self._followed.values() if _awaits_flush(each.partition)]:
            for partition in unflushed:
                self._flusher.request(partition)
            await self._flusher.wait_round()


def _is_as_asked(partition: Partition, asked: Asked) -> bool:
    return (
        not partition.is_leader
        and not partition.is_gone
        and partition.leader_epoch == asked.leader_epoch
        and partition.log.log_end_offset == asked.offset
    )


def _awaits_flush(partition: Partition) -> bool:
    log = partition.log
    return (
        partition.is_durable
        and not partition.is_gone
        and partition.is_writable
        and log.is_loaded
        and log.recovery_point < log.log_end_offset
    )
