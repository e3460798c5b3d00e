"""Pages: generated parts are up to date, links point to existing targets, names exist."""

from __future__ import annotations

import re

import pytest

from kbroker.web.metrics_table import METRICS
from tests.docs.pages import ROOT, page_names
from tools import configuration, metrics

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FILE = re.compile(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`")
METRIC = re.compile(r"\b(?:kafka|kbroker|process)_[a-z_]+\b")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors_of(page: str) -> set[str]:
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text_of(page))}


def test_the_page_of_configs_is_up_to_date() -> None:
    assert text_of("docs/configuration.md") == configuration.page(), "run: python -m tools.configuration"


def test_the_table_of_metrics_is_up_to_date() -> None:
    page = text_of("docs/operations.md")
    assert page == metrics.updated(page), "run: python -m tools.metrics"


@pytest.mark.parametrize("page", page_names())
def test_links_point_to_pages_and_headings(page: str) -> None:
    for link in LINK.findall(re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(str(target.resolve().relative_to(ROOT))), link


def test_the_readme_names_every_page() -> None:
    pages = {page for page in page_names() if page.startswith("docs/") and "/adr/" not in page}
    assert pages - set(LINK.findall(text_of("README.md"))) == set()


def test_the_page_of_the_architecture_names_files_and_folders_that_exist() -> None:
    paths = [f"/{path.relative_to(ROOT)}" for path in (ROOT / "kbroker").rglob("*")]
    paths += [f"/{path.relative_to(ROOT)}" for path in (ROOT / "tests").rglob("*")]
    named = {name.rstrip("/") for name in FILE.findall(text_of("docs/ARCHITECTURE.md"))} - {"setup.py"}
    assert len(named) > 50
    assert {name for name in named if not any(path.endswith(f"/{name}") for path in paths)} == set()


def test_alerts_name_metrics_that_exist() -> None:
    page = text_of("docs/operations.md")
    alerts = page[page.index("## Alerts") : page.index("## Logs")]
    named = set(METRIC.findall(alerts))
    assert len(named) > 5
    assert named <= {metric.name for metric in METRICS}
