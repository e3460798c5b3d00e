"""Offset files: every written format can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli.offset_files import FORMATS, read_offsets, write_offsets
from kbroker.client.offsets import GroupOffset
from kbroker.errors import UserError

OFFSETS = {
    "orders": {0: GroupOffset(7), 2: GroupOffset(9, 'a "word", and\nmore')},
    "a": {0: GroupOffset(1)},
}

texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"))


def test_each_format_is_written_as_documented() -> None:
    plain = {"orders": {0: GroupOffset(7, "x"), 2: GroupOffset(9)}}
    assert write_offsets("kafka", "g", plain) == "orders,0,7\norders,2,9\n"
    assert write_offsets("csv", "g", plain) == "topic,partition,offset,metadata\norders,0,7,x\norders,2,9,\n"
    assert '"group": "g"' in write_offsets("json", "g", plain)


@pytest.mark.parametrize("file_format", ["csv", "json"])
@given(
    offsets=st.dictionaries(
        st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True),
        st.dictionaries(
            st.integers(0, 2**31 - 1),
            st.builds(GroupOffset, st.integers(0, 2**63 - 1), texts),
            min_size=1,
            max_size=3,
        ),
        max_size=3,
    )
)
def test_written_offsets_are_read_back(file_format: str, offsets: dict[str, dict[int, GroupOffset]]) -> None:
    assert read_offsets(write_offsets(file_format, "g", offsets), "g") == offsets


def test_the_kafka_format_loses_only_the_metadata() -> None:
    read = read_offsets(write_offsets("kafka", "g", OFFSETS), "g")
    assert read == {
        name: {number: GroupOffset(committed.offset) for number, committed in partitions.items()}
        for name, partitions in OFFSETS.items()
    }


def test_lines_of_other_groups_are_skipped() -> None:
    text = '"g","orders",0,5\nother,orders,0,6\n\ng,orders,1,7\n'
    assert read_offsets(text, "g") == {"orders": {0: GroupOffset(5), 1: GroupOffset(7)}}


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_empty_export_is_read_back_as_empty(file_format: str) -> None:
    assert read_offsets(write_offsets(file_format, "g", {}), "g") == {}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("orders,0,1\norders,one,2\n", "Line 2"),
        ("orders,0,1\norders,0\n", "Line 2"),
        ("orders,0,-1\n", "Line 1"),
        ("orders,-1,1\n", "Line 1"),
        (",0,1\n", "Line 1"),
        (f"orders,0,{2**63}\n", "Line 1"),
        ("something else\n", "Line 1"),
        ("{", "not valid JSON"),
        ('[{"topic": "t", "partition": 0}]', "Entry 0"),
        ('{"offsets": [{"topic": "t", "partition": 0, "offset": 1}, 7]}', "Entry 1"),
        ('[{"topic": 1, "partition": 0, "offset": 1}]', "Entry 0"),
        ('[{"topic": "t", "partition": null, "offset": 1}]', "Entry 0"),
        ('{"offsets": 7}', "no list"),
    ],
)
def test_an_invalid_entry_is_reported_by_its_position(text: str, where: str) -> None:
    with pytest.raises(UserError, match=where):
        read_offsets(text, "g")
