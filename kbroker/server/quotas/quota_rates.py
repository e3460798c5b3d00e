"""Finds the quota of a client, measures its rate, and computes throttle times.

As in Kafka a rate is the sum of the last samples divided by the time that they cover, but at least by the length of all
windows less one: so a client may burst before it is throttled. Pure: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from kbroker.controller.config_entities import DEFAULT_ENTITY, sanitize
from kbroker.rate_window import RateWindow

__all__ = ["CONSUME", "MUTATION", "PRODUCE", "REQUEST", "QuotaRates", "TokenBucket"]

PRODUCE: Final = "producer_byte_rate"
CONSUME: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
KINDS: Final = (PRODUCE, CONSUME, REQUEST, MUTATION)

_Key = TypeVar("_Key")

_MAX_LIMITS: Final = 10_000
_SWEPT_AT_ONCE: Final = 500


class Limit(NamedTuple):
    per_second: float
    shared_by: str
    """Key of the window: clients with the same key share the quota. A user's quota is shared by all its client ids."""


_UNKNOWN: Final[tuple[int, Limit | None]] = (-1, None)


class TokenBucket:
    """Token bucket for mutations of topics, which arrive in bursts (KIP-599). May have a debt: the client waits."""

    __slots__ = ("_at", "_tokens", "_windows_seconds")

    def __init__(self, windows_seconds: float, per_second: float, now: float) -> None:
        self._windows_seconds = windows_seconds
        self._tokens = windows_seconds * per_second
        self._at = now

    def consume(self, count: float, per_second: float, now: float) -> None:
        self._tokens = self._refilled(per_second, now) - count
        self._at = now

    def debt_ms(self, per_second: float, now: float) -> int:
        return max(round(-1000 * self._refilled(per_second, now) / per_second), 0)

    def is_idle(self, per_second: float, now: float) -> bool:
        """Whether the bucket is full, like a new one."""
        return self._refilled(per_second, now) >= self._windows_seconds * per_second

    def _refilled(self, per_second: float, now: float) -> float:
        return min(self._tokens + (now - self._at) * per_second, self._windows_seconds * per_second)


class QuotaRates:
    """Quotas of the cluster, and their use on this broker."""

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
        self._configs: dict[str, Mapping[str, str]] = {}
        self._version = 0  # increases when a quota changes: limits of earlier versions are looked up again
        self._limits: dict[tuple[str, str, str], tuple[int, Limit | None]] = {}
        self._windows: dict[tuple[str, str], RateWindow] = {}
        self._buckets: dict[str, tuple[TokenBucket, float]] = {}
        self._unswept: list[tuple[str, str]] = []
        self._unswept_buckets: list[str] = []

    @property
    def is_empty(self) -> bool:
        return not self._configs

    def set_quotas(self, entity: str, texts: Mapping[str, str]) -> None:
        """Replaces the quotas of one entity. Measured use is kept. Costs the same however many entities there are."""
        if not entity.startswith(("users/", "clients/")):
            return
        self._version += 1
        if any(kind in texts for kind in KINDS):
            self._configs[entity] = texts
        else:
            self._configs.pop(entity, None)

    def charge(self, kind: str, user: str, client_id: str, amount: float, now: float) -> int:
        """Charges `amount` and returns the throttle time in ms; 0 if within the quota."""
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
        """Charges partitions to create or delete, and returns the throttle time in ms.

        With `is_strict`, charges nothing if the client must wait: the caller must then refuse the request.
        """
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
        bucket.consume(count, per_second, now)
        return 0 if is_strict else bucket.debt_ms(per_second, now)

    def burst(self, kind: str, user: str, client_id: str) -> float | None:
        """Returns the largest amount that is possible at once after a pause, or None without a quota."""
        limit = self._limit(kind, user, client_id)
        return None if limit is None else limit.per_second * (self._window_count - 1) * self._window_seconds

    def forget_idle(self, now: float) -> None:
        """Drops windows and buckets of idle clients. Called periodically; looks at a bounded number each time."""
        windows, buckets = self._windows, self._buckets
        self._unswept = self._unswept or list(windows)
        for key in _pop_some(self._unswept):
            if key in windows and windows[key].is_idle(now):
                del windows[key]
        self._unswept_buckets = self._unswept_buckets or list(buckets)
        for shared_by in _pop_some(self._unswept_buckets):
            if shared_by in buckets and buckets[shared_by][0].is_idle(buckets[shared_by][1], now):
                del buckets[shared_by]

    def _limit(self, kind: str, user: str, client_id: str) -> Limit | None:
        key = (kind, user, client_id)
        version, limit = self._limits.get(key, _UNKNOWN)
        if version != self._version:
            if len(self._limits) >= _MAX_LIMITS:
                self._limits = {}
            limit = self._find(kind, sanitize(user), sanitize(client_id))
            self._limits[key] = (self._version, limit)
        return limit

    def _find(self, kind: str, user: str, client: str) -> Limit | None:
        """Returns the most specific quota for the user and client id, in Kafka's order of precedence."""
        if not client:
            return self._find_without_client(kind, user)
        pair = f"users/{user}/clients/{client}"
        candidates = (
            (pair, pair),
            (f"users/{user}/clients/{DEFAULT_ENTITY}", pair),
            (f"users/{user}", f"users/{user}"),
            (f"users/{DEFAULT_ENTITY}/clients/{client}", pair),
            (f"users/{DEFAULT_ENTITY}/clients/{DEFAULT_ENTITY}", pair),
            (f"users/{DEFAULT_ENTITY}", f"users/{user}"),
            (f"clients/{client}", f"clients/{client}"),
            (f"clients/{DEFAULT_ENTITY}", f"clients/{client}"),
        )
        return self._first(kind, candidates)

    def _find_without_client(self, kind: str, user: str) -> Limit | None:
        own = f"users/{user}"
        return self._first(kind, ((own, own), (f"users/{DEFAULT_ENTITY}", own)))

    def _first(self, kind: str, candidates: Iterable[tuple[str, str]]) -> Limit | None:
        for entity, shared_by in candidates:
            text = self._configs.get(entity, {}).get(kind)
            if text is not None:
                return Limit(float(text), shared_by)
        return None


def _pop_some(keys: list[_Key]) -> list[_Key]:
    """Removes and returns the last keys, a bounded number."""
    some = keys[-_SWEPT_AT_ONCE:]
    del keys[-_SWEPT_AT_ONCE:]
    return some
