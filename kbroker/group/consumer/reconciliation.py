"""Moves a consumer group member from its current to its target assignment: one step for each heartbeat. Pure.

    state       | owns partitions that it must revoke | else, others own some of its target | else
    STABLE      | → UNREVOKED, epoch stays            | → UNRELEASED, target's epoch        | → STABLE, target's epoch
    UNREVOKED   | stays                               | as above                            | as above
    UNRELEASED  | → UNREVOKED, epoch stays            | stays, with the free partitions     | → STABLE

A partition is assigned to a member only after the previous owner has revoked it.
"""

from __future__ import annotations

from collections.abc import Container

from kbroker.group.consumer.consumer_records import (
    NOTHING,
    STABLE,
    UNRELEASED,
    UNREVOKED,
    Assignment,
    CurrentAssignment,
)

__all__ = ["holds_any", "is_within", "reconcile", "waits_for_others"]


def reconcile(
    current: CurrentAssignment,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    held: Container[tuple[bytes, int]],
) -> CurrentAssignment:
    """Returns the next current assignment of a member.

    `owned`: the partitions in the member's heartbeat, None if it sent none. `held`: partitions that any member owns.
    """
    if current.is_reconciled_to(target_epoch):
        return current
    if current.state == UNREVOKED:
        if holds_any(owned, current.pending_revocation):
            return current
        return _next(current, current.epoch + 1, target, target_epoch, owned, held, current.pending_revocation)
    return _next(current, current.epoch, target, target_epoch, owned, held, NOTHING)


def _next(
    current: CurrentAssignment,
    epoch: int,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    held: Container[tuple[bytes, int]],
    revoked_now: Assignment,
) -> CurrentAssignment:
    kept: dict[bytes, frozenset[int]] = {}
    revoked: dict[bytes, frozenset[int]] = {}
    for topic_id, partitions in current.assigned.items():
        wanted = target.get(topic_id, _NONE)
        if keep := partitions & wanted:
            kept[topic_id] = keep
        if revoke := partitions - wanted:
            revoked[topic_id] = revoke
    if revoked and holds_any(owned, revoked):
        return CurrentAssignment(epoch, current.epoch, UNREVOKED, kept, revoked)
    is_complete = True
    for topic_id, partitions in target.items():
        have, returned = kept.get(topic_id, _NONE), revoked_now.get(topic_id, _NONE)
        missing = partitions - have
        # `held` still has the partitions that the member itself has just revoked: it may get them again.
        free = frozenset(index for index in missing if index in returned or (topic_id, index) not in held)
        is_complete = is_complete and len(free) == len(missing)
        if free:
            kept[topic_id] = have | free
    return CurrentAssignment(target_epoch, current.epoch, STABLE if is_complete else UNRELEASED, kept)


def holds_any(owned: Assignment | None, revoked: Assignment) -> bool:
    """Whether the member still owns one of the revoked partitions. With `owned` None it owns all of them."""
    if owned is None:
        return True
    return any(partitions & revoked.get(topic_id, _NONE) for topic_id, partitions in owned.items())


def is_within(owned: Assignment | None, assigned: Assignment) -> bool:
    if owned is None:
        return False
    return all(partitions <= assigned.get(topic_id, _NONE) for topic_id, partitions in owned.items())


def waits_for_others(current: CurrentAssignment, target: Assignment, held: Container[tuple[bytes, int]]) -> bool:
    """Whether another member still owns a partition of the target."""
    return any(
        (topic_id, index) in held
        for topic_id, partitions in target.items()
        for index in partitions - current.assigned.get(topic_id, _NONE)
    )


_NONE: frozenset[int] = frozenset()
