"""A streaming query with work between its batches, such as following topics or writing a report."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from kbroker.errors import PeerError, UserError
from kbroker.pipeline.jobs import StreamJob
from kbroker.pipeline.progress import Progress

__all__ = ["AccompaniedJob"]

_LOG: Final = logging.getLogger(__name__)


class AccompaniedJob:
    """Calls `act` in a thread at each interval while the query runs, and a last time after the query has ended.

    A failure of `act` is logged and does not end the query.
    """

    def __init__(self, stream: StreamJob, act: Callable[[], object], *, interval_s: float) -> None:
        self.query = stream.query
        self._stream = stream
        self._act = act
        self._interval_s = interval_s
        self._thread = threading.Thread(target=self._accompany, name=f"beside {stream.name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._stream.name

    @property
    def is_active(self) -> bool:
        return self._stream.is_active or self._thread.is_alive()

    def reports(self) -> list[Progress]:
        return self._stream.reports()

    def failure(self) -> BaseException | None:
        return self._stream.failure()

    def stop(self) -> None:
        self._stream.stop()
        self._thread.join()

    def wait(self) -> None:
        """Waits until the query and the work after it have ended. Raises the failure of the query if it has failed."""
        self._thread.join()
        failure = self.failure()
        if failure is not None:
            raise failure

    def _accompany(self) -> None:
        is_running = True
        while is_running:
            self._wait()
            is_running = self.query.isActive
            self._try_to_act()

    def _wait(self) -> None:
        try:
            self.query.awaitTermination(self._interval_s)
        except Exception as failure:  # `failure` of the query has it too, for the caller that watches the job.
            _LOG.debug("The query of %s failed: %s", self.name, failure)

    def _try_to_act(self) -> None:
        try:
            self._act()
        except (UserError, PeerError, OSError) as failure:
            _LOG.warning("%s: %s", self.name, failure)
