"""Profiles: named clusters in `~/.config/kbroker/config.toml` (or under XDG_CONFIG_HOME).

    profile = "dev"                     # the profile without --profile and KBROKER_PROFILE

    [profiles.dev]
    bootstrap = "127.0.0.1:9092"

    [profiles.prod]
    bootstrap = ["kafka1.example.com:9093", "kafka2.example.com:9093"]
    security.protocol = "SASL_SSL"
    ssl.truststore.location = "~/.config/kbroker/prod-ca.pem"
    sasl.mechanism = "SCRAM-SHA-512"
    sasl.username = "alice"
    sasl.password_file = "~/.config/kbroker/prod.password"

A secret is written as it is (`sasl.password`), or taken from an environment variable (`sasl.password_env`) or from the
first line of a file (`sasl.password_file`). Files with secrets must not be readable by others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.config.toml_file import TomlTable

__all__ = ["Profile", "config_file", "find_profile", "profile_names"]

_READABLE_BY_OTHERS: Final = 0o004
# Kafka's name -> key in the table `sasl`. The second ones may come from the environment or a file.
_SASL_TEXTS: Final = {"sasl.mechanism": "mechanism", "sasl.username": "username"}
_TLS_SECRETS: Final = ("key", "password")
"""Last part of the names of secrets: ssl.keystore.key, ssl.key.password."""
_SASL_SECRETS: Final = {"sasl.password": "password", "sasl.oauthbearer.token": "token"}


class Profile(NamedTuple):
    name: str
    bootstrap: str
    properties: Mapping[str, str] = {}
    """Security of its connections, under Kafka's names. May contain secrets."""

    def __repr__(self) -> str:
        return f"Profile({self.name!r}, {self.bootstrap!r})"


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
    bootstrap = ",".join(table.texts("bootstrap"))
    properties = {**_security(table), **_ssl(table), **_sasl(table)}
    table.end()
    return Profile(name, bootstrap, properties)


def _security(table: TomlTable) -> dict[str, str]:
    security = table.table("security")
    protocol = security.optional_text("protocol")
    security.end()
    return {} if protocol is None else {"security.protocol": protocol}


def _ssl(table: TomlTable) -> dict[str, str]:
    """Returns the properties of TLS, under Kafka's names. The code that uses them refuses unknown names."""
    if "ssl" not in table:
        return {}
    return dict(_ssl_property(table, name, value) for name, value in _flatten("ssl", table.value("ssl")))


def _flatten(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields the values of nested tables with their dotted names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    else:
        yield name, value


def _ssl_property(table: TomlTable, name: str, value: object) -> tuple[str, str]:
    from kbroker.config.toml_file import TomlTable

    if not isinstance(value, str) or not value:
        raise table.problem(f"{name} must be a text", key="ssl")
    prefix, _, key = name.rpartition(".")
    if key == "location":
        return name, str(Path(value).expanduser())
    plain_key = key.removesuffix("_env").removesuffix("_file")
    if plain_key not in _TLS_SECRETS:
        return name, value
    secret = _secret(TomlTable({key: value}, path=table.path, lines={}), plain_key)
    return f"{prefix}.{plain_key}", secret or ""


def _sasl(table: TomlTable) -> dict[str, str]:
    sasl = table.table("sasl")
    properties = {name: sasl.text(key) for name, key in _SASL_TEXTS.items() if key in sasl}
    for name, key in _SASL_SECRETS.items():
        if (secret := _secret(sasl, key)) is not None:
            properties[name] = secret
    jaas = sasl.table("jaas")
    if (config := _secret(jaas, "config")) is not None:
        properties["sasl.jaas.config"] = config
    jaas.end()
    sasl.end()
    return properties


def _secret(table: TomlTable, key: str) -> str | None:
    """Returns a secret from the table, the environment or a file. None if none of them is named."""
    if key in table:
        _check_private(table.path, table, key)
        return table.text(key)
    if (variable := table.optional_text(f"{key}_env")) is not None:
        if variable not in os.environ:
            raise table.problem(f"the environment variable {variable} is not set", key=f"{key}_env")
        return os.environ[variable]
    if (name := table.optional_text(f"{key}_file")) is not None:
        path = Path(name).expanduser()
        _check_private(path, table, f"{key}_file")
        return path.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    return None


def _check_private(path: Path, table: TomlTable, key: str) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as problem:
        raise table.problem(f"could not read {path}: {problem.strerror}", key=key) from None
    if mode & _READABLE_BY_OTHERS:
        raise table.problem(f"{path} holds a secret and is readable by others. Run: chmod 600 {path}", key=key)
