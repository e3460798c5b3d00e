"""The import contracts of pyproject.toml hold, and the check is able to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import api
from importlinter.application import use_cases
from importlinter.application.user_options import UserOptions

CONFIGURATION = api.read_configuration(str(Path(__file__).parents[2] / "pyproject.toml"))
CONTRACTS: list[dict[str, Any]] = CONFIGURATION["contracts_options"]

UPSIDE_DOWN: list[dict[str, Any]] = [
    {
        "name": "nobody may ask for the time, not even the clock",
        "type": "forbidden",
        "source_modules": ["kbroker"],
        "forbidden_modules": ["time"],
    },
    {
        "name": "errors stand above protocol",
        "type": "layers",
        "containers": ["kbroker"],
        "layers": ["errors", "protocol"],
    },
]


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    """Contract name -> what breaks it, or nothing; all from one reading of the sources."""
    modules = grimp.build_graph("kbroker", cache_dir=None).modules
    contracts = [_without_missing_modules(contract, modules) for contract in CONTRACTS + UPSIDE_DOWN]
    session = {**CONFIGURATION["session_options"], "root_packages": ["kbroker"]}
    options = UserOptions(session_options=session, contracts_options=contracts)
    use_cases._register_contract_types(options)
    report = use_cases.create_report(options, cache_dir=None)
    assert not report.could_not_run, report.invalid_contract_options
    return {
        contract.name: "" if check.kept else str(check.metadata)
        for contract, check in report.get_contracts_and_checks()
    }


def _without_missing_modules(contract: dict[str, Any], modules: set[str]) -> dict[str, Any]:
    if "source_modules" not in contract:
        return contract
    present = [name for name in contract["source_modules"] if name in modules]
    assert present, "a contract about nothing"
    return {**contract, "source_modules": present}


@pytest.mark.parametrize("name", [contract["name"] for contract in CONTRACTS])
def test_the_contract_is_kept(name: str, verdicts: dict[str, str]) -> None:
    assert verdicts[name] == ""


@pytest.mark.parametrize(
    ("name", "culprit"), [(UPSIDE_DOWN[0]["name"], "kbroker.clock"), (UPSIDE_DOWN[1]["name"], "kbroker.protocol")]
)
def test_a_contract_that_is_broken_is_seen(name: str, culprit: str, verdicts: dict[str, str]) -> None:
    assert culprit in verdicts[name]
