"""docs/compatibility.md says what the registry says."""

from __future__ import annotations

import pytest

from kbroker.protocol.registry import APIS
from tools.compatibility import BEGIN, BEGIN_CONFIGS, PAGE, inactive_configs, table, updated
from tools.generated_section import END


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == updated(page), "run `python -m tools.compatibility`"


def test_every_api_has_a_line() -> None:
    lines = [line for line in table().splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[1] for line in lines] == [api.name for api in APIS]
    assert all(len(line.split(" | ")) == 6 for line in lines)


def test_what_is_written_by_hand_is_kept() -> None:
    page = PAGE.read_text()
    assert updated(page.replace("# Compatibility", "# Other words")).startswith("# Other words")


def test_configs_that_do_nothing_are_listed() -> None:
    listed = inactive_configs()
    assert "`num.io.threads`" in listed
    assert "`share.session.timeout.ms`" in listed
    assert "`consumer.session.timeout.ms`" not in listed
    assert "`log.retention.ms`" not in listed


@pytest.mark.parametrize("page", ["", f"{BEGIN}\n{END}", f"{BEGIN_CONFIGS}\n{END}"])
def test_a_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="markers"):
        updated(f"# Compatibility\n{page}")
