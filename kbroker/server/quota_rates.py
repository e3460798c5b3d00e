"""How long a client that goes beyond its quota has to wait: which quota is whose, and rates over windows of time.

As Kafka measures it: the sum of the last samples over the time that they cover, but never over less than all windows
but one, so that a client may burst before it is slowed down. Pure: the caller brings the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kbroker.controller.znodes import DEFAULT_ENTITY, sanitize

__all__ = ["CONSUME", "MUTATION", "PRODUCE", "REQUEST", "QuotaRates", "RateWindow", "TokenBucket"]

PRODUCE: Final = "producer_byte_rate"
CONSUME: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
KINDS: Final = (PRODUCE, CONSUME, REQUEST, MUTATION)

_MOST_REMEMBERED: Final = 10_000
_SHORTEST_SECONDS: Final = 0.001


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
        elapsed = max(elapsed + max(self._count - 1 - full_windows, 0) * self._length, _SHORTEST_SECONDS)
        rate = sum(amount for _, amount in self._samples) / elapsed
        return int(1000 * elapsed * (rate - per_second) / per_second) if rate > per_second else 0

    def is_idle(self, now: float) -> bool:
        self._forget(now)
        return not self._samples

    def _forget(self, now: float) -> None:
        expiry = now - self._count * self._length
        while self._samples and self._samples[0][0] < expiry:
            self._samples.popleft()


class TokenBucket:
    """Changes of topics come in bursts: tokens are saved up for all windows, and a debt is waited for (KIP-599)."""

    __slots__ = ("_at", "_tokens", "_windows_seconds")

    def __init__(self, windows_seconds: float, per_second: float, now: float) -> None:
        self._windows_seconds = windows_seconds
        self._tokens = windows_seconds * per_second
        self._at = now

    def take(self, count: float, per_second: float, now: float) -> None:
        self._tokens = self._refilled(per_second, now) - count
        self._at = now

    def debt_ms(self, per_second: float, now: float) -> int:
        return max(round(-1000 * self._refilled(per_second, now) / per_second), 0)

    def is_idle(self, per_second: float, now: float) -> bool:
        """As full as a new one."""
        return self._refilled(per_second, now) >= self._windows_seconds * per_second

    def _refilled(self, per_second: float, now: float) -> float:
        return min(self._tokens + (now - self._at) * per_second, self._windows_seconds * per_second)


class QuotaRates:
    """All quotas of the cluster, and what was used of them on this broker."""

    def __init__(
        self,
        *,
        window_count: int = 11,
        window_seconds: float = 1,
        mutation_window_count: int = 11,
        mutation_window_seconds: float = 1,
    ) -> None:
        self._window_count = window_count
        self._window_seconds = window_seconds
        self._bucket_seconds = mutation_window_count * mutation_window_seconds
        self._configs: Mapping[str, Mapping[str, str]] = {}
        self._limits: dict[tuple[str, str, str], Limit | None] = {}
        self._windows: dict[tuple[str, str], RateWindow] = {}
        self._buckets: dict[str, tuple[TokenBucket, float]] = {}
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
        limit = self._limit(kind, user, client_id)
        if limit is None:
            return 0
        window = self._windows.get((kind, limit.shared_by))
        if window is None:
            window = RateWindow(self._window_count, self._window_seconds)
            self._windows[kind, limit.shared_by] = window
        window.record(amount, now)
        return window.excess_ms(limit.per_second, now)

    def charge_mutations(self, user: str, client_id: str, count: int, now: float, *, is_strict: bool) -> int:
        """So many partitions are to be made or deleted. With `is_strict` a wait means that they must not be."""
        limit = self._limit(MUTATION, user, client_id)
        if limit is None:
            return 0
        per_second = limit.per_second
        bucket, _ = self._buckets.get(limit.shared_by, (None, 0))
        if bucket is None:
            bucket = TokenBucket(self._bucket_seconds, per_second, now)
        self._buckets[limit.shared_by] = (bucket, per_second)
        if is_strict and (wait_ms := bucket.debt_ms(per_second, now)):
            return wait_ms
        bucket.take(count, per_second, now)
        return 0 if is_strict else bucket.debt_ms(per_second, now)

    def burst(self, kind: str, user: str, client_id: str) -> float | None:
        """The most that may come at once after a pause; None: there is no limit."""
        limit = self._limit(kind, user, client_id)
        return None if limit is None else limit.per_second * (self._window_count - 1) * self._window_seconds

    def forget_idle(self, now: float) -> None:
        """To be called now and then: clients come and go."""
        for key in [key for key, window in self._windows.items() if window.is_idle(now)]:
            del self._windows[key]
        for shared_by in [key for key, (bucket, rate) in self._buckets.items() if bucket.is_idle(rate, now)]:
            del self._buckets[shared_by]
        self._limits.clear()

    def _limit(self, kind: str, user: str, client_id: str) -> Limit | None:
        key = (kind, user, client_id)
        if key not in self._limits:
            if len(self._limits) >= _MOST_REMEMBERED:
                self._limits.clear()
            self._limits[key] = self._find(kind, sanitize(user), sanitize(client_id))
        return self._limits[key]

    def _find(self, kind: str, user: str, client: str) -> Limit | None:
        """The most exact quota that there is for this user and this client id."""
        if not client:
            return self._find_without_client(kind, user)
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
        return self._first(kind, places)

    def _find_without_client(self, kind: str, user: str) -> Limit | None:
        own = f"users/{user}"
        return self._first(kind, ((own, own), (f"users/{DEFAULT_ENTITY}", own)))

    def _first(self, kind: str, places: Iterable[tuple[str, str]]) -> Limit | None:
        for entity, shared_by in places:
            text = self._configs.get(entity, {}).get(kind)
            if text is not None:
                return Limit(float(text), shared_by)
        return None
