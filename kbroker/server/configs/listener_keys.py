"""Keys of a listener as the change of configs sees them: they can be replaced while the broker runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from kbroker.config.broker import BROKER_CONFIGS
from kbroker.config.listener import RELOADABLE, split_name

__all__ = ["ListenerKeys", "listeners_with_keys", "secrets_in"]


class ListenerKeys(Protocol):
    def problem_of(self, dynamic: Mapping[str, str]) -> str | None:
        """Returns why these dynamic configs of the broker cannot be used for the listener, or None."""
        ...

    def reload(self) -> None:
        """Uses the current configs for new connections. Raises UserError if they are wrong, and keeps the old keys."""
        ...


def listeners_with_keys(names: Iterable[str]) -> set[str]:
    """Returns the listeners, in upper case, whose keys or trusted certificates these configs are about."""
    found = (split_name(name) for name in names)
    return {prefixed.listener.upper() for prefixed in found if prefixed is not None and prefixed.base in RELOADABLE}


def secrets_in(names: Iterable[str]) -> list[str]:
    """Returns the names of passwords and keys."""
    bases = {name: name if (prefixed := split_name(name)) is None else prefixed.base for name in names}
    return [name for name, base in bases.items() if base in BROKER_CONFIGS and BROKER_CONFIGS[base].is_sensitive]
