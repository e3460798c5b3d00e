"""Finds the secrets among configs that are given on the command line, where every user of the machine can read them."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.config.broker import BROKER_CONFIGS
from kbroker.config.listener import split_name

__all__ = ["secrets_in", "visible_secret"]


def secrets_in(configs: Mapping[str, str]) -> list[str]:
    """Returns the names of the broker configs whose values are secrets. A JAAS config without options has none."""
    return [name for name, text in configs.items() if _is_secret(name, text)]


def visible_secret(name: str, *, file_option: str) -> str:
    """Returns the warning about a secret in the value of --set. `file_option` names the option for a file."""
    return (
        f"every user of this machine can read {name} in the list of processes: "
        f"write it into the file of {file_option} instead of --set"
    )


def _is_secret(name: str, text: str) -> bool:
    prefixed = split_name(name)
    key = BROKER_CONFIGS.get(name if prefixed is None else prefixed.base)
    return key is not None and key.is_sensitive and text != "" and ("=" in text or not name.endswith("jaas.config"))
