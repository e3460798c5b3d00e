"""Values of messages: slotted, comparable, with the schema's defaults."""

from __future__ import annotations

import pytest

from kbroker.protocol.messages import fetch, metadata, produce
from kbroker.protocol.types import Array, Int32, String
from kbroker.protocol.values import value_class
from kbroker.protocol.versions import Struct, field
from tests.protocol.all_messages import MESSAGES


def test_what_is_not_named_holds_its_default() -> None:
    value = produce.REQUEST(acks=-1)
    assert (value.acks, value.timeout_ms, value.transactional_id, value.topic_data) == (-1, 0, None, [])


def test_every_message_can_be_made_without_arguments() -> None:
    for message in MESSAGES:
        value = message()
        assert all(getattr(value, each.name) == each.default() for each in message.fields)


def test_lists_are_not_shared() -> None:
    first, second = metadata.REQUEST(), metadata.REQUEST()
    first.topics.append("x")
    assert second.topics == []


def test_a_default_struct_is_shared_and_refuses_changes() -> None:
    first, second = fetch.PartitionData(), fetch.PartitionData()
    assert first.current_leader is second.current_leader
    assert first.current_leader == fetch.LeaderIdAndEpoch()
    with pytest.raises(AttributeError, match="assign a new value"):
        first.current_leader.leader_id = 3
    first.current_leader = fetch.LeaderIdAndEpoch(leader_id=3)
    first.current_leader.leader_id = 4
    assert second.current_leader.leader_id == -1


def test_members_that_the_schema_lacks_are_refused() -> None:
    with pytest.raises(TypeError):
        produce.REQUEST(ack=1)
    with pytest.raises(AttributeError):
        produce.REQUEST().ack = 1
    with pytest.raises(TypeError):
        produce.REQUEST("transactional")  # type: ignore[call-arg]


def test_values_are_equal_by_members_and_only_to_their_own_kind() -> None:
    assert produce.NodeEndpoint(node_id=1) == produce.NodeEndpoint(node_id=1)
    assert produce.NodeEndpoint(node_id=1) != produce.NodeEndpoint(node_id=2)
    assert produce.NodeEndpoint(node_id=1) != fetch.NodeEndpoint(node_id=1)
    assert produce.NodeEndpoint() != 0
    with pytest.raises(TypeError):
        hash(produce.NodeEndpoint())


def test_a_value_prints_its_members() -> None:
    assert repr(produce.NodeEndpoint(host="a")) == "NodeEndpoint(node_id=0, host='a', port=0, rack=None)"


def test_values_carry_no_dictionary() -> None:
    assert not hasattr(produce.REQUEST(), "__dict__")


def test_a_value_without_members() -> None:
    assert value_class("Empty", [])() == value_class("Empty", [])()
    assert repr(Struct("Empty")()) == "Empty()"


def test_a_struct_makes_its_own_values() -> None:
    point = Struct("Point", field("x", Int32, default=7), field("tags", Array(String)))
    assert isinstance(point(), point.value)
    assert (point().x, point(x=1).x, point(tags=["a"]).tags) == (7, 1, ["a"])


def test_a_maker_makes_what_the_constructor_makes() -> None:
    make = produce.PartitionProduceResponse.maker()
    assert make(index=3, base_offset=7) == produce.PartitionProduceResponse(index=3, base_offset=7)
    first, second = make(), make()
    first.record_errors.append("one")
    assert second.record_errors == []
    with pytest.raises(TypeError):
        make(no_such_member=1)
