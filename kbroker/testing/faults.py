"""Faults on demand, for tests of what a program does when its broker misbehaves.

A fault stands from the call that asks for it until it has struck as often as was asked for, or is released. Faults on
one API strike in the order in which they were asked for. Never changes what is in a log.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import trio

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import APIS, Api
from kbroker.server.context import Context
from kbroker.server.request import Handler, Request
from kbroker.testing.fault_actions import LateSlot, LosingSlot, Refuse, RefusingPartition, with_refusals

__all__ = ["CallInLoop", "Fault", "Faults"]

CallInLoop = Callable[[Callable[[], Any]], Any]
Act = Callable[[Context, Request, Handler], Any]

_FETCH: Final = 1

# What a Fetch is told as a whole; every other code belongs to its partitions.
_OF_FETCH_SESSIONS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Fault:
    """One fault. As a context manager it is released at the end of the block."""

    def __init__(self, release: Callable[[Fault], None]) -> None:
        self.hits = 0
        """How often it has struck."""
        self._release = release

    def release(self) -> None:
        """It strikes no more; answers that it holds back leave at once. Twice does no harm."""
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
    """A fault on an API: whom it strikes, and how."""

    def __init__(self, fault: Fault, act: Act, times: int | None, client_id: str | None) -> None:
        self._fault = fault
        self._times = times
        self._client_id = client_id
        self.act = act

    def strikes(self, request: Request) -> bool:
        if self._times is not None and self._fault.hits >= self._times:
            return False
        if self._client_id is not None and request.client_id != self._client_id:
            return False
        self._fault._hit()
        return True


class Faults:
    """`call` brings a function into the broker's loop; without one, the caller must be there already."""

    def __init__(self, call: CallInLoop | None = None) -> None:
        self._call: CallInLoop = call if call is not None else lambda function: function()
        self._of_apis: dict[str, list[_ApiFault]] = {each.name: [] for each in APIS if each.is_served()}
        self._of_partitions: dict[tuple[str, int], Refuse] = {}
        self._standing: dict[Fault, Callable[[], object]] = {}  # and what ends them
        self._context: Context | None = None

    # What tests ask for

    def fail(self, api: str, *, code: str | int, times: int | None = 1, client_id: str | None = None) -> Fault:
        """Answer the next `times` requests of an API with an error code; None: until released.

        The code stands where the API has one: of each topic or partition that was asked about, or of the whole.
        """
        return self._add(api, partial(_fail, _error_code(code)), times, client_id)

    def delay(self, api: str, *, seconds: float, times: int | None = None, client_id: str | None = None) -> Fault:
        """Answer later. Requests are carried out as they come: it is the answers that wait."""
        is_released = trio.Event()

        def act(context: Context, request: Request, then: Handler) -> Any:
            request.slot = LateSlot(request.slot, context.nursery, seconds, is_released)
            return then(context, request)

        return self._add(api, act, times, client_id, is_released.set)

    def drop(
        self, api: str, *, times: int | None = 1, carried_out: bool = False, client_id: str | None = None
    ) -> Fault:
        """Close the connection of whoever asks; with `carried_out` the request is served and its answer lost."""
        return self._add(api, _lose_answer if carried_out else _lose_request, times, client_id)

    def not_leader(self, topic: str, partition: int = 0) -> Fault:
        """Answer NOT_LEADER_OR_FOLLOWER for one partition, until released."""
        return self.fail_partition(topic, partition, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def fail_partition(self, topic: str, partition: int = 0, *, code: str | int) -> Fault:
        """Answer whatever is asked of one partition with the code, until released. Others are served as ever."""
        fault = Fault(self._release)
        refuse = partial(RefusingPartition, code=_error_code(code), on_refusal=fault._hit)
        self._call(partial(self._refuse, fault, (topic, partition), refuse))
        return fault

    def clear(self) -> None:
        """Release every fault."""
        self._call(self._end_all)

    # What the broker asks

    @property
    def is_idle(self) -> bool:
        return not self._standing

    def attach(self, context: Context) -> None:
        self._context = context
        context.partitions = with_refusals(context.partitions, self._of_partitions)

    def intercept(self, api: Api, handler: Handler) -> Handler:
        faults = self._of_apis[api.name]

        def intercepted(context: Context, request: Request) -> Any:
            return _strike(iter(tuple(faults)), handler, context, request)

        return intercepted

    # Inside; what changes anything runs in the loop

    def _add(
        self,
        api: str,
        act: Act,
        times: int | None,
        client_id: str | None,
        on_end: Callable[[], None] = lambda: None,
    ) -> Fault:
        if api not in self._of_apis:
            raise ValueError(f"{api!r} is not an API that kbroker serves{_nearest(api, self._of_apis)}")
        if times is not None and times < 1:
            raise ValueError(f"times={times}: a fault strikes at least once, or with None until it is released")
        fault = Fault(self._release)
        of_api = _ApiFault(fault, act, times, client_id)
        faults = self._of_apis[api]

        def begin() -> None:
            faults.append(of_api)
            self._standing[fault] = end

        def end() -> None:
            faults.remove(of_api)
            on_end()

        self._call(begin)
        return fault

    def _refuse(self, fault: Fault, key: tuple[str, int], refuse: Refuse) -> None:
        partition = self._context.partitions.get(*key) if self._context is not None else None
        if partition is None:
            raise ValueError(f"there is no partition {key[0]}-{key[1]} that could fail")
        if key in self._of_partitions:
            raise ValueError(f"{key[0]}-{key[1]} fails already: release that fault first")
        self._of_partitions[key] = refuse
        self._standing[fault] = partial(self._of_partitions.pop, key)
        for waiter in list(partition.fetch_waiters):
            waiter.finish()

    def _release(self, fault: Fault) -> None:
        def end() -> None:
            if fault in self._standing:
                self._standing.pop(fault)()

        self._call(end)

    def _end_all(self) -> None:
        while self._standing:
            self._standing.popitem()[1]()


def _strike(faults: Iterator[_ApiFault], handler: Handler, context: Context, request: Request) -> Any:
    """The first fault that concerns the request acts, and lets the next ones and the handler see it or not."""
    for fault in faults:
        if fault.strikes(request):
            return fault.act(context, request, partial(_strike, faults, handler))
    return handler(context, request)


def _fail(code: ErrorCode, context: Context, request: Request, then: Handler) -> Any:
    key = request.route.api.key
    if key == _FETCH and code not in _OF_FETCH_SESSIONS:
        return then(replace(context, partitions=with_refusals(context.partitions, {}, every=code)), request)
    raise Refusal(code, "A test has asked for this fault.")


def _lose_request(context: Context, request: Request, then: Handler) -> None:
    request.slot.connection.close()


def _lose_answer(context: Context, request: Request, then: Handler) -> Any:
    request.slot = LosingSlot(request.slot)
    return then(context, request)


def _error_code(code: str | int) -> ErrorCode:
    if isinstance(code, int):
        return ErrorCode(code)
    if code not in ErrorCode.__members__:
        raise ValueError(f"{code!r} is not an error code of Kafka's{_nearest(code, ErrorCode.__members__)}")
    return ErrorCode[code]


def _nearest(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
