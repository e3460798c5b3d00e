"""Error codes that are found in responses, at every depth."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_configs, metadata, offset_fetch, produce
from kbroker.protocol.registry import APIS, Api
from kbroker.protocol.values import Value
from kbroker.server.requests.response_errors import error_counter


def count(api_response: Any, value: Value) -> dict[int, int]:
    counts: dict[int, int] = {}
    error_counter(api_response)(value, counts)
    return counts


def test_each_partition_with_an_error_counts() -> None:
    def topic(*codes: int) -> Any:
        partitions = [produce.PartitionProduceResponse(index=0, error_code=code) for code in codes]
        return produce.TopicProduceResponse(partition_responses=partitions)

    response = produce.RESPONSE(responses=[topic(0, 3, 6), topic(6), topic()])
    assert count(produce.RESPONSE, response) == {3: 1, 6: 2}


def test_a_null_array_has_no_errors() -> None:
    partition = metadata.MetadataResponsePartition(error_code=ErrorCode.LEADER_NOT_AVAILABLE)
    topics = [metadata.MetadataResponseTopic(error_code=5, partitions=[partition])]
    assert count(metadata.RESPONSE, metadata.RESPONSE(topics=topics)) == {5: 2}
    assert count(describe_configs.RESPONSE, describe_configs.RESPONSE(results=None)) == {}
    assert count(offset_fetch.RESPONSE, offset_fetch.RESPONSE(error_code=16)) == {16: 1}


@pytest.mark.parametrize("api", [api for api in APIS if api.is_served(is_in_cluster=True)], ids=lambda api: api.name)
def test_the_default_response_of_every_api_has_no_error(api: Api) -> None:
    assert count(api.response, api.response()) == {}
