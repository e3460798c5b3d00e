"""Throttles of replication: which replicas they cover, and the rate that they hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.config.broker import BrokerConfig
from kbroker.replication.replication_quota import follower_quota, leader_quota


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


def partition(index: int, *listed: str) -> Any:
    config = SimpleNamespace(
        leader_replication_throttled_replicas=listed, follower_replication_throttled_replicas=("9:9",)
    )
    return SimpleNamespace(index=index, config=config)


@pytest.fixture
def config() -> BrokerConfig:
    return BrokerConfig.from_properties({})


def test_listed_replicas_of_this_broker_are_throttled_while_there_is_a_rate(config: BrokerConfig) -> None:
    quota = leader_quota(config, Clock(), 1)
    assert not quota.covers(partition(0, "*")), "no rate is set"
    config.set_dynamic(own={"leader.replication.throttled.rate": "1000"}, defaults={})
    assert quota.covers(partition(0, "*"))
    assert quota.covers(partition(2, "0:1", "2:1"))
    assert quota.covers(partition(2, "2 : 1"))
    assert not quota.covers(partition(1, "0:1", "2:1"))
    assert not quota.covers(partition(0, "0:2"))
    assert not quota.covers(partition(0))
    assert not follower_quota(config, Clock(), 1).covers(partition(0, "*"))
    config.set_dynamic(own={}, defaults={})
    quota.record(10**9)
    assert quota.excess_seconds() == 0


@pytest.mark.parametrize("rate", [1_000_000, 5_000_000, 20_000_000])
def test_the_rate_is_held(config: BrokerConfig, rate: int) -> None:
    clock = Clock()
    quota = follower_quota(config, clock, 1)
    config.set_dynamic(own={}, defaults={"follower.replication.throttled.rate": str(rate)})
    sent = 0
    for _ in range(60 * 20):
        if quota.excess_seconds() == 0:
            quota.record(1 << 20)
            sent += 1 << 20
        clock.now += 0.05
    assert 0.85 * rate < sent / 60 < 1.1 * rate + (1 << 20) / 60


def test_a_first_burst_is_held_back_at_once(config: BrokerConfig) -> None:
    quota = leader_quota(config, Clock(), 1)
    config.set_dynamic(own={"leader.replication.throttled.rate": "1000"}, defaults={})
    quota.record(5000)
    assert quota.excess_seconds() == pytest.approx(4)


def test_the_time_in_which_replicas_are_held_back_is_counted_once(config: BrokerConfig) -> None:
    clock = Clock()
    quota = leader_quota(config, clock, 1)
    assert (quota.excess_seconds(), quota.throttled_seconds) == (0, 0)
    config.set_dynamic(own={"leader.replication.throttled.rate": "1000"}, defaults={})
    quota.record(5000)
    for _ in range(3):  # three partitions ask
        assert quota.excess_seconds() == pytest.approx(4)
    assert quota.throttled_seconds == pytest.approx(4)
    clock.now += 2
    assert 2 + quota.excess_seconds() == pytest.approx(quota.throttled_seconds)
    clock.now += 60
    held_back = quota.throttled_seconds
    assert (quota.excess_seconds(), quota.throttled_seconds) == (0, held_back)
