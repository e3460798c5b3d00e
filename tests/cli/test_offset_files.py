"""Files of offsets: what is written can be read, whichever form it has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli.offset_files import FORMATS, read_offsets, write_offsets
from kbroker.client.offsets import CommittedOffset
from kbroker.errors import UserError

OFFSETS = {
    "orders": {0: CommittedOffset(7), 2: CommittedOffset(9, 'a "word", and\nmore')},
    "a": {0: CommittedOffset(1)},
}

texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"))


def test_the_three_forms_look_as_their_readers_want_them() -> None:
    plain = {"orders": {0: CommittedOffset(7, "x"), 2: CommittedOffset(9)}}
    assert write_offsets("kafka", "g", plain) == "orders,0,7\norders,2,9\n"
    assert write_offsets("csv", "g", plain) == "topic,partition,offset,metadata\norders,0,7,x\norders,2,9,\n"
    assert '"group": "g"' in write_offsets("json", "g", plain)


@pytest.mark.parametrize("file_format", ["csv", "json"])
@given(
    offsets=st.dictionaries(
        st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True),
        st.dictionaries(
            st.integers(0, 2**31 - 1),
            st.builds(CommittedOffset, st.integers(0, 2**63 - 1), texts),
            min_size=1,
            max_size=3,
        ),
        max_size=3,
    )
)
def test_what_is_written_is_read(file_format: str, offsets: dict[str, dict[int, CommittedOffset]]) -> None:
    assert read_offsets(write_offsets(file_format, "g", offsets), "g") == offsets


def test_kafkas_form_loses_only_the_metadata() -> None:
    read = read_offsets(write_offsets("kafka", "g", OFFSETS), "g")
    assert read == {
        name: {number: CommittedOffset(each.offset) for number, each in partitions.items()}
        for name, partitions in OFFSETS.items()
    }


def test_of_several_groups_one_is_taken() -> None:
    text = '"g","orders",0,5\nother,orders,0,6\n\ng,orders,1,7\n'
    assert read_offsets(text, "g") == {"orders": {0: CommittedOffset(5), 1: CommittedOffset(7)}}


@pytest.mark.parametrize("file_format", FORMATS)
def test_nothing_written_is_nothing_read(file_format: str) -> None:
    assert read_offsets(write_offsets(file_format, "g", {}), "g") == {}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("orders,0,1\norders,one,2\n", "line 2"),
        ("orders,0,1\norders,0\n", "line 2"),
        ("orders,0,-1\n", "line 1"),
        ("orders,-1,1\n", "line 1"),
        (",0,1\n", "line 1"),
        (f"orders,0,{2**63}\n", "line 1"),
        ("something else\n", "line 1"),
        ("{", "no JSON"),
        ('[{"topic": "t", "partition": 0}]', "entry 0"),
        ('{"offsets": [{"topic": "t", "partition": 0, "offset": 1}, 7]}', "entry 1"),
        ('[{"topic": 1, "partition": 0, "offset": 1}]', "entry 0"),
        ('[{"topic": "t", "partition": null, "offset": 1}]', "entry 0"),
        ('{"offsets": 7}', "no list"),
    ],
)
def test_what_is_no_offset_is_told_by_its_place(text: str, where: str) -> None:
    with pytest.raises(UserError, match=where):
        read_offsets(text, "g")
