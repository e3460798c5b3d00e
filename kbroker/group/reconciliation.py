"""How a member of a consumer group gets from what it has to what it shall have: one step for each heartbeat.

    state       | it still holds what it must give back | else, targets held by others | else
    STABLE      | → UNREVOKED, epoch stays              | → UNRELEASED, target's epoch | → STABLE, target's epoch
    UNREVOKED   | stays                                 | as above                     | as above
    UNRELEASED  | → UNREVOKED, epoch stays              | stays, with what is free     | → STABLE

A partition is given to a member only after everybody else has let go of it. Pure.
"""

from __future__ import annotations

from collections.abc import Container

from kbroker.group.consumer_records import NOTHING, STABLE, UNRELEASED, UNREVOKED, Assignment, CurrentAssignment

__all__ = ["holds_any", "is_within", "reconcile", "waits_for_others"]


def reconcile(
    current: CurrentAssignment,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    held: Container[tuple[bytes, int]],
) -> CurrentAssignment:
    """`owned`: what the member says that it has, None if it says nothing. `held`: partitions that somebody has."""
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
    given_back: Assignment,
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
        have, returned = kept.get(topic_id, _NONE), given_back.get(topic_id, _NONE)
        missing = partitions - have
        # What it has just given back itself may be its own again.
        free = frozenset(each for each in missing if each in returned or (topic_id, each) not in held)
        is_complete = is_complete and len(free) == len(missing)
        if free:
            kept[topic_id] = have | free
    return CurrentAssignment(target_epoch, current.epoch, STABLE if is_complete else UNRELEASED, kept)


def holds_any(owned: Assignment | None, revoked: Assignment) -> bool:
    """Who says nothing still holds everything."""
    if owned is None:
        return True
    return any(partitions & revoked.get(topic_id, _NONE) for topic_id, partitions in owned.items())


def is_within(owned: Assignment | None, assigned: Assignment) -> bool:
    if owned is None:
        return False
    return all(partitions <= assigned.get(topic_id, _NONE) for topic_id, partitions in owned.items())


def waits_for_others(current: CurrentAssignment, target: Assignment, held: Container[tuple[bytes, int]]) -> bool:
    """Whether something that it shall have is still with another member."""
    return any(
        (topic_id, each) in held
        for topic_id, partitions in target.items()
        for each in partitions - current.assigned.get(topic_id, _NONE)
    )


_NONE: frozenset[int] = frozenset()
