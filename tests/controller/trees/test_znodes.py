"""Nodes are encoded as Apache Kafka 3.9 writes them, and its nodes are decoded."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kbroker.config.endpoints import Endpoint
from kbroker.controller.image import BrokerRegistration, PartitionState
from kbroker.controller.trees import znodes
from kbroker.controller.trees.znodes import BadNode, ProducerIdBlock
from kbroker.names import uuid_from_text

TOPIC_ID = uuid_from_text("5QmE7xwRSsykUvKUVkxeTg")
STATE = PartitionState(1, 3, (1, 2), (1, 2, 3), partition_epoch=7, controller_epoch=5)


def test_a_broker_is_written_with_all_its_listeners() -> None:
    endpoints = (Endpoint("OUT", "h", 9093, "SSL"), Endpoint("IN", "::1", 9092, "PLAINTEXT"))
    data = znodes.encode_broker(BrokerRegistration(1, 0, endpoints, "r1"), timestamp_ms=1700000000000)
    assert json.loads(data) == {
        "version": 5,
        "host": "::1",
        "port": 9092,
        "endpoints": ["OUT://h:9093", "IN://[::1]:9092"],
        "jmx_port": -1,
        "timestamp": "1700000000000",
        "listener_security_protocol_map": {"OUT": "SSL", "IN": "PLAINTEXT"},
        "features": {},
        "rack": "r1",
    }
    assert znodes.decode_broker(1, data, epoch=42) == BrokerRegistration(1, 42, endpoints, "r1")


def test_a_broker_without_plaintext_has_no_host_for_old_clients() -> None:
    content = json.loads(
        znodes.encode_broker(BrokerRegistration(1, 0, (Endpoint("SSL", "h", 1, "SSL"),)), timestamp_ms=0)
    )
    assert (content["host"], content["port"]) == (None, -1)
    assert "rack" not in content


def test_brokers_of_older_kafkas_are_understood() -> None:
    first = b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"1"}'
    assert znodes.decode_broker(1, first, epoch=2).endpoints == (Endpoint("PLAINTEXT", "h", 9092),)
    second = b'{"version":2,"host":"h","port":1,"jmx_port":-1,"timestamp":"1","endpoints":["SSL://h:2"]}'
    assert znodes.decode_broker(1, second, epoch=2).endpoints == (Endpoint("SSL", "h", 2, "SSL"),)


def test_a_topic_is_written_with_its_id_and_assignment() -> None:
    moving = STATE._replace(adding_replicas=(3,), removing_replicas=(1,))
    data = znodes.encode_topic(TOPIC_ID, [STATE, moving])
    assert json.loads(data) == {
        "version": 3,
        "topic_id": "5QmE7xwRSsykUvKUVkxeTg",
        "partitions": {"0": [1, 2, 3], "1": [1, 2, 3]},
        "adding_replicas": {"1": [3]},
        "removing_replicas": {"1": [1]},
    }
    assert znodes.decode_topic("t", data) == (TOPIC_ID, {0: (1, 2, 3), 1: (1, 2, 3)}, {1: (3,)}, {1: (1,)})


def test_a_topic_of_an_old_kafka_has_no_id() -> None:
    assert znodes.decode_topic("t", b'{"version":1,"partitions":{"0":[1]}}') == (None, {0: (1,)}, {}, {})


def test_a_partitions_state_round_trips_with_the_nodes_version() -> None:
    data = znodes.encode_state(STATE)
    assert json.loads(data) == {"version": 1, "leader": 1, "leader_epoch": 3, "controller_epoch": 5, "isr": [1, 2]}
    assert znodes.decode_state(data, 7, replicas=(1, 2, 3)) == STATE


def test_configs_round_trip_and_empty_data_holds_none() -> None:
    data = znodes.encode_configs({"retention.ms": "1"})
    assert json.loads(data) == {"version": 1, "config": {"retention.ms": "1"}}
    assert znodes.decode_configs(data) == {"retention.ms": "1"}
    assert znodes.decode_configs(b"") == {}


def test_the_controller_its_epoch_and_the_cluster_id_round_trip() -> None:
    controller = znodes.encode_controller(1, timestamp_ms=5)
    assert json.loads(controller) == {"version": 2, "brokerid": 1, "timestamp": "5", "kraftControllerEpoch": -1}
    assert znodes.decode_controller(controller) == 1
    assert znodes.encode_epoch(12) == b"12"
    assert znodes.decode_epoch(b"12") == 12
    assert json.loads(znodes.encode_cluster_id("abc")) == {"version": "1", "id": "abc"}
    assert znodes.decode_cluster_id(znodes.encode_cluster_id("abc")) == "abc"


def test_producer_id_blocks_keep_their_bounds_as_texts() -> None:
    data = znodes.encode_producer_id_block(ProducerIdBlock(1000, 1999), broker_id=1)
    assert json.loads(data) == {"version": 1, "broker": 1, "block_start": "1000", "block_end": "1999"}
    assert znodes.decode_producer_id_block(data) == ProducerIdBlock(1000, 1999)
    assert znodes.decode_producer_id_block(b"") is None


def test_a_config_change_names_the_entity_to_read_again() -> None:
    assert json.loads(znodes.encode_config_change("topics/a")) == {"version": 2, "entity_path": "topics/a"}


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (lambda data: znodes.decode_topic("t", data), b""),
        (lambda data: znodes.decode_topic("t", data), b"[]"),
        (lambda data: znodes.decode_topic("t", data), b'{"version":3}'),
        (lambda data: znodes.decode_topic("t", data), b'{"partitions":{"0":[1],"2":[1]}}'),
        (lambda data: znodes.decode_topic("t", data), b'{"partitions":{"0":[1]},"topic_id":"?"}'),
        (lambda data: znodes.decode_topic("t", data), b'{"partitions":{"0":"12"}}'),
        (lambda data: znodes.decode_topic("t", data), b'{"partitions":{"0":["1"]}}'),
        (lambda data: znodes.decode_topic("t", data), b'{"partitions":{"0":[true]}}'),
        (lambda data: znodes.decode_state(data, 0, replicas=(1,)), b'{"leader":1}'),
        (
            lambda data: znodes.decode_state(data, 0, replicas=(1,)),
            b'{"leader":"1","leader_epoch":0,"controller_epoch":0,"isr":[1]}',
        ),
        (lambda data: znodes.decode_broker(1, data, epoch=0), b'{"version":5,"endpoints":["nowhere"]}'),
        (lambda data: znodes.decode_broker(1, data, epoch=0), b"\xff"),
        (znodes.decode_configs, b'{"config":[]}'),
        (znodes.decode_controller, b"{}"),
        (znodes.decode_epoch, b"x"),
        (znodes.decode_cluster_id, b"{}"),
        (znodes.decode_producer_id_block, b"{}"),
    ],
)
def test_an_invalid_node_is_reported_in_one_line(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(BadNode) as problem:
        decode(data)
    assert "\n" not in str(problem.value)


def test_reassignments_of_older_tools_are_read_and_written() -> None:
    first, second = b'{"topic":"t","partition":0,"replicas":[1,2]}', b'{"topic":"t","partition":1,"replicas":[3]}'
    data = b'{"version":1,"partitions":[%s,%s]}' % (first, second)
    moves = {("t", 0): (1, 2), ("t", 1): (3,)}
    assert znodes.decode_reassignments(data) == moves
    assert znodes.encode_reassignments(moves) == data
    assert znodes.decode_preferred_election(data) == list(moves)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version":1}',
        b'{"version":1,"partitions":{}}',
        b'{"version":1,"partitions":[7]}',
        b'{"version":1,"partitions":[{"topic":"t","partition":0}]}',
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":["1"]}]}',
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[true]}]}',
        b'{"version":1,"partitions":[{"topic":"t","partition":"0","replicas":[1]}]}',
        b'{"version":1,"partitions":[{"partition":0,"replicas":[1]}]}',
    ],
)
def test_a_bad_reassignment_is_refused(data: bytes) -> None:
    with pytest.raises(znodes.BadNode):
        znodes.decode_reassignments(data)
