"""A group of the classic protocol: members join, one of them is the leader and assigns, and each gets its assignment.

    state                | join: new or changed    | all (re)joined, or timeout    | leader's sync
    Empty                | → PreparingRebalance    |                               | UNKNOWN_MEMBER_ID
    PreparingRebalance   | waits                   | → CompletingRebalance (Empty) | REBALANCE_IN_PROGRESS
    CompletingRebalance  | → PreparingRebalance    |                               | record, → Stable
    Stable               | → PreparingRebalance    |                               | the assignment again

This is soft state: a broker that loads the group begins at Stable or Empty, as the last record says. Joins and syncs
that wait are in rebalance.py. A group has one alarm: heartbeats only move a member's deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.group.alarm import Alarm
from kbroker.group.classic.rebalance import Rebalance, join_error, sync_error
from kbroker.group.classic.roster import Member, Protocols, Roster
from kbroker.group.classic.states import MAY_FOLLOW, GroupState
from kbroker.group.classic.subscriptions import subscribed_topics
from kbroker.group.records import StoredGroup, group_record
from kbroker.group.result import AnyPendingResponse, GroupCoordinatorConfig, GroupResult, Now
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import join_group, sync_group

__all__ = ["ClassicGroup", "JoinRequest"]

_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE

_JoinResponse = join_group.RESPONSE.value
_JoinMember = join_group.JoinGroupResponseMember.value
_SyncResponse = sync_group.RESPONSE.value


class JoinRequest:
    """The fields of a JoinGroup request that a group needs."""

    __slots__ = (
        "body",
        "client_host",
        "client_id",
        "new_id",
        "pending",
        "protocols",
        "rebalance_timeout_ms",
        "version",
    )

    def __init__(
        self, body: Any, version: int, client_id: str, client_host: str, new_id: str, pending: AnyPendingResponse
    ) -> None:
        """`new_id`: the member id for a member that has none yet."""
        self.body = body
        self.version = version
        self.client_id = client_id
        self.client_host = client_host
        self.new_id = new_id
        self.pending = pending
        self.protocols: Protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols)
        # Version 0 has one timeout for both.
        timeout_ms = body.rebalance_timeout_ms
        self.rebalance_timeout_ms: int = body.session_timeout_ms if timeout_ms < 0 else timeout_ms


class ClassicGroup:
    __slots__ = (
        "_alarm",
        "_config",
        "_rebalance",
        "generation",
        "group_id",
        "protocol",
        "protocol_type",
        "roster",
        "state",
        "state_timestamp",
    )

    def __init__(self, group_id: str, config: GroupCoordinatorConfig, stored: StoredGroup) -> None:
        self.group_id = group_id
        self._config = config
        self.state = _STABLE if stored.members else _EMPTY
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol = stored.protocol
        self.state_timestamp = stored.state_timestamp
        self.roster = Roster()
        for member in stored.members:
            self.roster.add(Member.from_stored(member, stored.protocol))
        if stored.leader in self.roster.by_id:
            self.roster.leader_id = stored.leader
        self._alarm = Alarm()
        self._rebalance = Rebalance(self._alarm, config.initial_rebalance_delay_ms)

    def __repr__(self) -> str:
        return f"<ClassicGroup {self.group_id} {self.state.value} generation {self.generation}>"

    @property
    def is_idle(self) -> bool:
        """Whether the log holds everything about this group."""
        return self.state is _EMPTY and not self._rebalance.pending_members

    @property
    def pending_responses(self) -> list[AnyPendingResponse]:
        return self._rebalance.pending_responses

    def subscribed_topics(self) -> frozenset[str] | None:
        """Returns None if the members' metadata is not in Kafka's consumer format."""
        members = self.roster.by_id.values()
        return subscribed_topics(self.protocol_type, (member.metadata(self.protocol) for member in members))

    def on_loaded(self, now: Now, result: GroupResult) -> None:
        """Starts the members' sessions after a load: each has a whole session timeout to send a heartbeat."""
        for member in self.roster.by_id.values():
            self._touch(member, now)
        if len(self.roster) > self._config.max_size:
            self._prepare(now, result)
        self._alarm.put(self.group_id, result)

    def on_downgraded(self, now: Now, result: GroupResult) -> None:
        """Starts a rebalance in a group that was a consumer group: from now on one of its members assigns."""
        for member in self.roster.by_id.values():
            self._touch(member, now)
        self._prepare(now, result)
        self._alarm.put(self.group_id, result)

    def on_upgraded(self, result: GroupResult) -> None:
        """Ends this group, which continues as a consumer group. Waiting members get REBALANCE_IN_PROGRESS."""
        self._rebalance.refuse_all(result)

    # JoinGroup

    def join(self, request: JoinRequest, now: Now, result: GroupResult) -> None:
        body = request.body
        member_id: str = body.member_id
        if not self._has_capacity_for(member_id):
            self._rebalance.pending_members.pop(member_id, None)
            if member_id in self.roster.by_id:
                self._remove(member_id, result)
                self._complete_if_all_joined(now, result)
            result.replies.append((request.pending, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED)))
        elif not self._supports(body.protocol_type, request.protocols):
            result.replies.append((request.pending, join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)))
        elif not member_id:
            self._join_new(request, now, result)
        elif member_id in self._rebalance.pending_members and body.group_instance_id is None:
            self._add(request, member_id, now, result)
        else:
            code = self.validate(member_id, body.group_instance_id)
            if code:
                result.replies.append((request.pending, join_error(code, member_id)))
            else:
                self._rejoin(request, self.roster.by_id[member_id], now, result)
        self._alarm.put(self.group_id, result)

    def _has_capacity_for(self, member_id: str) -> bool:
        if self.state is _EMPTY:
            return True
        if self.state is _PREPARING:
            # As Kafka: counts the members that have joined, not all members. If the maximum was lowered, the last
            # members to rejoin are refused.
            joins = self._rebalance.joins
            return member_id in joins or len(joins) < self._config.max_size
        return member_id in self.roster.by_id or len(self.roster) < self._config.max_size

    def _supports(self, protocol_type: str, protocols: Protocols) -> bool:
        if self.state is _EMPTY:
            return bool(protocol_type and protocols)
        return self.protocol_type == protocol_type and self.roster.shares_one_of(name for name, _ in protocols)

    def _join_new(self, request: JoinRequest, now: Now, result: GroupResult) -> None:
        instance_id = request.body.group_instance_id
        if instance_id is not None:
            known_id = self.roster.static_ids.get(instance_id)
            if known_id is None:
                self._add(request, request.new_id, now, result)
            else:
                self._replace(request, known_id, now, result)
        elif request.version >= 4:
            # A client that never reads the response leaves no member behind (KIP-394).
            deadline_ms = self._alarm.after(now, request.body.session_timeout_ms)
            self._rebalance.pending_members[request.new_id] = deadline_ms
            result.replies.append((request.pending, join_error(ErrorCode.MEMBER_ID_REQUIRED, request.new_id)))
        else:
            self._add(request, request.new_id, now, result)

    def _add(self, request: JoinRequest, member_id: str, now: Now, result: GroupResult) -> None:
        body = request.body
        member = Member(
            member_id,
            body.group_instance_id,
            request.client_id,
            request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=body.session_timeout_ms,
            protocols=request.protocols,
        )
        member.is_new = True
        member.deadline_ms = self._alarm.after(now, self._config.new_member_join_timeout_ms)
        if not len(self.roster):
            self.protocol_type = body.protocol_type
        self.roster.add(member)
        self._rebalance.on_new_member(member_id)
        self._rebalance.add_join(member_id, request.pending, result)
        self._prepare_or_complete(now, result)

    def _rejoin(self, request: JoinRequest, member: Member, now: Now, result: GroupResult) -> None:
        is_same = member.protocols == request.protocols
        is_leader = self.roster.leader_id == member.member_id
        # The leader of a stable group rejoins to reassign: topics may have changed, even if its metadata did not.
        if (self.state is _COMPLETING and is_same) or (self.state is _STABLE and is_same and not is_leader):
            result.replies.append((request.pending, self._join_response(member.member_id, has_members=is_leader)))
            return
        self._update(request, member, result)
        self._prepare_or_complete(now, result)

    def _update(self, request: JoinRequest, member: Member, result: GroupResult) -> None:
        self.roster.set_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.body.session_timeout_ms
        self._rebalance.add_join(member.member_id, request.pending, result)

    def _replace(self, request: JoinRequest, old_id: str, now: Now, result: GroupResult) -> None:
        """Gives a static member the new member id. If two processes use one instance id, the later one wins."""
        self._rebalance.replace(old_id=old_id, new_id=request.new_id, result=result)
        old_leader = self.roster.leader_id
        member = self.roster.replace(old_id=old_id, new_id=request.new_id)
        member.client_id, member.client_host = request.client_id, request.client_host
        self._update(request, member, result)
        self._touch(member, now)
        if self.state is _STABLE and self.roster.elect_protocol() == self.protocol:
            self._continue_without_rebalance(request, member, old_leader, result)
        elif self.state in (_STABLE, _COMPLETING):
            # The leader may have assigned partitions to the old id already.
            self._prepare(now, result)
        else:
            self._complete_if_all_joined(now, result)

    def _continue_without_rebalance(
        self, request: JoinRequest, member: Member, old_leader: str | None, result: GroupResult
    ) -> None:
        """Answers a static member that restarted. The group stays Stable; a record stores the new member id."""
        del self._rebalance.joins[member.member_id]
        result.records.append(group_record(self.group_id, self.stored()))
        is_leader = self.roster.leader_id == member.member_id
        if request.version >= 9:
            response = self._join_response(member.member_id, has_members=is_leader)
            response.skip_assignment = is_leader
        else:
            # The response names the old member id as the leader: the client then fetches its assignment instead of
            # computing a new one.
            response = self._join_response(member.member_id, has_members=False)
            response.leader = old_leader
        result.replies.append((request.pending, response))

    # The phases of a rebalance

    def _move_to(self, state: GroupState, now: Now) -> None:
        assert self.state in MAY_FOLLOW[state], f"{self} cannot become {state.value}"
        self.state = state
        self.state_timestamp = now.wall_ms

    def _prepare_or_complete(self, now: Now, result: GroupResult) -> None:
        if self.state is _PREPARING:
            self._complete_if_all_joined(now, result)
        else:
            self._prepare(now, result)

    def _prepare(self, now: Now, result: GroupResult) -> None:
        if self.state is _COMPLETING:
            for member_id, pending in self._rebalance.end_syncs().items():
                result.replies.append((pending, sync_error(ErrorCode.REBALANCE_IN_PROGRESS)))
                self._touch(self.roster.by_id[member_id], now)
        is_initial = self.state is _EMPTY
        self._move_to(_PREPARING, now)
        is_complete = self._rebalance.begin_joins(
            now,
            is_initial=is_initial,
            member_count=len(self.roster),
            timeout_ms=self.roster.rebalance_timeout_ms(),
        )
        if is_complete:
            self._complete(now, result)

    def _complete_if_all_joined(self, now: Now, result: GroupResult) -> None:
        rebalance = self._rebalance
        if self.state is _PREPARING and not rebalance.is_initial and rebalance.has_all_joined(len(self.roster)):
            self._complete(now, result)

    def _complete(self, now: Now, result: GroupResult) -> None:
        """Ends the join phase and begins the next generation. Dynamic members that have not joined are removed."""
        rebalance, roster = self._rebalance, self.roster
        for member in list(roster.by_id.values()):
            if member.member_id not in rebalance.joins and member.instance_id is None:
                self._remove(member.member_id, result)
        if len(roster) and not roster.elect_leader(rebalance.joins):
            # Only static members are left, and none has joined: they stay until their sessions end.
            rebalance.extend_joins(now, roster.rebalance_timeout_ms())
            return
        joins = rebalance.end_joins()
        self.generation += 1
        if not len(roster):
            self.protocol = None
            self._move_to(_EMPTY, now)
            result.records.append(group_record(self.group_id, self.stored()))
            return
        self.protocol = roster.elect_protocol()
        self._move_to(_COMPLETING, now)
        for member_id, pending in joins.items():
            response = self._join_response(member_id, has_members=member_id == roster.leader_id)
            result.replies.append((pending, response))
        for member in roster.by_id.values():
            member.is_new = False
            self._touch(member, now)
        rebalance.begin_syncs(roster.by_id, now, roster.rebalance_timeout_ms())

    def _join_response(self, member_id: str, *, has_members: bool) -> Any:
        members: list[Any] = []
        if has_members:
            members = [
                _JoinMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    metadata=member.metadata(self.protocol),
                )
                for member in self.roster.by_id.values()
            ]
        return _JoinResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.roster.leader_id,
            member_id=member_id,
            members=members,
        )

    # SyncGroup

    def sync(self, body: Any, pending: AnyPendingResponse, now: Now, result: GroupResult) -> None:
        member_id: str = body.member_id
        code = self.validate(member_id, body.group_instance_id) or self._check_sync(body)
        if code:
            result.replies.append((pending, sync_error(code)))
            return
        self._rebalance.on_synced(member_id)
        if self.state is _STABLE:
            result.replies.append((pending, self._sync_response(self.roster.by_id[member_id])))
            return
        self._rebalance.add_sync(member_id, pending, result)
        if member_id == self.roster.leader_id:
            self._assign(body.assignments, now, result)
        self._alarm.put(self.group_id, result)

    def _check_sync(self, body: Any) -> ErrorCode:
        if body.generation_id != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if body.protocol_type not in (None, self.protocol_type) or body.protocol_name not in (None, self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is _PREPARING else ErrorCode.NONE

    def _assign(self, assignments: Iterable[Any], now: Now, result: GroupResult) -> None:
        """Stores the leader's assignments, which are opaque bytes. A member that the leader left out gets b""."""
        assigned = {assignment.member_id: bytes(assignment.assignment) for assignment in assignments}
        for member in self.roster.by_id.values():
            member.assignment = assigned.get(member.member_id, b"")
        self._move_to(_STABLE, now)
        result.records.append(group_record(self.group_id, self.stored()))
        for member_id, pending in self._rebalance.end_syncs().items():
            member = self.roster.by_id[member_id]
            result.replies.append((pending, self._sync_response(member)))
            self._touch(member, now)

    def _sync_response(self, member: Member) -> Any:
        return _SyncResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    # Heartbeat, OffsetCommit and LeaveGroup

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: Now) -> ErrorCode:
        """Handles a heartbeat. Hot path."""
        code = self.validate(member_id, instance_id)
        if code:
            return code
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        member = self.roster.by_id[member_id]
        member.deadline_ms = self._alarm.after(now, member.session_timeout_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is _PREPARING else ErrorCode.NONE

    def validate(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known_id = self.roster.static_ids.get(instance_id)
            if known_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.roster.by_id else ErrorCode.UNKNOWN_MEMBER_ID

    def validate_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Validates a commit. Generation -1: from an admin, or from a consumer that assigns its partitions itself."""
        if self.state is _EMPTY and generation < 0:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = self.validate(member_id, instance_id)
        if code:
            return code
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is _COMPLETING else ErrorCode.NONE

    def touch(self, member_id: str, now: Now) -> None:
        """Extends a member's session after a commit, like a heartbeat."""
        member = self.roster.by_id.get(member_id)
        if member is not None and self.state is not _COMPLETING:
            self._touch(member, now)

    def leave(self, leaving: Iterable[tuple[str, str | None]], now: Now, result: GroupResult) -> list[ErrorCode]:
        """Removes members, given as (member id, instance id). Returns an error code for each.

        An admin names a static member by its instance id alone, with an empty member id.
        """
        codes = []
        for member_id, instance_id in leaving:
            if not member_id and instance_id is not None:
                member_id = self.roster.static_ids.get(instance_id, "")
                instance_id = None
            code = ErrorCode.NONE
            if self._rebalance.pending_members.pop(member_id, None) is None:
                code = self.validate(member_id, instance_id)
                if not code:
                    self._remove(member_id, result)
            codes.append(code)
        if ErrorCode.NONE in codes and self.state is not _EMPTY:
            self._prepare_or_complete(now, result)
        self._alarm.put(self.group_id, result)
        return codes

    def _remove(self, member_id: str, result: GroupResult) -> None:
        self.roster.remove(member_id)
        self._rebalance.remove(member_id, result)

    def stored(self) -> StoredGroup:
        """Returns the group as its record stores it."""
        members = tuple(member.stored(self.protocol) for member in self.roster.by_id.values())
        leader_id = self.roster.leader_id
        return StoredGroup(self.protocol_type, self.generation, self.protocol, leader_id, self.state_timestamp, members)

    # Deadlines

    def _touch(self, member: Member, now: Now) -> None:
        member.deadline_ms = self._alarm.after(now, member.session_timeout_ms)

    def wake(self, now: Now, result: GroupResult) -> None:
        """Handles the deadlines that have passed. Called at the times in the `wakes` of earlier results."""
        if not self._alarm.is_due(now):
            return
        rebalance = self._rebalance
        rebalance.drop_late_members(now)
        if rebalance.is_join_due(now) and not rebalance.extend_initial_delay(now):
            self._complete(now, result)
        if rebalance.is_sync_due(now):
            for member_id in list(rebalance.unsynced):
                self._remove(member_id, result)
            self._prepare(now, result)
        self._expire_sessions(now, result)
        # A pending member id that was dropped may have been the last one that the join phase waited for.
        self._complete_if_all_joined(now, result)
        deadlines = (member.deadline_ms for member in self.roster.by_id.values())
        self._alarm.reset([*(due_ms for due_ms in deadlines if due_ms is not None), *rebalance.deadlines()])
        self._alarm.put(self.group_id, result)

    def _expire_sessions(self, now: Now, result: GroupResult) -> None:
        elapsed_ms, rebalance = now.elapsed_ms, self._rebalance
        expired = []
        for member in self.roster.by_id.values():
            if member.deadline_ms is None or member.deadline_ms > elapsed_ms:
                continue
            member_id = member.member_id
            if not member.is_new and (member_id in rebalance.joins or member_id in rebalance.syncs):
                member.deadline_ms = None  # it waits for a response, and gets a new deadline with it
            else:
                expired.append(member_id)
        for member_id in expired:
            self._remove(member_id, result)
        if not expired:
            return
        if self.state is not _PREPARING:
            self._prepare(now, result)
        elif rebalance.has_all_joined(len(self.roster)):
            self._complete(now, result)
