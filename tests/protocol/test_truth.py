"""Every schema against the specs inside Kafka's jars, whole versions at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.group_records import RECORD_TYPES
from kbroker.protocol.registry import APIS
from kbroker.protocol.types import Int16, Int32
from kbroker.protocol.versions import NEVER, Message, field
from tests.protocol.all_messages import (
    API_MESSAGES,
    BY_NAME,
    CONSUMER_PROTOCOL,
    GROUP_RECORDS,
    HEADERS,
    MESSAGES,
    TRANSACTION_RECORDS,
)
from tests.protocol.kafka_specs import Line, Spec, parse_versions, read_specs, schema_lines, snake_case, spec_lines

Releases = dict[str, dict[str, Spec]]

# What the issue of this protocol asks for: client, inter-broker and ZooKeeper controller APIs.
KEYS = {*range(52), 56, 57, 58, 60, 61, *range(65, 70), 71, 72, *range(74, 80), *range(90, 93)}

# What Kafka 3.9 called what 4.1 calls otherwise; the schemas use 4.1's words.
RENAMED_MESSAGES = {
    "ListClientMetricsResourcesRequest": "ListConfigResourcesRequest",
    "ListClientMetricsResourcesResponse": "ListConfigResourcesResponse",
}
RENAMED_FIELDS = {
    ("ListConfigResourcesResponse", "client_metrics_resources"): ("config_resources", "[]ConfigResource"),
    ("ListConfigResourcesResponse", "client_metrics_resources.name"): ("config_resources.resource_name", "string"),
}


@pytest.fixture(scope="module")
def releases(kafka_spec_jars: dict[str, Path]) -> Releases:
    """Jar -> message -> spec, under 4.1's names."""
    return {
        jar: {RENAMED_MESSAGES.get(name, name): spec for name, spec in read_specs(path).items()}
        for jar, path in kafka_spec_jars.items()
    }


def specs_of(releases: Releases, name: str) -> Iterator[tuple[str, Spec]]:
    """The spec of a message in each jar that declares at least one stable version of it."""
    for jar, specs in releases.items():
        if name in specs and len(specs[name].versions) > 0:
            yield jar, specs[name]


def differences(name: str, expected: list[Line], actual: list[Line]) -> list[str]:
    """What the spec has and the schema lacks, then the other way round, then the order."""
    expected = [renamed(name, line) for line in expected]
    if expected == actual:
        return []
    missing = [f"spec:   {line}" for line in expected if line not in actual]
    extra = [f"schema: {line}" for line in actual if line not in expected]
    return missing + extra or [f"order: {[line.path for line in expected]} but {[line.path for line in actual]}"]


def renamed(name: str, line: Line) -> Line:
    path, kind = RENAMED_FIELDS.get((name, line.path), (line.path, line.type))
    return line._replace(path=path, type=kind)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_every_version_has_kafkas_fields_in_kafkas_order(message: Message, releases: Releases) -> None:
    found = {
        f"{jar} v{version}": difference
        for jar, spec in specs_of(releases, message.name)
        for version in spec.versions
        if (difference := differences(message.name, spec_lines(spec, version), schema_lines(message, version)))
    }
    assert found == {}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_the_declared_versions_are_those_of_kafka_3_9_and_4_1_together(message: Message, releases: Releases) -> None:
    union = {version for _, spec in specs_of(releases, message.name) for version in spec.versions}
    assert set(message.versions) == union


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_the_same_versions_are_flexible(message: Message, releases: Releases) -> None:
    for jar, spec in specs_of(releases, message.name):
        for version in spec.versions:
            assert message.is_flexible(version) == (version in spec.flexible), f"{jar} v{version}"


def test_exactly_the_agreed_keys_are_declared() -> None:
    assert {api.key for api in APIS} == KEYS


def test_no_stable_api_among_the_agreed_keys_is_forgotten(releases: Releases) -> None:
    names = {
        name
        for specs in releases.values()
        for name, spec in specs.items()
        if spec.kind in ("request", "response") and spec.api_key in KEYS and len(spec.versions) > 0
    }
    assert names == {message.name for message in API_MESSAGES}


