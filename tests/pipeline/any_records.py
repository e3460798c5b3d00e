"""Records of any content, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from kbroker.protocol.records import Record

__all__ = ["contents", "records"]

contents = st.none() | st.binary(max_size=200)
records = st.builds(
    Record,
    st.just(0),
    st.integers(0, 1 << 50),
    contents,
    contents,
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
)
