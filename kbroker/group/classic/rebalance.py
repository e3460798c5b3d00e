"""The two phases of a classic group's rebalance: JoinGroup and SyncGroup requests that wait, and their deadlines.

    join phase  responses wait until every member has joined, or until the deadline
    sync phase  responses wait for the leader's assignment; every member must send SyncGroup before the deadline

Knows neither the group's state nor the sessions of its members: the group decides when a phase begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.group.alarm import Alarm
from kbroker.group.result import AnyPendingResponse, GroupResult, Now
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import join_group, sync_group

__all__ = ["Rebalance", "join_error", "sync_error"]

_JoinResponse = join_group.RESPONSE.value
_SyncResponse = sync_group.RESPONSE.value


class Rebalance:
    __slots__ = (
        "_alarm",
        "_delay_left_ms",
        "_has_new_member",
        "_initial_delay_ms",
        "_join_deadline_ms",
        "_sync_deadline_ms",
        "is_initial",
        "joins",
        "pending_members",
        "syncs",
        "unsynced",
    )

    def __init__(self, alarm: Alarm, initial_delay_ms: int) -> None:
        self._alarm = alarm
        self._initial_delay_ms = initial_delay_ms
        self.joins: dict[str, AnyPendingResponse] = {}
        """Members that have joined and wait for the others, by member id."""
        self.syncs: dict[str, AnyPendingResponse] = {}
        """Members that wait for the leader's assignment, by member id."""
        self.unsynced: set[str] = set()
        """Members of this generation that have not sent SyncGroup."""
        self.pending_members: dict[str, int] = {}
        """Deadlines of member ids that were returned with MEMBER_ID_REQUIRED and have not joined (KIP-394)."""
        self.is_initial = False
        """Whether the group was empty before: then the join phase lasts for group.initial.rebalance.delay.ms."""
        self._has_new_member = False
        self._delay_left_ms = 0
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None

    @property
    def pending_responses(self) -> list[AnyPendingResponse]:
        return [*self.joins.values(), *self.syncs.values()]

    def deadlines(self) -> Iterable[int]:
        yield from self.pending_members.values()
        if self._join_deadline_ms is not None:
            yield self._join_deadline_ms
        if self._sync_deadline_ms is not None:
            yield self._sync_deadline_ms

    # Members

    def remove(self, member_id: str, result: GroupResult) -> None:
        """Forgets a member. Its waiting requests get UNKNOWN_MEMBER_ID."""
        self._refuse(member_id, ErrorCode.UNKNOWN_MEMBER_ID, result, id_in_response="")
        self.unsynced.discard(member_id)

    def replace(self, *, old_id: str, new_id: str, result: GroupResult) -> None:
        """Renames a static member. Requests that wait under its old id get FENCED_INSTANCE_ID."""
        self._refuse(old_id, ErrorCode.FENCED_INSTANCE_ID, result, id_in_response=old_id)
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)

    def _refuse(self, member_id: str, code: ErrorCode, result: GroupResult, *, id_in_response: str) -> None:
        if (pending := self.joins.pop(member_id, None)) is not None:
            result.replies.append((pending, join_error(code, id_in_response)))
        if (pending := self.syncs.pop(member_id, None)) is not None:
            result.replies.append((pending, sync_error(code)))

    def refuse_all(self, result: GroupResult) -> None:
        """Sends REBALANCE_IN_PROGRESS to all members that wait, so that they join again."""
        for member_id, pending in self.joins.items():
            result.replies.append((pending, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member_id)))
        for pending in self.syncs.values():
            result.replies.append((pending, sync_error(ErrorCode.REBALANCE_IN_PROGRESS)))

    def drop_late_members(self, now: Now) -> None:
        """Forgets the member ids that were not used before their deadline."""
        late = [member_id for member_id, due_ms in self.pending_members.items() if due_ms <= now.elapsed_ms]
        for member_id in late:
            del self.pending_members[member_id]

    # Join phase

    def begin_joins(self, now: Now, *, is_initial: bool, member_count: int, timeout_ms: int) -> bool:
        """Begins the join phase. Returns whether it is complete at once."""
        self.unsynced.clear()
        self._sync_deadline_ms = None
        self.is_initial = is_initial
        if is_initial and self._initial_delay_ms > 0:
            self._has_new_member = False
            self._delay_left_ms = max(timeout_ms - self._initial_delay_ms, 0)
            self._join_deadline_ms = self._alarm.after(now, self._initial_delay_ms)
            return False
        if is_initial or self.has_all_joined(member_count):
            return True
        self._join_deadline_ms = self._alarm.after(now, timeout_ms)
        return False

    def add_join(self, member_id: str, pending: AnyPendingResponse, result: GroupResult) -> None:
        """Lets a join wait. An earlier join of the member gets REBALANCE_IN_PROGRESS."""
        earlier = self.joins.get(member_id)
        if earlier is not None:
            result.replies.append((earlier, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member_id)))
        self.joins[member_id] = pending

    def on_new_member(self, member_id: str) -> None:
        self.pending_members.pop(member_id, None)
        self._has_new_member = True

    def has_all_joined(self, member_count: int) -> bool:
        return len(self.joins) == member_count and not self.pending_members

    def is_join_due(self, now: Now) -> bool:
        return self._join_deadline_ms is not None and self._join_deadline_ms <= now.elapsed_ms

    def extend_initial_delay(self, now: Now) -> bool:
        """Extends the initial delay if a member joined during it, up to the rebalance timeout in total.

        Returns False if the join phase must end now.
        """
        if not (self.is_initial and self._has_new_member and self._delay_left_ms):
            return False
        self._has_new_member = False
        delay_ms = min(self._initial_delay_ms, self._delay_left_ms)
        self._delay_left_ms -= delay_ms
        self._join_deadline_ms = self._alarm.after(now, delay_ms)
        return True

    def extend_joins(self, now: Now, timeout_ms: int) -> None:
        self._join_deadline_ms = self._alarm.after(now, timeout_ms)

    def end_joins(self) -> dict[str, AnyPendingResponse]:
        """Ends the join phase. Returns the responses that waited, by member id."""
        self.is_initial = False
        self._join_deadline_ms = None
        self.unsynced.clear()
        joins, self.joins = self.joins, {}
        return joins

    # Sync phase

    def begin_syncs(self, member_ids: Iterable[str], now: Now, timeout_ms: int) -> None:
        self.unsynced.update(member_ids)
        self._sync_deadline_ms = self._alarm.after(now, timeout_ms)

    def on_synced(self, member_id: str) -> None:
        self.unsynced.discard(member_id)
        if not self.unsynced:
            self._sync_deadline_ms = None

    def add_sync(self, member_id: str, pending: AnyPendingResponse, result: GroupResult) -> None:
        """Lets a sync wait. An earlier sync of the member gets REBALANCE_IN_PROGRESS."""
        earlier = self.syncs.get(member_id)
        if earlier is not None:
            result.replies.append((earlier, sync_error(ErrorCode.REBALANCE_IN_PROGRESS)))
        self.syncs[member_id] = pending

    def is_sync_due(self, now: Now) -> bool:
        return self._sync_deadline_ms is not None and self._sync_deadline_ms <= now.elapsed_ms

    def end_syncs(self) -> dict[str, AnyPendingResponse]:
        """Returns the syncs that waited, by member id. Other members of the generation may still send theirs."""
        syncs, self.syncs = self.syncs, {}
        return syncs


def join_error(code: ErrorCode, member_id: str = "") -> Any:
    return _JoinResponse(error_code=code, member_id=member_id, protocol_name=None)


def sync_error(code: ErrorCode) -> Any:
    return _SyncResponse(error_code=code)
