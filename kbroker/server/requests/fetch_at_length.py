"""Fetch of very many partitions, in slices of 2 ms. It waits for a moment instead of for its partitions.

Otherwise a client could keep very many partitions in memory for as long as it likes, and one Produce would read all of
them again.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from kbroker.time_slice import run_in_slices

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["fetch_at_length"]

_LONGEST_WAIT_SECONDS: Final = 0.5


class SteppedFetch(Protocol):
    request: Request

    def target_steps(self) -> Generator[None, None, None]: ...
    def read_steps(self) -> Generator[None, None, bool]: ...
    def response_steps(self) -> Generator[None, None, Any]: ...
    def release(self) -> None: ...


async def fetch_at_length(context: Context, fetch: SteppedFetch) -> Any:
    """Returns the response. If there is too little to read, waits for up to half a second and reads once more."""
    clock, body = context.clock, fetch.request.body
    try:
        await run_in_slices(clock, fetch.target_steps())
        is_enough = await run_in_slices(clock, fetch.read_steps())
        if not is_enough and body.max_wait_ms > 0:
            await trio.sleep(min(body.max_wait_ms / 1000, _LONGEST_WAIT_SECONDS))
            await run_in_slices(clock, fetch.read_steps())
        return await run_in_slices(clock, fetch.response_steps())
    except BaseException:
        fetch.release()
        raise
