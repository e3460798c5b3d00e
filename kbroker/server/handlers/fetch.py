"""Fetch (1), v0-18: reads ranges of files. A fetch below min_bytes waits for its partitions, without a task.

Reads every partition. Responds if there are min_bytes or an error, or if max_wait_ms is 0. Otherwise it is delayed:
each partition reports how many bytes have become visible, and the fetch reads again when enough are visible or at its
timeout. A follower reads to the log end offset; its fetch offset is also its acknowledgement of all records before.
A consumer of v11 or later may read from any replica, up to its high watermark; with a rack-aware selector the leader
names the follower in the consumer's rack and returns no records (KIP-392).
Hot path: no object for each record, one FileSlice for each partition.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import StorageFailure
from kbroker.log.files.file_slice import FileSlice
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.legacy_message_set import convert_down
from kbroker.protocol.messages import fetch as messages
from kbroker.protocol.record_batch import InvalidBatch
from kbroker.server.access.permissions import allows_cluster, allows_topic
from kbroker.server.requests.fetch_at_length import fetch_at_length
from kbroker.server.requests.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    FetchTarget,
    QuietTarget,
    TopicKey,
)
from kbroker.server.topics.hosted_partition import absence

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request
    from kbroker.server.topics.preferred_replicas import PreferredReplicas
    from kbroker.server.wire.deadlines import Deadline

__all__ = [
    "CONSUMER",
    "FOLLOWERS_SINCE",
    "MANY_TARGETS",
    "READ_COMMITTED",
    "TOPIC_IDS_SINCE",
    "handle",
    "plain_answer",
    "refusal",
    "refuse",
    "replica_id",
    "session_answer",
]

READ_COMMITTED: Final = 1
CONSUMER: Final = -1
DEBUG_REPLICA: Final = -2
ZSTD_SINCE: Final = 10
FOLLOWERS_SINCE: Final = 11  # clients of this version may read from followers (KIP-392)
TOPIC_IDS_SINCE: Final = 13
MANY_TARGETS: Final = 5_000  # partitions of one fetch: they are read in slices
_MAX_SESSION_CHANGES: Final = 20_000  # partitions that one request may add to a session: they are added in one turn
_OVERHEAD: Final = 60  # approximate bytes of a partition in the response, without its records

_new_response: Final = messages.RESPONSE.maker()
_new_topic_response: Final = messages.FetchableTopicResponse.maker()
_new_partition_data: Final = messages.PartitionData.maker()


def handle(context: Context, request: Request) -> Any:
    body = request.body
    session: FetchSession | None = None
    is_incremental = False
    count = 0
    for topic in body.topics:
        count += len(topic.partitions)
    count = max(count, len(body.topics))  # topics without partitions take time too
    if count > _MAX_SESSION_CHANGES or _forgotten_count(body) > _MAX_SESSION_CHANGES:
        if request.version >= 7 and body.session_epoch > INITIAL_EPOCH:
            return _new_response(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    elif request.version >= 7 and body.session_epoch != FINAL_EPOCH:
        outcome = _open_session(context, request)
        if isinstance(outcome, ErrorCode):
            return _new_response(error_code=outcome)
        session = outcome
        is_incremental = body.session_epoch != INITIAL_EPOCH
    elif body.session_id:
        context.fetch_sessions.end(body.session_id)
    leaves_out_quiet = session is not None and is_incremental and session.begin_read()
    if session is None:
        size = count
    else:
        size = len(session.busy if leaves_out_quiet else session.targets)
    if size > MANY_TARGETS:
        return fetch_at_length(context, _Fetch(context, request, [], session, is_incremental))
    if session is None:
        targets = _targets(request)
    else:
        targets = list(session.busy if leaves_out_quiet else session.targets.values())
    fetch = _Fetch(context, request, targets, session, is_incremental)
    fetch.leaves_out_quiet = leaves_out_quiet
    is_enough = fetch.read()
    if is_enough or body.max_wait_ms <= 0 or not (targets or leaves_out_quiet):
        return fetch.response()
    fetch.delay()
    return None


def refuse(request: Request, code: int, message: str | None) -> Any:
    if request.version >= 7:
        return _new_response(error_code=code)
    return _new_response(
        responses=[
            _new_topic_response(
                topic=topic.topic,
                partitions=[_failure(asked.partition, code) for asked in topic.partitions],
            )
            for topic in request.body.topics
        ]
    )


def refusal(request: Request, partition: Partition, leader_epoch: int) -> ErrorCode:
    """Returns the error that forbids reading from this partition at any offset; NONE if it may be read."""
    code = partition.check_leader_epoch(leader_epoch)
    if code:
        return code
    if request.version < ZSTD_SINCE and partition.config.compression_type == "zstd":
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.NONE


def plain_answer(
    request: Request, high_watermark: int, last_stable_offset: int, log_start_offset: int, records: bytes
) -> Any:
    """Returns the response to a request for one partition, without a fetch session."""
    (topic,) = request.body.topics
    data = _new_partition_data(
        partition_index=topic.partitions[0].partition,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log_start_offset,
        aborted_transactions=_no_aborts(request),
        records=records,
    )
    return _new_response(responses=[_new_topic_response(topic=topic.topic, topic_id=topic.topic_id, partitions=[data])])


def session_answer(request: Request, session_id: int, topic_id: bytes, **partition: Any) -> Any:
    """Returns the response with one partition, whose members are given, in a version that names topics by their id."""
    data = _new_partition_data(aborted_transactions=_no_aborts(request), **partition)
    return _new_response(session_id=session_id, responses=[_new_topic_response(topic_id=topic_id, partitions=[data])])


def _no_aborts(request: Request) -> list[Any] | None:
    return [] if request.body.isolation_level == READ_COMMITTED else None


def replica_id(request: Request) -> int:
    body = request.body
    found: int = body.replica_id if request.version < 15 else body.replica_state.replica_id
    return found


def _open_session(context: Context, request: Request) -> FetchSession | ErrorCode | None:
    body = request.body
    uses_topic_ids = request.version >= TOPIC_IDS_SINCE
    if body.session_epoch == INITIAL_EPOCH:
        if body.session_id:
            context.fetch_sessions.end(body.session_id)
        return context.fetch_sessions.begin(
            sum(len(topic.partitions) for topic in body.topics),
            lambda: _targets(request),
            uses_topic_ids=uses_topic_ids,
            is_of_follower=replica_id(request) >= 0,
        )
    session = context.fetch_sessions.resume(body.session_id, body.session_epoch, uses_topic_ids=uses_topic_ids)
    if isinstance(session, FetchSession) and not context.fetch_sessions.update(
        session,
        ((_key(topic, request), asked) for topic in body.topics for asked in topic.partitions),
        ((_key(topic, request), index) for topic in body.forgotten_topics_data for index in topic.partitions),
    ):
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND  # the client sends all partitions again
    return session


def _forgotten_count(body: Any) -> int:
    topics = body.forgotten_topics_data
    return max(len(topics), sum(len(topic.partitions) for topic in topics)) if topics else 0


def _key(topic: Any, request: Request) -> TopicKey:
    key: TopicKey = topic.topic_id if request.version >= TOPIC_IDS_SINCE else topic.topic
    return key


def _targets(request: Request) -> list[FetchTarget]:
    return [FetchTarget(_key(topic, request), asked) for topic in request.body.topics for asked in topic.partitions]


def _count(partition: Partition, size: int, replica_id: int) -> None:
    """Adds to the bytes that consumers or followers have read."""
    if replica_id < 0:
        partition.fetched_bytes += size
    else:
        partition.replicated_bytes += size
        if replica_id in partition.adding_replicas:
            partition.reassignment_bytes_out += size


def _failure(index: int, code: int) -> Any:
    return _new_partition_data(partition_index=index, error_code=code, high_watermark=-1, aborted_transactions=None)


def _new_topic(key: TopicKey) -> Any:
    named = {"topic_id": key} if isinstance(key, bytes) else {"topic": key}
    return _new_topic_response(**named)


class _Fetch:
    """Fetch request until its response. `missing`: bytes that must become visible before it reads again."""

    __slots__ = (
        "answers",
        "context",
        "deadline",
        "is_due",
        "is_incremental",
        "leaves_out_quiet",
        "missing",
        "partitions",
        "preferred_replicas",
        "quiet",
        "replica_id",
        "request",
        "session",
        "size",
        "targets",
    )

    def __init__(
        self,
        context: Context,
        request: Request,
        targets: list[FetchTarget],
        session: FetchSession | None,
        is_incremental: bool,
    ) -> None:
        self.context = context
        self.request = request
        self.targets = targets
        self.session = session
        self.is_incremental = is_incremental
        self.leaves_out_quiet = False
        self.is_due = False
        self.answers: list[tuple[FetchTarget, Any]] = []
        self.quiet: list[tuple[FetchTarget, Partition, Any]] = []
        """Partitions of which the follower has everything, and their answers."""
        self.size = 0
        self.missing = 0
        self.partitions: list[Partition] = []
        self.deadline: Deadline | None = None
        self.replica_id = replica_id(request)
        replicas = context.preferred_replicas
        if replicas is not None and (self.replica_id >= 0 or not replicas.may_be_elsewhere(request.body.rack_id)):
            replicas = None
        self.preferred_replicas: PreferredReplicas | None = replicas

    def read(self) -> bool:
        """Reads every partition. Returns True if the response can be sent now."""
        request = self.request
        body = request.body
        max_bytes = min(body.max_bytes, self.context.config.fetch_max_bytes)
        # Quotas are for clients only: a throttled follower would fall out of the ISR.
        quotas = request.route.quotas if self.replica_id < 0 else None
        if quotas is not None and (limit := quotas.fetch_limit(request)) is not None:
            max_bytes = min(max_bytes, int(limit))
            body.min_bytes = min(body.min_bytes, max_bytes)
        self.answers, self.size, self.partitions, self.quiet = [], 0, [], []
        is_final = False
        try:
            for target in self.targets:
                answer = self._read_one(target, max_bytes - self.size)
                self.answers.append((target, answer))
                self.size += len(answer.records)
                is_final = is_final or answer.error_code != 0 or answer.diverging_epoch.epoch >= 0
                is_final = is_final or answer.preferred_read_replica >= 0
        except BaseException:
            self._release()
            raise
        return is_final or self.size >= body.min_bytes

    def target_steps(self) -> Generator[None, None, None]:
        """Collects the partitions to read, of the session or of the request. Yields so that the loop may go on."""
        if self.session is not None:
            self.targets = list(self.session.targets.values())
            return
        for topic in self.request.body.topics:
            key = _key(topic, self.request)
            for asked in topic.partitions:
                self.targets.append(FetchTarget(key, asked))
                yield
            yield

    def read_steps(self) -> Generator[None, None, bool]:
        """Like `read`, with pauses and without quotas."""
        body = self.request.body
        max_bytes = min(body.max_bytes, self.context.config.fetch_max_bytes)
        self.release()
        self.answers, self.size, self.partitions, self.quiet = [], 0, [], []
        is_final = False
        for target in self.targets:
            answer = self._read_one(target, max_bytes - self.size)
            self.answers.append((target, answer))
            self.size += len(answer.records)
            is_final = is_final or answer.error_code != 0 or answer.diverging_epoch.epoch >= 0
            is_final = is_final or answer.preferred_read_replica >= 0
            yield
        return is_final or self.size >= body.min_bytes

    def response_steps(self) -> Generator[None, None, Any]:
        """Like `response`, with pauses."""
        session = self.session
        quotas = self.request.route.quotas if self.replica_id < 0 else None
        if quotas is not None and not quotas.may_fetch(self.request, self.size + _OVERHEAD * len(self.answers)):
            return self._throttled()
        topics: list[Any] = []
        last: TopicKey | None = None
        for target, answer in self.answers:
            if session is not None:
                is_changed = target.is_changed(answer)
                if answer.records:
                    session.move_behind(target)
                if self.is_incremental and not is_changed:
                    continue
            if target.topic != last:
                last = target.topic
                topics.append(_new_topic(last))
            topics[-1].partitions.append(answer)
            yield
        if session is not None and session.is_of_follower:
            self._note_quiet(session)
        return _new_response(session_id=session.id if session is not None else 0, responses=topics)

    def release(self) -> None:
        """Releases the slices that were read, so that they can be read again."""
        if self.size:
            self._uncount()
        self._release()

    def response(self) -> Any:
        session = self.session
        quotas = self.request.route.quotas if self.replica_id < 0 else None
        if quotas is not None and not quotas.may_fetch(self.request, self.size + _OVERHEAD * len(self.answers)):
            return self._throttled()
        answers: Iterable[tuple[FetchTarget, Any]] = self.answers
        if session is not None:
            changes = [(target, answer, target.is_changed(answer)) for target, answer in self.answers]
            for target, answer, _ in changes:
                if answer.records:
                    session.move_behind(target)
            if self.is_incremental:
                answers = [(target, answer) for target, answer, is_changed in changes if is_changed]
            if session.is_of_follower:
                self._note_quiet(session)
        return _new_response(session_id=session.id if session is not None else 0, responses=self._by_topic(answers))

    def _note_quiet(self, session: FetchSession) -> None:
        """Registers the follower with the partitions that are quiet after this response. Each reports a change."""
        busy = session.busy
        for target, _ in self.answers:
            busy[target] = None
        for target, partition, answer in self.quiet:
            leadership, log = partition.leadership, partition.opened_log
            if (
                leadership is not None
                and log is not None
                and self.replica_id in leadership.view.isr
                and target.fetch_offset == log.log_end_offset
                and answer.high_watermark == log.high_watermark
                and answer.log_start_offset == log.log_start_offset
            ):
                leadership.quiet_followers[self.replica_id] = QuietTarget(session, target)
                busy.pop(target, None)

    def _throttled(self) -> Any:
        """Returns a response without records. A session that was created by this request is removed again."""
        self.release()
        session = self.session
        if session is None or not self.is_incremental:
            if session is not None:
                self.context.fetch_sessions.end(session.id)
            return _new_response()
        return _new_response(session_id=session.id)

    def delay(self) -> None:
        """Delays the response until `min_bytes` are visible. Releases the slices; they are read again then, cheaply."""
        self.release()
        self.missing = self.request.body.min_bytes - self.size
        if self.session is not None and self.replica_id >= 0:
            self.session.waiter = self
        for partition in self.partitions:
            if self.replica_id < 0:
                partition.fetch_waiters.add(self)
            elif partition.leadership is not None:
                partition.leadership.replica_waiters.add(self)
        self.deadline = self.context.deadlines.add(self.request.body.max_wait_ms / 1000, self.finish)
        self.request.slot.on_cancel = self._stop_waiting

    def on_visible(self, size: int) -> None:
        """Called by a partition when `size` more bytes are visible."""
        self.missing -= size
        if self.missing <= 0 and (self.request.body.isolation_level != READ_COMMITTED or self._has_committed_records()):
            run = self.context.run
            if self.replica_id >= 0 and run.is_open:
                # After all writes of the run: a follower gets the records of all its partitions with one response.
                if not self.is_due:
                    self.is_due = True
                    run.wake_at_end(self._finish_in_run)
            else:
                self._finish_in_run()

    def _finish_in_run(self) -> None:
        if self.context.run.may_complete():
            self.finish()
        else:
            self._finish_soon()

    def _finish_soon(self) -> None:
        """Finishes in a later turn: too many fetches wait for the same records."""
        if self.deadline is not None and self.deadline.callback is None:
            return  # completed already
        self._stop_waiting()
        self.deadline = self.context.deadlines.add(0.0, self.finish)

    def _has_committed_records(self) -> bool:
        """Whether a read_committed consumer can read records now: open transactions are not visible to it."""
        pairs = zip(self.targets, self.partitions, strict=True)  # equal: a delayed fetch has no partition with an error
        return any(target.fetch_offset < partition.last_stable_offset for target, partition in pairs)

    def finish(self) -> None:
        """Reads again and responds. Raises nothing: the caller is the producer or follower that made bytes visible."""
        if self.deadline is not None and self.deadline.callback is None:
            return  # completed already, by the read of another follower's fetch
        self._stop_waiting()
        if self.leaves_out_quiet and self.session is not None:
            self.targets = list(self.session.busy)
        try:
            self.read()
            response = self.response()
        except Exception as error:
            self.request.fail(error)
        else:
            self.request.reply(response)

    def _stop_waiting(self) -> None:
        session = self.session
        if session is not None and session.waiter is self:
            session.waiter = None
        for partition in self.partitions:
            partition.fetch_waiters.discard(self)
            if partition.leadership is not None:
                partition.leadership.replica_waiters.discard(self)
        if self.deadline is not None:
            self.deadline.cancel()

    def _release(self) -> None:
        for _, answer in self.answers:
            if isinstance(answer.records, FileSlice):
                answer.records.release()

    def _uncount(self) -> None:
        """Subtracts the bytes of this read from those of the partitions: they are read and counted again later."""
        table = self.context.partitions
        for target, answer in self.answers:
            name = target.topic if isinstance(target.topic, str) else table.topic_name(target.topic)
            if answer.records and name is not None and (partition := table.replica(name, target.index)) is not None:
                _count(partition, -len(answer.records), self.replica_id)

    def _by_topic(self, answers: Iterable[tuple[FetchTarget, Any]]) -> list[Any]:
        topics: list[Any] = []
        last: TopicKey | None = None
        for target, answer in answers:
            if target.topic != last:
                last = target.topic
                topics.append(_new_topic(last))
            topics[-1].partitions.append(answer)
        return topics

    def _read_one(self, target: FetchTarget, max_bytes: int) -> Any:
        context = self.context
        topic = target.topic
        if isinstance(topic, bytes):
            name = context.partitions.topic_name(topic)
            if name is None:
                return _failure(target.index, ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            name = topic
        authorizer = context.authorizer
        if not authorizer.allows_all and not self._is_allowed(name):
            return _failure(target.index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = context.partitions.get(name, target.index)
        if partition is None and self.replica_id < 0 and self.request.version >= FOLLOWERS_SINCE:
            partition = context.partitions.follower(name, target.index)
        if partition is None:
            epoch = target.current_leader_epoch
            return _failure(target.index, absence(context, name, target.index, leader_epoch=epoch))
        self.partitions.append(partition)
        try:
            return self._read_partition(partition, target, max_bytes)
        except StorageFailure:
            return _failure(target.index, ErrorCode.KAFKA_STORAGE_ERROR)

    def _is_allowed(self, name: str) -> bool:
        if self.replica_id >= 0:
            return allows_cluster(self.context, self.request, AclOperation.CLUSTER_ACTION)
        return allows_topic(self.context, self.request, AclOperation.READ, name)

    def _read_partition(self, partition: Partition, target: FetchTarget, max_bytes: int) -> Any:
        request = self.request
        body = request.body
        code = refusal(request, partition, target.current_leader_epoch)
        if code:
            return _failure(target.index, code)
        log = partition.log
        high_watermark = log.high_watermark
        is_committed = body.isolation_level == READ_COMMITTED
        last_stable_offset = log.last_stable_offset
        answer = _new_partition_data(
            partition_index=target.index,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=_no_aborts(request),
        )
        offset = target.fetch_offset
        if self.preferred_replicas is not None and self._is_elsewhere(partition, offset, answer):
            return answer
        if target.last_fetched_epoch >= 0:
            # Checked before the range: a client beyond the end of a truncated log needs the point of divergence.
            epoch, end_offset = partition.end_offset_for_epoch(target.last_fetched_epoch)
            if epoch < 0:
                return _failure(target.index, ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < target.last_fetched_epoch or end_offset < offset:
                answer.diverging_epoch = messages.EpochEndOffset(epoch=epoch, end_offset=end_offset)
                return answer
        if not log.log_start_offset <= offset <= log.log_end_offset:
            return _failure(target.index, ErrorCode.OFFSET_OUT_OF_RANGE)
        if self.replica_id == CONSUMER:
            bound = last_stable_offset if is_committed else high_watermark
        else:
            bound = log.log_end_offset
            if self.replica_id != DEBUG_REPLICA:
                code = self._record_follower(partition, target)
                if code:
                    return _failure(target.index, code)
                answer.high_watermark = log.high_watermark
                if partition.leadership is not None and partition.leadership.is_throttled(self.replica_id):
                    return answer
        size = min(target.max_bytes, max_bytes)
        is_first = self.size == 0 and request.version >= 3
        if offset >= bound:
            if self.replica_id >= 0:
                self.quiet.append((target, partition, answer))
            return answer
        if size <= 0 and not is_first:
            return answer
        slice_ = partition.read(offset, size, bound, is_first=is_first)
        if slice_ is None:
            return answer
        if isinstance(slice_, ErrorCode):
            return _failure(target.index, slice_)
        if is_committed:
            answer.aborted_transactions = [
                messages.AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in log.aborted_transactions(offset, bound, slice_)
            ]
        answer.records = slice_ if request.version >= 4 else self._converted(slice_, offset, answer)
        _count(partition, len(answer.records), self.replica_id)
        if self.replica_id >= 0 and partition.leadership is not None:
            partition.leadership.on_sent(len(answer.records))
        return answer

    def _is_elsewhere(self, partition: Partition, offset: int, answer: Any) -> bool:
        """Whether the client should read from a follower in its rack. Then the answer names it and has no records."""
        assert self.preferred_replicas is not None
        request = self.request
        broker_id = self.preferred_replicas.find(
            partition, offset, rack_id=request.body.rack_id, listener_name=request.listener_name
        )
        if broker_id is None:
            return False
        answer.preferred_read_replica = broker_id
        answer.aborted_transactions = None
        return True

    def _record_follower(self, partition: Partition, target: FetchTarget) -> ErrorCode:
        """Records that the follower has all offsets before its fetch offset. Returns an error if it is no replica."""
        # A delayed fetch was counted when it arrived: its second read does not prove that the follower is alive.
        if self.deadline is not None:
            return ErrorCode.NONE
        leadership = partition.leadership
        body = self.request.body
        epoch: int = body.replica_state.replica_epoch if self.request.version >= 15 else -1
        if leadership is None or not leadership.on_fetch(
            self.replica_id, target.fetch_offset, target.log_start_offset, epoch
        ):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def _converted(self, slice_: FileSlice, offset: int, answer: Any) -> bytes:
        """Returns the records in the message format of older clients (magic 0 or 1)."""
        try:
            return convert_down(slice_.read(), magic=1 if self.request.version >= 2 else 0, first_offset=offset)
        except InvalidBatch as error:
            answer.error_code = error.code
            return b""
        finally:
            slice_.release()
