"""A group of the classic protocol: members join, a leader among them assigns, everybody fetches its part.

    state                | join: new or changed    | all (re)joined, or time is up | leader's sync
    Empty                | → PreparingRebalance    |                               | UNKNOWN_MEMBER_ID
    PreparingRebalance   | waits                   | → CompletingRebalance (Empty) | REBALANCE_IN_PROGRESS
    CompletingRebalance  | → PreparingRebalance    |                               | record, → Stable
    Stable               | → PreparingRebalance    |                               | the assignment again

This is soft state: a broker that loads the group begins at Stable or Empty, as the last record has it. Tickets of joins
and syncs are answered through a Step. One wake-up for a whole group: heartbeats only move a member's deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.group.records import StoredGroup, group_record
from kbroker.group.roster import Member, Protocols, Roster
from kbroker.group.states import MAY_FOLLOW, GroupState
from kbroker.group.step import GroupConfig, Now, Step, Ticket
from kbroker.group.subscriptions import subscribed_topics
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import join_group, sync_group

__all__ = ["ClassicGroup", "Joining"]

_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE

_JoinResponse = join_group.RESPONSE.value
_JoinMember = join_group.JoinGroupResponseMember.value
_SyncResponse = sync_group.RESPONSE.value


class Joining:
    """A JoinGroup request, as far as a group cares."""

    __slots__ = ("body", "client_host", "client_id", "new_id", "protocols", "rebalance_timeout_ms", "ticket", "version")

    def __init__(self, body: Any, version: int, client_id: str, client_host: str, new_id: str, ticket: Ticket) -> None:
        self.body = body
        self.version = version
        self.client_id = client_id
        self.client_host = client_host
        self.new_id = new_id
        """For a member that has none yet."""
        self.ticket = ticket
        self.protocols: Protocols = tuple((each.name, bytes(each.metadata)) for each in body.protocols)
        # v0 knows one timeout for both.
        timeout_ms = body.rebalance_timeout_ms
        self.rebalance_timeout_ms: int = body.session_timeout_ms if timeout_ms < 0 else timeout_ms


class ClassicGroup:
    __slots__ = (
        "_armed_ms",
        "_config",
        "_delay_left_ms",
        "_has_newcomer",
        "_is_initial",
        "_is_to_arm",
        "_join_deadline_ms",
        "_joins",
        "_pending",
        "_sync_deadline_ms",
        "_syncs",
        "_unsynced",
        "generation",
        "group_id",
        "protocol",
        "protocol_type",
        "roster",
        "state",
        "state_timestamp",
    )

    def __init__(self, group_id: str, config: GroupConfig, stored: StoredGroup) -> None:
        self.group_id = group_id
        self._config = config
        self.state = _STABLE if stored.members else _EMPTY
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol = stored.protocol
        self.state_timestamp = stored.state_timestamp
        self.roster = Roster()
        for each in stored.members:
            self.roster.add(Member.from_stored(each, stored.protocol))
        if stored.leader in self.roster.by_id:
            self.roster.leader_id = stored.leader
        self._joins: dict[str, Ticket] = {}
        self._syncs: dict[str, Ticket] = {}
        self._pending: dict[str, int] = {}  # ids given out, with the time until they must be used
        self._unsynced: set[str] = set()
        self._is_initial = False
        self._has_newcomer = False
        self._delay_left_ms = 0
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._armed_ms: int | None = None  # never later than the first deadline
        self._is_to_arm = False

    def __repr__(self) -> str:
        return f"<ClassicGroup {self.group_id} {self.state.value} generation {self.generation}>"

    @property
    def is_idle(self) -> bool:
        """Nothing here that the log does not have."""
        return self.state is _EMPTY and not self._pending

    @property
    def tickets(self) -> list[Ticket]:
        return [*self._joins.values(), *self._syncs.values()]

    def subscribed_topics(self) -> frozenset[str] | None:
        members = self.roster.by_id.values()
        return subscribed_topics(self.protocol_type, (each.metadata(self.protocol) for each in members))

    def on_loaded(self, now: Now, step: Step) -> None:
        """Members get a whole session to show up again."""
        for member in self.roster.by_id.values():
            self._touch(member, now)
        if len(self.roster) > self._config.max_size:
            self._prepare(now, step)
        self._arm(step)

    def on_downgraded(self, now: Now, step: Step) -> None:
        """The members were part of a consumer group until now: one of them shall lead, and assign."""
        for member in self.roster.by_id.values():
            self._touch(member, now)
        self._prepare(now, step)
        self._arm(step)

    def on_upgraded(self, step: Step) -> None:
        """The group goes on as a consumer group: whoever waits comes again."""
        for member_id, ticket in self._joins.items():
            step.replies.append((ticket, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member_id)))
        for ticket in self._syncs.values():
            step.replies.append((ticket, _SyncResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)))

    # JoinGroup

    def join(self, joining: Joining, now: Now, step: Step) -> None:
        body = joining.body
        member_id: str = body.member_id
        if not self._has_room_for(member_id):
            self._pending.pop(member_id, None)
            if member_id in self.roster.by_id:
                self._remove(member_id)
                self._complete_if_all_joined(now, step)
            step.replies.append((joining.ticket, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED)))
        elif not self._supports(body.protocol_type, joining.protocols):
            step.replies.append((joining.ticket, join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)))
        elif not member_id:
            self._join_new(joining, now, step)
        elif member_id in self._pending and body.group_instance_id is None:
            self._add(joining, member_id, now, step)
        else:
            code = self.validate(member_id, body.group_instance_id)
            if code:
                step.replies.append((joining.ticket, join_error(code, member_id)))
            else:
                self._rejoin(joining, self.roster.by_id[member_id], now, step)
        self._arm(step)

    def _has_room_for(self, member_id: str) -> bool:
        if self.state is _EMPTY:
            return True
        if self.state is _PREPARING:
            # Those who wait are counted, not all members: so the last to rejoin are shut out of a group too large.
            return member_id in self._joins or len(self._joins) < self._config.max_size
        return member_id in self.roster.by_id or len(self.roster) < self._config.max_size

    def _supports(self, protocol_type: str, protocols: Protocols) -> bool:
        if self.state is _EMPTY:
            return bool(protocol_type and protocols)
        return self.protocol_type == protocol_type and self.roster.shares_one_of(name for name, _ in protocols)

    def _join_new(self, joining: Joining, now: Now, step: Step) -> None:
        instance_id = joining.body.group_instance_id
        if instance_id is not None:
            known_id = self.roster.static_ids.get(instance_id)
            if known_id is None:
                self._add(joining, joining.new_id, now, step)
            else:
                self._replace(joining, known_id, now, step)
        elif joining.version >= 4:
            # A client that never reads the answer leaves no member behind (KIP-394).
            self._pending[joining.new_id] = self._due(now, joining.body.session_timeout_ms)
            step.replies.append((joining.ticket, join_error(ErrorCode.MEMBER_ID_REQUIRED, joining.new_id)))
        else:
            self._add(joining, joining.new_id, now, step)

    def _add(self, joining: Joining, member_id: str, now: Now, step: Step) -> None:
        body = joining.body
        member = Member(
            member_id,
            body.group_instance_id,
            joining.client_id,
            joining.client_host,
            rebalance_timeout_ms=joining.rebalance_timeout_ms,
            session_timeout_ms=body.session_timeout_ms,
            protocols=joining.protocols,
        )
        member.is_new = True
        member.deadline_ms = self._due(now, self._config.new_member_join_timeout_ms)
        if self.state is _PREPARING and self._is_initial:
            self._has_newcomer = True
        if not len(self.roster):
            self.protocol_type = body.protocol_type
        self.roster.add(member)
        self._pending.pop(member_id, None)
        self._joins[member_id] = joining.ticket
        self._rebalance(now, step)

    def _rejoin(self, joining: Joining, member: Member, now: Now, step: Step) -> None:
        is_same = member.protocols == joining.protocols
        is_leader = self.roster.leader_id == member.member_id
        # A leader rejoins a stable group to reassign: the topics may have changed, though its metadata did not.
        if (self.state is _COMPLETING and is_same) or (self.state is _STABLE and is_same and not is_leader):
            answer = self._join_answer(member.member_id, has_members=is_leader)
            step.replies.append((joining.ticket, answer))
            return
        self._update(joining, member, step)
        self._rebalance(now, step)

    def _update(self, joining: Joining, member: Member, step: Step) -> None:
        self.roster.set_protocols(member, joining.protocols)
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.session_timeout_ms = joining.body.session_timeout_ms
        earlier = self._joins.get(member.member_id)
        if earlier is not None:
            step.replies.append((earlier, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)))
        self._joins[member.member_id] = joining.ticket

    def _replace(self, joining: Joining, old_id: str, now: Now, step: Step) -> None:
        """The process behind an instance id was restarted, or there are two: the later one wins."""
        fenced = ErrorCode.FENCED_INSTANCE_ID
        if (ticket := self._joins.pop(old_id, None)) is not None:
            step.replies.append((ticket, join_error(fenced, old_id)))
        if (ticket := self._syncs.pop(old_id, None)) is not None:
            step.replies.append((ticket, _SyncResponse(error_code=fenced)))
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(joining.new_id)
        old_leader = self.roster.leader_id
        member = self.roster.replace(old_id, joining.new_id)
        member.client_id, member.client_host = joining.client_id, joining.client_host
        self._update(joining, member, step)
        self._touch(member, now)
        if self.state is _STABLE and self.roster.elect_protocol() == self.protocol:
            self._welcome_back(joining, member, old_leader, step)
        elif self.state in (_STABLE, _COMPLETING):
            # The leader may have assigned to the old id already.
            self._prepare(now, step)
        else:
            self._complete_if_all_joined(now, step)

    def _welcome_back(self, joining: Joining, member: Member, old_leader: str | None, step: Step) -> None:
        """No rebalance: the group goes on, with the new id on record."""
        del self._joins[member.member_id]
        step.records.append(group_record(self.group_id, self.stored()))
        is_leader = self.roster.leader_id == member.member_id
        if joining.version >= 9:
            answer = self._join_answer(member.member_id, has_members=is_leader)
            answer.skip_assignment = is_leader
        else:
            # Told of its old self as the leader, it asks for its assignment and does not make a new one.
            answer = self._join_answer(member.member_id, has_members=False)
            answer.leader = old_leader
        step.replies.append((joining.ticket, answer))

    # The phases of a rebalance

    def _move_to(self, state: GroupState, now: Now) -> None:
        assert self.state in MAY_FOLLOW[state], f"{self} cannot become {state.value}"
        self.state = state
        self.state_timestamp = now.wall_ms

    def _rebalance(self, now: Now, step: Step) -> None:
        if self.state is _PREPARING:
            self._complete_if_all_joined(now, step)
        else:
            self._prepare(now, step)

    def _prepare(self, now: Now, step: Step) -> None:
        if self.state is _COMPLETING:
            self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now, step)
        self._unsynced.clear()
        self._sync_deadline_ms = None
        is_initial = self.state is _EMPTY
        self._move_to(_PREPARING, now)
        self._is_initial = is_initial
        if is_initial and self._config.initial_rebalance_delay_ms > 0:
            delay_ms = self._config.initial_rebalance_delay_ms
            self._has_newcomer = False
            self._delay_left_ms = max(self.roster.rebalance_timeout_ms() - delay_ms, 0)
            self._join_deadline_ms = self._due(now, delay_ms)
        elif is_initial or self._has_everybody():
            self._complete(now, step)
        else:
            self._join_deadline_ms = self._due(now, self.roster.rebalance_timeout_ms())

    def _has_everybody(self) -> bool:
        return len(self._joins) == len(self.roster) and not self._pending

    def _complete_if_all_joined(self, now: Now, step: Step) -> None:
        if self.state is _PREPARING and not self._is_initial and self._has_everybody():
            self._complete(now, step)

    def _on_join_deadline(self, now: Now, step: Step) -> None:
        if self._is_initial and self._has_newcomer and self._delay_left_ms:
            self._has_newcomer = False
            delay_ms = min(self._config.initial_rebalance_delay_ms, self._delay_left_ms)
            self._delay_left_ms -= delay_ms
            self._join_deadline_ms = self._due(now, delay_ms)
        else:
            self._complete(now, step)

    def _complete(self, now: Now, step: Step) -> None:
        """Everybody has joined, or had the time to: the next generation begins."""
        self._join_deadline_ms = None
        for member in list(self.roster.by_id.values()):
            if member.member_id not in self._joins and member.instance_id is None:
                self._remove(member.member_id)
        roster = self.roster
        if len(roster) and not roster.elect_leader(self._joins):
            # Static members alone, and none has come: their sessions decide.
            self._join_deadline_ms = self._due(now, roster.rebalance_timeout_ms())
            return
        self._is_initial = False
        self.generation += 1
        self._unsynced.clear()
        if not len(roster):
            self.protocol = None
            self._move_to(_EMPTY, now)
            step.records.append(group_record(self.group_id, self.stored()))
            return
        self.protocol = roster.elect_protocol()
        self._move_to(_COMPLETING, now)
        joins, self._joins = self._joins, {}
        for member_id, ticket in joins.items():
            step.replies.append((ticket, self._join_answer(member_id, has_members=member_id == roster.leader_id)))
        for member in roster.by_id.values():
            member.is_new = False
            self._touch(member, now)
        self._unsynced.update(roster.by_id)
        self._sync_deadline_ms = self._due(now, roster.rebalance_timeout_ms())

    def _join_answer(self, member_id: str, *, has_members: bool) -> Any:
        members: list[Any] = []
        if has_members:
            members = [
                _JoinMember(
                    member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata(self.protocol)
                )
                for each in self.roster.by_id.values()
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

    def sync(self, body: Any, ticket: Ticket, now: Now, step: Step) -> None:
        member_id: str = body.member_id
        code = self.validate(member_id, body.group_instance_id) or self._check_sync(body)
        if code:
            step.replies.append((ticket, _SyncResponse(error_code=code)))
            return
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._sync_deadline_ms = None
        if self.state is _STABLE:
            step.replies.append((ticket, self._sync_answer(self.roster.by_id[member_id])))
            return
        earlier = self._syncs.get(member_id)
        if earlier is not None:
            step.replies.append((earlier, _SyncResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)))
        self._syncs[member_id] = ticket
        if member_id == self.roster.leader_id:
            self._assign(body.assignments, now, step)
        self._arm(step)

    def _check_sync(self, body: Any) -> ErrorCode:
        if body.generation_id != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if body.protocol_type not in (None, self.protocol_type) or body.protocol_name not in (None, self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is _PREPARING else ErrorCode.NONE

    def _assign(self, assignments: Iterable[Any], now: Now, step: Step) -> None:
        """Opaque bytes; a member that the leader forgot gets none."""
        given = {each.member_id: bytes(each.assignment) for each in assignments}
        for member in self.roster.by_id.values():
            member.assignment = given.get(member.member_id, b"")
        self._move_to(_STABLE, now)
        step.records.append(group_record(self.group_id, self.stored()))
        syncs, self._syncs = self._syncs, {}
        for member_id, ticket in syncs.items():
            member = self.roster.by_id[member_id]
            step.replies.append((ticket, self._sync_answer(member)))
            self._touch(member, now)

    def _sync_answer(self, member: Member) -> Any:
        return _SyncResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    def _refuse_syncs(self, code: ErrorCode, now: Now, step: Step) -> None:
        syncs, self._syncs = self._syncs, {}
        for member_id, ticket in syncs.items():
            step.replies.append((ticket, _SyncResponse(error_code=code)))
            self._touch(self.roster.by_id[member_id], now)

    # Heartbeat, LeaveGroup, and being asked

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: Now) -> ErrorCode:
        """Hot path."""
        code = self.validate(member_id, instance_id)
        if code:
            return code
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._touch(self.roster.by_id[member_id], now)
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
        """Generation -1: by an admin, or by a consumer that assigns partitions to itself."""
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
        """A commit proves as much as a heartbeat."""
        member = self.roster.by_id.get(member_id)
        if member is not None and self.state is not _COMPLETING:
            self._touch(member, now)

    def leave(self, leaving: Iterable[tuple[str, str | None]], now: Now, step: Step) -> list[ErrorCode]:
        """An outcome for each (member id, instance id); an admin names static members by the latter alone."""
        codes = []
        for member_id, instance_id in leaving:
            if not member_id and instance_id is not None:
                member_id = self.roster.static_ids.get(instance_id, "")
                instance_id = None
            code = ErrorCode.NONE
            if self._pending.pop(member_id, None) is None:
                code = self.validate(member_id, instance_id)
                if not code:
                    self._dismiss(member_id, step)
            codes.append(code)
        if ErrorCode.NONE in codes and self.state is not _EMPTY:
            self._rebalance(now, step)
        self._arm(step)
        return codes

    def _dismiss(self, member_id: str, step: Step) -> None:
        ticket = self._joins.pop(member_id, None)
        if ticket is not None:
            step.replies.append((ticket, join_error(ErrorCode.UNKNOWN_MEMBER_ID)))
        ticket = self._syncs.pop(member_id, None)
        if ticket is not None:
            step.replies.append((ticket, _SyncResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)))
        self._remove(member_id)

    def _remove(self, member_id: str) -> None:
        self.roster.remove(member_id)
        self._unsynced.discard(member_id)

    def stored(self) -> StoredGroup:
        """What the record of this moment says."""
        members = tuple(each.stored(self.protocol) for each in self.roster.by_id.values())
        leader_id = self.roster.leader_id
        return StoredGroup(self.protocol_type, self.generation, self.protocol, leader_id, self.state_timestamp, members)

    # Time

    def _touch(self, member: Member, now: Now) -> None:
        """Mostly moves a deadline further off: the wake-up that comes too early finds out."""
        member.deadline_ms = due = now.elapsed_ms + member.session_timeout_ms
        if self._armed_ms is None or due < self._armed_ms:
            self._armed_ms, self._is_to_arm = due, True

    def _due(self, now: Now, wait_ms: int) -> int:
        due = now.elapsed_ms + wait_ms
        if self._armed_ms is None or due < self._armed_ms:
            self._armed_ms, self._is_to_arm = due, True
        return due

    def _arm(self, step: Step) -> None:
        """Before a step leaves: it carries the time of the next look, if that has become earlier."""
        if self._is_to_arm and self._armed_ms is not None:
            step.wakes.append((self.group_id, self._armed_ms))
        self._is_to_arm = False

    def wake(self, now: Now, step: Step) -> None:
        """The time of some earlier Step has come."""
        elapsed_ms = now.elapsed_ms
        if self._armed_ms is None or self._armed_ms > elapsed_ms:
            return
        self._armed_ms = None
        for member_id in [each for each, due in self._pending.items() if due <= elapsed_ms]:
            del self._pending[member_id]
        if self._join_deadline_ms is not None and self._join_deadline_ms <= elapsed_ms:
            self._join_deadline_ms = None
            self._on_join_deadline(now, step)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= elapsed_ms:
            self._on_sync_deadline(now, step)
        self._expire_sessions(now, step)
        if self.state is _PREPARING and self._has_everybody() and not self._is_initial:
            self._complete(now, step)
        self._rearm()
        self._arm(step)

    def _on_sync_deadline(self, now: Now, step: Step) -> None:
        self._sync_deadline_ms = None
        for member_id in list(self._unsynced):
            self._dismiss(member_id, step)
        self._prepare(now, step)

    def _expire_sessions(self, now: Now, step: Step) -> None:
        elapsed_ms = now.elapsed_ms
        expired = []
        for member in self.roster.by_id.values():
            if member.deadline_ms is None or member.deadline_ms > elapsed_ms:
                continue
            member_id = member.member_id
            if not member.is_new and (member_id in self._joins or member_id in self._syncs):
                member.deadline_ms = None  # it waits for us, and gets a new one with its answer
            else:
                expired.append(member_id)
        for member_id in expired:
            self._dismiss(member_id, step)
        if not expired:
            return
        if self.state is not _PREPARING:
            self._prepare(now, step)
        elif self._has_everybody():
            self._complete(now, step)

    def _rearm(self) -> None:
        deadlines = [each.deadline_ms for each in self.roster.by_id.values() if each.deadline_ms is not None]
        deadlines += self._pending.values()
        deadlines += [each for each in (self._join_deadline_ms, self._sync_deadline_ms) if each is not None]
        self._armed_ms = min(deadlines, default=None)
        self._is_to_arm = True


def join_error(code: ErrorCode, member_id: str = "") -> Any:
    return _JoinResponse(error_code=code, member_id=member_id, protocol_name=None)
