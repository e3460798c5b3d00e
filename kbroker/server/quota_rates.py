"""How long a client that goes beyond its quota has to wait: which quota is whose, and rates over windows of time.

As Kafka measures it: the sum of the last samples over the time that they cover, but never over less than all windows
but one, so that a client may burst before it is slowed down. Pure: the caller brings the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from kbroker.controller.znodes import DEFAULT_ENTITY, sanitize

__all__ = ["CONSUME", "PRODUCE", "REQUEST", "QuotaRates", "RateWindow"]

PRODUCE: Final = "producer_byte_rate"
CONSUME: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
KINDS: Final = (PRODUCE, CONSUME, REQUEST)


class Limit(NamedTuple):
    per_second: float
    shared_by: str
    """Everybody with the same text here draws on the same window: a user with all clients, or each client alone."""


class RateWindow:
    """What somebody used, in samples of equal length."""

    __slots__ = ("_count", "_length", "_samples")

    def __init__(self, count: int, length_seconds: float) -> None:
        self._count = count
        self._length = length_seconds
        self._samples: deque[list[float]] = deque()  # [begin, amount]

    def record(self, amount: float, now: float) -> None:
        samples = self._samples
        if not samples or now - samples[-1][0] >= self._length:
            samples.append([now, 0.0])
        samples[-1][1] += amount
        self._forget(now)

    def excess_ms(self, per_second: float, now: float) -> int:
        """How long nothing may follow for the rate to come down to the limit."""
        self._forget(now)
        if not self._samples:
            return 0
        elapsed = now - self._samples[0][0]
        full_windows = int(elapsed / self._length)
        elapsed += max(self._count - 1 - full_windows, 0) * self._length
        rate = sum(amount for _, amount in self._samples) / elapsed
        return int(1000 * elapsed * (rate - per_second) / per_second) if rate > per_second else 0

    def is_idle(self, now: float) -> bool:
        self._forget(now)
        return not self._samples

    def _forget(self, now: float) -> None:
        expiry = now - self._count * self._length
        while self._samples and self._samples[0][0] < expiry:
            self._samples.popleft()


class QuotaRates:
    """All quotas of the cluster, and what was used of them on this broker."""

    def __init__(self, *, window_count: int = 11, window_seconds: float = 1) -> None:
        self._window_count = window_count
        self._window_seconds = window_seconds
        self._configs: Mapping[str, Mapping[str, str]] = {}
        self._limits: dict[tuple[str, str, str], Limit | None] = {}
        self._windows: dict[tuple[str, str], RateWindow] = {}
        self.is_empty = True

    def set_quotas(self, entity_configs: Mapping[str, Mapping[str, str]]) -> None:
        """The image's `entity_configs`; what was used so far still counts."""
        self._configs = {
            entity: texts
            for entity, texts in entity_configs.items()
            if entity.startswith(("users/", "clients/")) and any(kind in texts for kind in KINDS)
        }
        self._limits.clear()
        self.is_empty = not self._configs

    def charge(self, kind: str, user: str, client_id: str, amount: float, now: float) -> int:
        """Notes what was used; how many milliseconds the client has to wait before it goes on."""
        key = (kind, user, client_id)
        if key not in self._limits:
            self._limits[key] = self._find(kind, sanitize(user), sanitize(client_id))
        limit = self._limits[key]
        if limit is None:
            return 0
        window = self._windows.get((kind, limit.shared_by))
        if window is None:
            window = RateWindow(self._window_count, self._window_seconds)
            self._windows[kind, limit.shared_by] = window
        window.record(amount, now)
        return window.excess_ms(limit.per_second, now)

    def forget_idle(self, now: float) -> None:
        """To be called now and then: clients come and go."""
        for key in [key for key, window in self._windows.items() if window.is_idle(now)]:
            del self._windows[key]
        self._limits.clear()

    def _find(self, kind: str, user: str, client: str) -> Limit | None:
        """The most exact quota that there is for this user and this client id."""
        pair = f"users/{user}/clients/{client}"
        places = (
            (pair, pair),
            (f"users/{user}/clients/{DEFAULT_ENTITY}", pair),
            (f"users/{user}", f"users/{user}"),
            (f"users/{DEFAULT_ENTITY}/clients/{client}", pair),
            (f"users/{DEFAULT_ENTITY}/clients/{DEFAULT_ENTITY}", pair),
            (f"users/{DEFAULT_ENTITY}", f"users/{user}"),
            (f"clients/{client}", f"clients/{client}"),
            (f"clients/{DEFAULT_ENTITY}", f"clients/{client}"),
        )
        for entity, shared_by in places:
            text = self._configs.get(entity, {}).get(kind)
            if text is not None:
                return Limit(float(text), shared_by)
        return None
