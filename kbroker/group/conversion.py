"""From one group protocol to the other without stopping: the group as it is, in the records of the other protocol.

A consumer group begins with the classic assignment as its target and everybody stable; its first epoch bump makes the
classic members rejoin. A classic group begins with what everybody has as its assignment, and rebalances.
"""

from __future__ import annotations

from kbroker.group.classic import ClassicGroup
from kbroker.group.consumer_records import STABLE, Assignment, ClassicSide, ConsumerMember, CurrentAssignment
from kbroker.group.consumer_state import ConsumerGroupState, Draft
from kbroker.group.embedded import encode_assignment, read_assignment, read_subscription
from kbroker.group.records import StoredGroup, StoredMember, group_record, group_tombstone
from kbroker.group.roster import Member
from kbroker.group.step import GroupConfig, KeyAndValue, Now
from kbroker.group.subscriptions import CONSUMER
from kbroker.group.topics import Topics

__all__ = ["can_downgrade", "can_upgrade", "to_classic", "to_consumer"]


def can_upgrade(group: ClassicGroup, config: GroupConfig) -> bool:
    return config.may_upgrade and group.protocol_type == CONSUMER and len(group.roster) <= config.consumer_max_size


def can_downgrade(state: ConsumerGroupState, config: GroupConfig) -> bool:
    """When the last member of the consumer protocol has gone, and others stay."""
    members = state.members.values()
    return (
        config.may_downgrade
        and 0 < len(members) <= config.max_size
        and all(each.classic is not None for each in members)
    )


def to_consumer(group: ClassicGroup, topics: Topics, records: list[KeyAndValue]) -> ConsumerGroupState:
    """MalformedEmbedding: these are no consumers, whatever they say."""
    converted = [_to_consumer_member(each, group.protocol, topics) for each in group.roster.by_id.values()]
    records.append(group_tombstone(group.group_id))
    draft = Draft(group.group_id, ConsumerGroupState(), records)
    generation = group.generation
    for member_id, member, _ in converted:
        draft.set_member(member_id, member)
    draft.set_epoch(generation, 0)
    for member_id, _, assigned in converted:
        draft.set_target(member_id, assigned)
    draft.set_target_epoch(generation)
    for member_id, _, assigned in converted:
        draft.set_current(member_id, CurrentAssignment(generation, generation, STABLE, assigned))
    return draft.state


def _to_consumer_member(member: Member, protocol: str | None, topics: Topics) -> tuple[str, ConsumerMember, Assignment]:
    metadata = member.metadata(protocol) or member.protocols[0][1]
    subscription = read_subscription(metadata)
    converted = ConsumerMember(
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicSide(member.session_timeout_ms, member.protocols),
    )
    return member.member_id, converted, topics.by_id(read_assignment(member.assignment))


def to_classic(draft: Draft, config: GroupConfig, topics: Topics, now: Now, *, is_stable: bool) -> ClassicGroup:
    """The classic group that the draft's records end with; the consumer group is gone by them.

    `is_stable`: no rebalance follows, so everybody gets its target. Otherwise the record says what each may still hold:
    should the group become a consumer group again before the rebalance is done, nobody is given that beside it.
    """
    group_id, state = draft.group_id, draft.state.copy()
    sides = {member_id: member.classic for member_id, member in state.members.items() if member.classic is not None}
    common = set.intersection(*({name for name, _ in side.protocols} for side in sides.values()))
    first = next(iter(sides.values()))
    protocol = next(name for name, _ in first.protocols if name in common)
    stored = StoredGroup(
        CONSUMER,
        state.epoch,
        protocol,
        next(iter(sides)),
        now.wall_ms,
        tuple(
            _to_stored(state, member_id, side, protocol, topics, state.target(member_id))
            if is_stable
            else _to_stored(state, member_id, side, protocol, topics, _held(state.current(member_id)))
            for member_id, side in sides.items()
        ),
    )
    draft.remove_group()
    draft.records.append(group_record(group_id, stored))
    group = ClassicGroup(group_id, config, stored)
    for member_id, side in sides.items():
        group.roster.set_protocols(group.roster.by_id[member_id], side.protocols)
    return group


def _held(current: CurrentAssignment) -> Assignment:
    assigned, pending = current.assigned, current.pending_revocation
    return {each: assigned.get(each, _NONE) | pending.get(each, _NONE) for each in {**assigned, **pending}}


def _to_stored(
    state: ConsumerGroupState, member_id: str, side: ClassicSide, protocol: str, topics: Topics, held: Assignment
) -> StoredMember:
    member = state.members[member_id]
    metadata = dict(side.protocols)[protocol]
    return StoredMember(
        member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        side.session_timeout_ms,
        metadata,
        encode_assignment(topics.by_name(held), read_subscription(metadata).version),
    )


_NONE: frozenset[int] = frozenset()
