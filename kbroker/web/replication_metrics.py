"""Reads the metrics of replication: ISR changes, elections, lag, and traffic of the fetchers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.server.status import BrokerStatus
from kbroker.time_slice import TimeSlice
from kbroker.web import metrics_table as table
from kbroker.web.exposition import Samples

if TYPE_CHECKING:
    from kbroker.replication.fetching.leader_fetcher import LeaderFetcher
    from kbroker.replication.replication_quota import ReplicationQuota

__all__ = ["read_replication"]

_ALL_FETCHERS: Final = "Replica"


async def read_replication(samples: Samples, status: BrokerStatus, time_slice: TimeSlice) -> None:
    if status.context is not None:
        elector = status.context.controller.elector
        samples.add_histogram(table.ELECTIONS, elector.election_times)
        samples.add(table.UNCLEAN_ELECTIONS, elector.unclean_elections)
    if status.peers is not None:
        samples.add(table.ISR_SHRINKS, status.peers.isr_shrinks)
        samples.add(table.ISR_EXPANDS, status.peers.isr_expands)
        samples.add(table.FAILED_ISR_UPDATES, status.peers.failed_isr_updates)
        if status.peers.leader_quota is not None:
            _read_throttle(samples, status.peers.leader_quota, "leader")
    if status.fetchers is not None:
        _read_throttle(samples, status.fetchers.quota, "follower")
    fetchers = [] if status.fetchers is None else list(status.fetchers)
    max_lag = failed = 0
    for fetcher in fetchers:
        max_lag = max(max_lag, await _read_fetcher(samples, fetcher, time_slice))
        failed += fetcher.failed_partitions
    samples.add(table.MAX_LAG, max_lag, _ALL_FETCHERS)
    samples.add(table.FAILED_PARTITIONS, failed, _ALL_FETCHERS)


def _read_throttle(samples: Samples, quota: ReplicationQuota, role: str) -> None:
    samples.add(table.THROTTLED_BYTES, quota.total_bytes, role)
    samples.add(table.THROTTLED_SECONDS, quota.throttled_seconds, role)
    limit = quota.bytes_per_second()
    if limit is not None:
        samples.add(table.THROTTLED_RATE, limit, role)


async def _read_fetcher(samples: Samples, fetcher: LeaderFetcher, time_slice: TimeSlice) -> int:
    """Adds the samples of a fetcher and returns its largest lag."""
    client_id, max_lag = fetcher.client_id, 0
    samples.add(table.FETCHER_BYTES, fetcher.stats.bytes, client_id)
    samples.add(table.FETCHER_REQUESTS, fetcher.stats.requests, client_id)
    samples.add_histogram(table.FETCHER_TIME, fetcher.stats.times, client_id)
    for partition, lag in fetcher.lags():
        max_lag = max(max_lag, lag)
        # Formatted here and not by Samples.add, for speed: topic names contain no characters to escape.
        labels = f'{{clientId="{client_id}",topic="{partition.topic}",partition="{partition.index}"}}'
        samples.append(table.FETCHER_LAG, f"{table.FETCHER_LAG.name}{labels} {lag}")
        await time_slice.checkpoint_if_over()
    return max_lag
