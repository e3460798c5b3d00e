"""DescribeCluster: cluster id, controller and brokers of the client's listener."""

from __future__ import annotations

import pytest

from kbroker.protocol.acl_codes import CLUSTER_NAME, AclOperation
from kbroker.protocol.error_codes import ErrorCode
from tests.server.conftest import StartBroker
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_CLUSTER = 60
NOT_ASKED = -0x80000000


@pytest.mark.parametrize("version", range(3))
async def test_the_cluster_is_described_for_the_clients_listener(start_broker: StartBroker, version: int) -> None:
    broker = await start_broker(broker_rack="r1")
    for listener, address in (("PLAINTEXT", ("127.0.0.1", 9092)), ("EXTERNAL", ("kbroker.example", 19092))):
        answer = await broker.ask(DESCRIBE_CLUSTER, version, listener=listener)
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, broker.image.cluster_id, 1)
        assert [
            (broker.broker_id, broker.host, broker.port, broker.rack, broker.is_fenced) for broker in answer.brokers
        ] == [(1, *address, "r1", False)]
        assert (answer.endpoint_type, answer.cluster_authorized_operations) == (1, NOT_ASKED)


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
async def test_only_the_broker_endpoint_type_is_supported(
    broker: HandlerBroker, endpoint_type: int, code: ErrorCode
) -> None:
    answer = await broker.ask(DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type)
    assert (answer.error_code, answer.brokers) == (code, [])
    assert answer.error_message


async def test_authorized_operations_are_returned_on_request(broker: HandlerBroker) -> None:
    answer = await broker.ask(DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations == 8096
    broker.allow((AclOperation.DESCRIBE, CLUSTER_NAME), (AclOperation.CREATE, CLUSTER_NAME))
    answer = await broker.ask(DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations == (1 << AclOperation.DESCRIBE) + (1 << AclOperation.CREATE)
    broker.allow()
    answer = await broker.ask(DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
    assert (answer.error_code, answer.cluster_authorized_operations) == (0, 0)
