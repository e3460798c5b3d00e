"""Limits the bandwidth of throttled replicas, on the side of the leader or of the follower (KIP-73).

Kafka's reassignment tool sets the rate of each broker, and the list of replicas of each topic. Replicas that are in
sync are counted but never held back, so that a throttle cannot remove them from the ISR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.rate_window import RateWindow

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition

__all__ = ["ReplicationQuota", "follower_quota", "leader_quota"]

_ALL = ("*",)


class ReplicationQuota:
    def __init__(self, config: BrokerConfig, clock: Clock, *, broker_id: int, rate: str, replicas: str) -> None:
        """`rate`: name of the broker config. `replicas`: attribute of the topic config."""
        self._config = config
        self._clock = clock
        self._broker_id = broker_id
        self._rate = rate
        self._replicas = replicas
        self._window = RateWindow(
            config.replication_quota_window_num, config.replication_quota_window_size_seconds, may_burst=False
        )
        self.total_bytes = 0
        """Bytes of throttled replicas since the start."""
        self.throttled_seconds = 0.0
        """Seconds since the start in which replicas were held back."""
        self._throttled_until = 0.0

    def covers(self, partition: Partition) -> bool:
        """Whether this broker's replica of the partition is throttled."""
        if self.bytes_per_second() is None:
            return False
        listed: tuple[str, ...] = getattr(partition.config, self._replicas)
        own = f"{partition.index}:{self._broker_id}"
        return listed == _ALL or any(own == item.replace(" ", "") for item in listed)

    def excess_seconds(self) -> float:
        """Returns how long nothing may be sent or fetched; 0 if the rate is below its limit."""
        limit = self.bytes_per_second()
        if limit is None:
            return 0.0
        now = self._clock.monotonic()
        seconds = self._window.excess_ms(limit, now) / 1000
        if now + seconds > self._throttled_until:
            self.throttled_seconds += now + seconds - max(now, self._throttled_until)
            self._throttled_until = now + seconds
        return seconds

    def record(self, size: int) -> None:
        self._window.record(size, self._clock.monotonic())
        self.total_bytes += size

    def bytes_per_second(self) -> int | None:
        """Returns the limit; None if there is none."""
        config = self._config
        text = config.dynamic_texts.get(self._rate) or config.dynamic_default_texts.get(self._rate)
        return max(int(text), 1) if text else None


def leader_quota(config: BrokerConfig, clock: Clock, broker_id: int) -> ReplicationQuota:
    return ReplicationQuota(
        config,
        clock,
        broker_id=broker_id,
        rate="leader.replication.throttled.rate",
        replicas="leader_replication_throttled_replicas",
    )


def follower_quota(config: BrokerConfig, clock: Clock, broker_id: int) -> ReplicationQuota:
    return ReplicationQuota(
        config,
        clock,
        broker_id=broker_id,
        rate="follower.replication.throttled.rate",
        replicas="follower_replication_throttled_replicas",
    )