def test_each_api_has_the_key_that_kafka_gives_it(releases: Releases) -> None:
    for api in APIS:
        for message in (api.request, api.response):
            for jar, spec in specs_of(releases, message.name):
                assert spec.api_key == api.key, f"{jar}: {message.name}"


def test_every_record_of_the_coordinators_has_a_schema(releases: Releases) -> None:
    for jar, records in (
        ("kafka-group-coordinator-4.1.0", GROUP_RECORDS),
        ("kafka-transaction-coordinator-4.1.0", TRANSACTION_RECORDS),
    ):
        assert {message.name for message in records} == set(releases[jar])


def test_record_types_are_kafkas(releases: Releases) -> None:
    specs = releases["kafka-group-coordinator-4.1.0"].values()
    keys = {spec.api_key: spec.name for spec in specs if spec.kind == "coordinator-key"}
    values = {spec.api_key: spec.name for spec in specs if spec.kind == "coordinator-value"}
    assert {number: key.name for number, (key, _) in RECORD_TYPES.items()} == keys
    assert {number: value.name for number, (_, value) in RECORD_TYPES.items()} == values


def test_headers_and_consumer_protocol_are_compared_with_both_releases(releases: Releases) -> None:
    for message in (*HEADERS, *CONSUMER_PROTOCOL):
        assert [jar for jar, _ in specs_of(releases, message.name)] == ["kafka-clients-3.9.2", "kafka-clients-4.1.0"]


METADATA = BY_NAME["MetadataRequest"]
MUTATIONS: dict[str, Any] = {
    "another name": lambda each: {"name": "allow_topic_creation"},
    "another type": lambda each: {"subcon": Int32},
    "a version too early": lambda each: {"since": each.since - 1},
    "a version too short": lambda each: {"until": METADATA.last_version - 1},
    "null allowed": lambda each: {"nullable": 10},
    "tagged": lambda each: {"tag": 0},
    "another default": lambda each: {"default": False},
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_comparison_sees_a_wrong_field(mutation: str, releases: Releases) -> None:
    fields = list(METADATA.fields)
    right = fields[1]
    arguments = {
        "name": right.name,
        "subcon": right.subcon,
        "since": right.since,
        "until": right.until,
        "nullable": right.nullable,
        "tag": right.tag,
        "default": right.default_value,
    }
    fields[1] = field(**{**arguments, **MUTATIONS[mutation](right)})
    assert wrong_versions(fields, releases) != []


def test_the_comparison_sees_a_wrong_order_a_missing_and_a_surplus_field(releases: Releases) -> None:
    first, second, *rest = METADATA.fields
    assert wrong_versions([first, second, *rest], releases) == []
    assert wrong_versions([second, first, *rest], releases) != []
    assert wrong_versions([first, *rest], releases) != []
    assert wrong_versions([first, second, *rest, field("extra", Int16)], releases) != []


def test_the_comparison_sees_a_wrong_flexible_version(releases: Releases) -> None:
    assert wrong_versions(list(METADATA.fields), releases, flexible=8) == [8]
    assert wrong_versions(list(METADATA.fields), releases, flexible=NEVER) == [9, 10, 11, 12, 13]


def wrong_versions(fields: list[Any], releases: Releases, flexible: int = METADATA.flexible_since) -> list[int]:
    wrong = Message(METADATA.name, *fields, versions=(0, 13), flexible=flexible)
    spec = releases["kafka-clients-4.1.0"][METADATA.name]
    return [
        version
        for version in spec.versions
        if differences(METADATA.name, spec_lines(spec, version), schema_lines(wrong, version))
    ]


def test_version_ranges_of_the_specs_are_understood() -> None:
    assert parse_versions("none") == range(0)
    assert parse_versions("7") == range(7, 8)
    assert parse_versions("3-5") == range(3, 6)
    assert 400 in parse_versions("2+")
    assert 1 not in parse_versions("2+")


def test_names_become_snake_case() -> None:
    assert [snake_case(name) for name in ("ThrottleTimeMs", "TopicId", "HMACKey", "Name2Value")] == [
        "throttle_time_ms",
        "topic_id",
        "hmac_key",
        "name2_value",
    ]
