"""Reads the metrics of requests: numbers, times and errors by API, and the load of the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.requests.dispatch import CONSUMER_FETCH, FOLLOWER_FETCH, Dispatch
from kbroker.server.requests.request_times import RequestTimes
from kbroker.server.wire.network import Network
from kbroker.time_slice import TimeSlice
from kbroker.web import metrics_table as table
from kbroker.web.exposition import Samples

__all__ = ["read_loop", "read_requests"]

_FETCH: Final = "Fetch"
_PRODUCE: Final = "Produce"
_KINDS_OF_FETCH: Final = (CONSUMER_FETCH, FOLLOWER_FETCH)


async def read_requests(samples: Samples, dispatch: Dispatch, time_slice: TimeSlice) -> None:
    counts = {key: tally.received for key, tally in dispatch.tallies.items()}
    fetches = Counter[int]()
    for (name, version), count in counts.items():
        if name in _KINDS_OF_FETCH:
            fetches[version] += count
    counts |= {(_FETCH, version): count for version, count in fetches.items()}
    for (name, version), count in sorted(counts.items()):
        samples.add(table.REQUESTS, count, name, version)
    times = dict(dispatch.times)
    kinds = [times[kind] for kind in _KINDS_OF_FETCH if kind in times]
    if kinds:
        times[_FETCH] = _sum_of(kinds)
    for name, measured in sorted(times.items()):
        _add_times(samples, name, measured)
        await time_slice.checkpoint_if_over()
    for request, requests, failed in (
        (_PRODUCE, table.PRODUCE_REQUESTS, table.FAILED_PRODUCES),
        (CONSUMER_FETCH, table.FETCH_REQUESTS, table.FAILED_FETCHES),
    ):
        samples.add(requests, sum(count for (name, _), count in counts.items() if name == request))
        samples.add(failed, sum(times[request].errors.values()) if request in times else 0)


def _sum_of(parts: Iterable[RequestTimes]) -> RequestTimes:
    whole = RequestTimes()
    errors = Counter[int]()
    for part in parts:
        whole.local.include(part.local)
        whole.waiting.include(part.waiting)
        whole.remote.include(part.remote)
        whole.throttle.include(part.throttle)
        errors.update(part.errors)
    whole.errors = dict(errors)
    return whole


def _add_times(samples: Samples, name: str, times: RequestTimes) -> None:
    total = times.total()
    answered = sum(total.counts)
    samples.add_histogram(table.TOTAL_TIME, total, name)
    samples.add_histogram(table.LOCAL_TIME, times.local, name)
    samples.add_histogram(table.REMOTE_TIME, times.remote.with_zeros(answered), name)
    if any(times.throttle.counts):
        samples.add_histogram(table.THROTTLE_TIME, times.throttle.with_zeros(answered), name)
    for code, count in sorted(times.errors.items()):
        samples.add(table.ERRORS, count, name, _error_name(code))


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def read_loop(samples: Samples, network: Network) -> None:
    samples.add(table.HANDLER_IDLE, round(network.load.idle_share, 4))
    samples.add(table.BUSY_TIME, round(network.run.busy_ms / 1000, 6))
    samples.add_histogram(table.LOOP_LAG, network.load.lag)
