"""The flat table of APIs: what it says is what the schema modules hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kbroker.protocol.messages
from kbroker.protocol.registry import APIS, Api, api

every_api = pytest.mark.parametrize("row", APIS, ids=lambda row: row.name)


def test_rows_are_sorted_by_key_and_unique() -> None:
    keys = [row.key for row in APIS]
    assert keys == sorted(set(keys))
    assert len({row.name for row in APIS}) == len({row.module_name for row in APIS}) == len(APIS)


def test_every_schema_module_has_a_row() -> None:
    folder = Path(next(iter(kbroker.protocol.messages.__path__)))
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert modules == {row.module_name for row in APIS}


@every_api
def test_names_of_module_and_messages_follow_from_the_row(row: Api) -> None:
    assert row.module_name == re.sub(r"(?<!^)(?=[A-Z])", "_", row.name).lower()
    assert row.request.name == f"{row.name}Request"
    assert row.response.name == f"{row.name}Response"


@every_api
def test_a_schema_module_opens_with_its_name_and_key(row: Api) -> None:
    assert (row.messages.__doc__ or "").startswith(f"{row.name} ({row.key}): ")


@every_api
def test_request_and_response_declare_the_same_versions(row: Api) -> None:
    assert row.request.versions == row.response.versions == row.versions
    assert row.request.flexible_since == row.response.flexible_since
    assert len(row.versions) > 0


@every_api
def test_what_is_served_is_declared(row: Api) -> None:
    if row.serves is not None:
        first, last = row.serves
        assert first <= last
        assert first in row.versions
        assert last in row.versions


def test_a_row_is_found_by_its_key() -> None:
    assert all(api(row.key) is row for row in APIS)
    for absent in (-1, 52, 88, 93, 32767):
        with pytest.raises(KeyError):
            api(absent)


@every_api
def test_header_versions(row: Api) -> None:
    for version in row.versions:
        flexible = row.request.is_flexible(version)
        request, response = row.request_header_version(version), row.response_header_version(version)
        assert request == (0 if (row.key, version) == (7, 0) else 2 if flexible else 1)
        assert response == (1 if flexible and row.key != 18 else 0)


def test_the_two_apis_with_headers_of_their_own() -> None:
    controlled_shutdown, api_versions = api(7), api(18)
    assert [controlled_shutdown.request_header_version(version) for version in range(4)] == [0, 1, 1, 2]
    assert [controlled_shutdown.response_header_version(version) for version in range(4)] == [0, 0, 0, 1]
    assert [api_versions.request_header_version(version) for version in range(5)] == [1, 1, 1, 2, 2]
    assert [api_versions.response_header_version(version) for version in range(5)] == [0] * 5
