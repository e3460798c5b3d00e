"""Profiles: named clusters in `~/.config/kbroker/config.toml` (or under XDG_CONFIG_HOME).

    profile = "dev"                     # the profile without --profile and KBROKER_PROFILE

    [profiles.dev]
    bootstrap = "127.0.0.1:9092"

    [profiles.prod]
    bootstrap = ["kafka1.example.com:9092", "kafka2.example.com:9092"]

The tables `tls` and `sasl` of a profile are reserved. They are refused: kbroker must not connect without them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.config.toml_file import TomlTable

__all__ = ["Profile", "config_file", "find_profile", "profile_names"]

_RESERVED: Final = ("tls", "sasl")


class Profile(NamedTuple):
    name: str
    bootstrap: str


def config_file() -> Path:
    """Returns the path of the configuration file. It may be missing."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home, "kbroker", "config.toml")


def find_profile(name: str | None) -> Profile | None:
    """Returns the profile of this name; without a name, the default profile of the file, or None if it has none.

    Raises UserError if there is no profile of this name, or the file is invalid.
    """
    file = config_file()
    if not file.exists():
        if name is not None:
            raise UserError(f"Profile '{name}' does not exist: there is no file {file}.")
        return None
    from kbroker.config.toml_file import read_toml  # only with a file: the command line starts faster without tomllib

    table = read_toml(file)
    default = table.optional_text("profile")
    profiles = table.table("profiles")
    table.end()
    wanted = default if name is None else name
    if wanted is None:
        return None
    if wanted not in profiles:
        known = f" Profiles: {', '.join(profiles.keys)}." if profiles.keys else ""
        raise UserError(f"{file} has no profile '{wanted}'.{known}")
    return _read(wanted, profiles.table(wanted))


def profile_names() -> list[str]:
    """Returns the names of all profiles. Empty without a file."""
    from kbroker.config.toml_file import read_toml

    file = config_file()
    return read_toml(file).table("profiles").keys if file.exists() else []


def _read(name: str, table: TomlTable) -> Profile:
    for key in _RESERVED:
        if key in table:
            problem = f"{table.name_of(key)} is set, but kbroker cannot connect with TLS or SASL yet"
            raise table.problem(problem, key=key)
    bootstrap = ",".join(table.texts("bootstrap"))
    table.end()
    return Profile(name, bootstrap)
