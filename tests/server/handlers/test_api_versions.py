"""ApiVersions: the served APIs, and a response that clients of every version can read."""

from __future__ import annotations

import pytest

from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import api_versions as messages
from kbroker.protocol.registry import APIS
from tests.server.handlers.harness import HandlerBroker, parse_response

CLIENT = {"client_software_name": "apache-kafka-java", "client_software_version": "4.1.0"}


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
async def test_the_response_lists_the_served_apis_of_the_registry(broker: HandlerBroker, version: int) -> None:
    response = await broker.ask(18, version, **CLIENT)
    told = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert response.error_code == 0
    assert told == {api.key: api.serves for api in APIS if api.is_served()}
    assert told[18] == (0, 4)
    assert told[3] == (0, 13)


async def test_apis_between_brokers_are_not_listed(broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    from kbroker.server.handlers import api_versions

    monkeypatch.setattr(api_versions, "_bodies", {})
    leader_and_isr = next(api for api in APIS if api.key == 4)
    monkeypatch.setattr(leader_and_isr, "serves", (0, 7))
    response = await broker.ask(18, 0)
    assert 4 not in {api.api_key for api in response.api_keys}


async def test_the_cached_response_equals_the_first(broker: HandlerBroker) -> None:
    assert await broker.ask(18, 3, **CLIENT) == await broker.ask(18, 3, **CLIENT)


@pytest.mark.parametrize("version", [5, 9, 32767])
async def test_an_unknown_version_gets_a_v0_response_with_the_range_of_this_api(
    broker: HandlerBroker, version: int
) -> None:
    body = codec(messages.REQUEST, 4).to_bytes(messages.REQUEST(**CLIENT)) + b"something new"
    frame = await broker.ask_raw(18, version, body, 2)
    response = parse_response(18, 0, frame)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(api.api_key, api.min_version, api.max_version) for api in response.api_keys] == [(18, 0, 4)]


async def test_the_response_header_has_no_tags_even_if_the_body_is_flexible(broker: HandlerBroker) -> None:
    body = codec(messages.REQUEST, 3).to_bytes(messages.REQUEST(**CLIENT))
    frame = await broker.ask_raw(18, 3, body, 2)
    assert frame[8:10] == b"\0\0"  # the error code follows the correlation id at once


@pytest.mark.parametrize("name", ["", "-kafka", "kafka-", "ka fka", "käfka", "kafka\n"])
async def test_an_invalid_software_name_is_refused(broker: HandlerBroker, name: str) -> None:
    for member in CLIENT:
        response = await broker.ask(18, 3, **{**CLIENT, member: name})
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert response.api_keys == []


@pytest.mark.parametrize("version", [3, 4])
async def test_features_for_clients_are_enabled(broker: HandlerBroker, version: int) -> None:
    response = await broker.ask(18, version, **CLIENT)
    levels = [("group.version", 1), ("transaction.version", 2)]
    assert [(feature.name, feature.max_version_level) for feature in response.finalized_features] == levels
    supported = [(feature.name, feature.max_version) for feature in response.supported_features]
    assert supported == (levels if version >= 4 else []), "old clients cannot read a range that begins at 0"
    assert response.finalized_features_epoch == 0
