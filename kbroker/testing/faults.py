"""Fault injection for tests of programs that must handle broker failures.

A fault is active from its creation until it has been applied `times` times or is released. The faults of an API apply
in the order of their creation. Faults never change the contents of a log.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import trio

from kbroker.errors import Refusal, UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import APIS, Api
from kbroker.replication.partition_table import PartitionTable
from kbroker.server.context import Context
from kbroker.server.requests.request import Handler, Request
from kbroker.testing.fault_actions import LateSlot, LosingSlot, Refuse, RefusingPartition, with_refusals
from kbroker.testing.kafka_record import HELPER_CLIENT_ID

__all__ = ["CallInLoop", "Fault", "Faults"]

CallInLoop = Callable[[Callable[[], Any]], Any]
Act = Callable[[Context, Request, Handler], Any]

_FETCH: Final = 1

# Error codes of a Fetch response as a whole. All other codes are errors of its partitions.
_FETCH_SESSION_CODES: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Fault:
    """One fault. Use it as a context manager to release it at the end of the block."""

    def __init__(self, release: Callable[[Fault], None]) -> None:
        self.hits = 0
        """Number of times that the fault was applied."""
        self._release = release

    def release(self) -> None:
        """Ends the fault and sends its delayed responses at once. No-op if the fault is already released."""
        self._release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _hit(self) -> None:
        self.hits += 1


class _ApiFault:
    """A fault of an API: the requests it applies to, and its effect."""

    def __init__(self, fault: Fault, act: Act, times: int | None, client_id: str | None) -> None:
        self._fault = fault
        self._times = times
        self._client_id = client_id
        self.act = act

    def applies_to(self, request: Request) -> bool:
        """Whether the fault applies to a request. Counts the hit."""
        if self._times is not None and self._fault.hits >= self._times:
            return False
        if self._client_id is not None and request.client_id != self._client_id:
            return False
        self._fault._hit()
        return True


class Faults:
    """The active faults of a broker.

    `call` runs a function in the broker's event loop. Without it, all methods must be called in that loop.
    """

    def __init__(self, call: CallInLoop | None = None) -> None:
        self._call: CallInLoop = call if call is not None else lambda function: function()
        self._api_faults: dict[str, list[_ApiFault]] = {api.name: [] for api in APIS if api.is_served()}
        self._partition_faults: dict[tuple[str, int], Refuse] = {}
        self._active: dict[Fault, Callable[[], object]] = {}  # Fault -> function that ends it.
        self._context: Context | None = None
        self._partitions: PartitionTable | None = None  # without faults

    # For tests

    def fail(self, api: str, *, code: str | int, times: int | None = 1, client_id: str | None = None) -> Fault:
        """Responds to the next `times` requests of an API with an error code. None: until released.

        The code is set in each topic or partition of the response, or in the response as a whole, as the API defines.
        """
        return self._add(api, partial(_fail, _error_code(code)), times, client_id)

    def delay(self, api: str, *, seconds: float, times: int | None = None, client_id: str | None = None) -> Fault:
        """Delays the responses of an API. The requests are processed at once."""
        if seconds < 0:
            raise UserError(f"seconds={seconds} must be at least 0")
        is_released = trio.Event()

        def act(context: Context, request: Request, then: Handler) -> Any:
            request.slot = LateSlot(request.slot, context.nursery, seconds, is_released)
            return then(context, request)

        return self._add(api, act, times, client_id, is_released.set)

    def drop(
        self, api: str, *, times: int | None = 1, carried_out: bool = False, client_id: str | None = None
    ) -> Fault:
        """Closes the connection of the client.

        `carried_out`: the request is processed first, and its response is lost.
        """
        return self._add(api, _lose_response if carried_out else _lose_request, times, client_id)

    def not_leader(self, topic: str, partition: int = 0) -> Fault:
        """Returns NOT_LEADER_OR_FOLLOWER for one partition, until released."""
        return self.fail_partition(topic, partition, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def fail_partition(self, topic: str, partition: int = 0, *, code: str | int) -> Fault:
        """Returns the error code for all requests to one partition, until released.

        Other partitions are not affected.
        """
        fault = Fault(self._release)
        refuse = partial(RefusingPartition, code=_error_code(code), on_refusal=fault._hit)
        self._call(partial(self._refuse, fault, (topic, partition), refuse))
        return fault

    def clear(self) -> None:
        """Releases all faults."""
        self._call(self._end_all)

    # For the broker

    @property
    def is_idle(self) -> bool:
        return not self._active

    def attach(self, context: Context) -> None:
        self._context = context
        self._partitions = context.partitions
        context.partitions = with_refusals(context.partitions, self._partition_faults)

    def intercept(self, api: Api, handler: Handler) -> Handler:
        faults = self._api_faults[api.name]

        def intercepted(context: Context, request: Request) -> Any:
            if request.client_id == HELPER_CLIENT_ID and self._partitions is not None:
                return handler(replace(context, partitions=self._partitions), request)
            return _apply_faults(iter(tuple(faults)), handler, context, request)

        return intercepted

    # Internal. Changes run in the event loop.

    def _add(
        self,
        api: str,
        act: Act,
        times: int | None,
        client_id: str | None,
        on_end: Callable[[], None] = lambda: None,
    ) -> Fault:
        if api not in self._api_faults:
            raise UserError(f"{api!r} is not an API that kbroker supports{_nearest(api, self._api_faults)}")
        if times is not None and times < 1:
            raise UserError(f"times={times} must be at least 1, or None for a fault that lasts until it is released")
        fault = Fault(self._release)
        api_fault = _ApiFault(fault, act, times, client_id)
        faults = self._api_faults[api]

        def begin() -> None:
            faults.append(api_fault)
            self._active[fault] = end

        def end() -> None:
            faults.remove(api_fault)
            on_end()

        self._call(begin)
        return fault

    def _refuse(self, fault: Fault, key: tuple[str, int], refuse: Refuse) -> None:
        partition = self._context.partitions.get(*key) if self._context is not None else None
        if partition is None:
            raise UserError(f"Partition {key[0]}-{key[1]} does not exist")
        if key in self._partition_faults:
            raise UserError(f"Partition {key[0]}-{key[1]} already has a fault: release it first")
        self._partition_faults[key] = refuse
        self._active[fault] = partial(self._partition_faults.pop, key)
        for waiter in list(partition.fetch_waiters):
            waiter.finish()

    def _release(self, fault: Fault) -> None:
        def end() -> None:
            if fault in self._active:
                self._active.pop(fault)()

        self._call(end)

    def _end_all(self) -> None:
        while self._active:
            self._active.popitem()[1]()


def _apply_faults(faults: Iterator[_ApiFault], handler: Handler, context: Context, request: Request) -> Any:
    """Applies the first matching fault, which decides whether the remaining faults and the handler run."""
    for fault in faults:
        if fault.applies_to(request):
            return fault.act(context, request, partial(_apply_faults, faults, handler))
    return handler(context, request)


def _fail(code: ErrorCode, context: Context, request: Request, then: Handler) -> Any:
    key = request.route.api.key
    if key == _FETCH and code not in _FETCH_SESSION_CODES:
        return then(replace(context, partitions=with_refusals(context.partitions, {}, every=code)), request)
    raise Refusal(code, "This fault was injected by a test.")


def _lose_request(context: Context, request: Request, then: Handler) -> None:
    request.slot.connection.close()


def _lose_response(context: Context, request: Request, then: Handler) -> Any:
    request.slot = LosingSlot(request.slot)
    return then(context, request)


def _error_code(code: str | int) -> ErrorCode:
    if isinstance(code, int):
        return ErrorCode(code)
    if code not in ErrorCode.__members__:
        raise UserError(f"{code!r} is not a Kafka error code{_nearest(code, ErrorCode.__members__)}")
    return ErrorCode[code]


def _nearest(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
