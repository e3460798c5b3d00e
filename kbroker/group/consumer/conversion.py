"""Online upgrade and downgrade of groups: writes the current state of a group in the records of the other protocol.

An upgraded group starts with the classic assignment as its target, and all members stable; its first epoch bump makes
the classic members rejoin. A downgraded group starts with the partitions that each member owns, and rebalances.
"""

from __future__ import annotations

from kbroker.group.classic.classic_group import ClassicGroup
from kbroker.group.classic.consumer_protocol_codec import encode_assignment, read_assignment, read_subscription
from kbroker.group.classic.roster import Member
from kbroker.group.classic.subscriptions import CONSUMER
from kbroker.group.consumer.consumer_records import STABLE, Assignment, ClassicSide, ConsumerMember, CurrentAssignment
from kbroker.group.consumer.consumer_state import ConsumerGroupState, Draft
from kbroker.group.consumer.topics import TopicSource
from kbroker.group.records import StoredGroup, StoredMember, group_record, group_tombstone
from kbroker.group.result import GroupCoordinatorConfig, Now
from kbroker.protocol.keyed_batch import KeyAndValue

__all__ = ["can_downgrade", "can_upgrade", "to_classic", "to_consumer"]


def can_upgrade(group: ClassicGroup, config: GroupCoordinatorConfig) -> bool:
    return config.may_upgrade and group.protocol_type == CONSUMER and len(group.roster) <= config.consumer_max_size


def can_downgrade(state: ConsumerGroupState, config: GroupCoordinatorConfig) -> bool:
    """Whether the group has members, and all of them use the classic protocol."""
    members = state.members.values()
    return (
        config.may_downgrade
        and 0 < len(members) <= config.max_size
        and all(member.classic is not None for member in members)
    )


def to_consumer(group: ClassicGroup, topics: TopicSource, records: list[KeyAndValue]) -> ConsumerGroupState:
    """Adds the records of the upgrade, and returns the state that they lead to.

    Raises MalformedConsumerProtocol if the metadata of a member is invalid, and then has added nothing.
    """
    converted = [_to_consumer_member(member, group.protocol, topics) for member in group.roster.by_id.values()]
    records.append(group_tombstone(group.group_id))
    draft = Draft(group.group_id, ConsumerGroupState(), records)
    generation = group.generation
    for member_id, member, _ in converted:
        draft.set_member(member_id, member)
    draft.set_epoch(epoch=generation, metadata_hash=0)
    for member_id, _, assigned in converted:
        draft.set_target(member_id, assigned)
    draft.set_target_epoch(generation)
    for member_id, _, assigned in converted:
        draft.set_current(member_id, CurrentAssignment(generation, generation, STABLE, assigned))
    return draft.state


def _to_consumer_member(
    member: Member, protocol: str | None, topics: TopicSource
) -> tuple[str, ConsumerMember, Assignment]:
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


def to_classic(
    draft: Draft, config: GroupCoordinatorConfig, topics: TopicSource, now: Now, *, is_stable: bool
) -> ClassicGroup:
    """Adds the records of the downgrade to the draft, and returns the classic group.

    `is_stable`: no rebalance follows, so each member gets its target. Otherwise the record has the partitions that each
    member may still own: if the group is upgraded again before the rebalance ends, no other member may get them.
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
    return {
        topic_id: assigned.get(topic_id, _NONE) | pending.get(topic_id, _NONE) for topic_id in {**assigned, **pending}
    }


def _to_stored(
    state: ConsumerGroupState, member_id: str, side: ClassicSide, protocol: str, topics: TopicSource, held: Assignment
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
