"""Requests and responses with very many elements: decoded, encoded and freed in a thread, with turns for the loop.

500,000 topic names take seconds. Everything that takes one call of C (joining the parts of a response, freeing a list)
is done in steps too: such a call keeps the GIL. So does a full garbage collection, which takes a second with millions
of objects: there is none while a large request is handled.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import Decode, Encode, codec
from kbroker.protocol.compiler.runtime import MAX_ELEMENTS
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.values import Value
from kbroker.server.requests.request import LongRequest, Request, Route
from kbroker.server.wire.request_slot import RequestSlot
from kbroker.server.wire.transport import BYTES
from kbroker.time_slice import end_unless, turn_of_loop

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.thread_work import ThreadWork
    from kbroker.server.wire.connection import Connection

__all__ = [
    "MAX_ELEMENTS_AT_ONCE",
    "FullCollections",
    "end_with_client",
    "free_body",
    "handle_in_turn",
    "has_many_elements",
    "max_elements_on_loop",
    "read_large_request",
    "refuse_at_length",
    "reply_at_length",
]

MAX_ELEMENTS_AT_ONCE: Final = 30_000
"""Elements of a request whose handler does all its work in one turn. Larger requests get an error response.

Of commits, partitions: as many records are written in one turn. Their topics are checked in slices.
"""

_MAX_ELEMENTS_DECODED: Final = 5_000  # on the event loop, in a few milliseconds
_MAX_ELEMENTS_HANDLED: Final = 2_000  # in the turn of their connection, in a few milliseconds

# Keys of the APIs whose handlers let other tasks run between two elements.
_HANDLED_IN_SLICES: Final = frozenset(
    {0, 1, 2, 3, 9, 10, 15, 19, 20, 21, 23, 27, 32, 33, 35, 37, 42, 44, 45, 48, 61, 65, 69, 75}
)
# LeaderAndIsr, StopReplica, UpdateMetadata, AlterPartition: their size grows with the cluster.
_AS_LARGE_AS_THE_CLUSTER: Final = frozenset({4, 5, 6, 56})
# Requests that change nothing end when their client has left. Others are carried out: they have been received.
_ENDS_WITH_CLIENT: Final = frozenset({1, 2, 3, 9, 10, 15, 23, 29, 32, 35, 48, 50, 61, 65, 69, 75})
_UNLIMITED: Final = _HANDLED_IN_SLICES | _AS_LARGE_AS_THE_CLUSTER
_COMMITS: Final = frozenset({8, 28})  # OffsetCommit, TxnOffsetCommit
_MANY_ELEMENTS: Final = 2_000  # their encoding takes about 2 ms
_ELEMENTS_PER_STEP: Final = 2_000
_OWN_REFERENCES: Final = 3  # of the message, of a variable, of the call that counts them: a handler keeps no other
_NEVER: Final = 1 << 30


class FullCollections:
    """Puts off full garbage collections while large requests are handled. Collections of young objects go on."""

    def __init__(self) -> None:
        self._requests = 0
        self._thresholds = gc.get_threshold()

    def __enter__(self) -> None:
        self._requests += 1
        if self._requests == 1:
            self._thresholds = gc.get_threshold()
            gc.set_threshold(*self._thresholds[:2], _NEVER)

    def __exit__(self, *_: object) -> None:
        self._requests -= 1
        if not self._requests:
            gc.set_threshold(*self._thresholds)


def max_elements_on_loop(key: int) -> int:
    """Returns how many elements a request of the API may have that is decoded and handled as soon as it arrives."""
    return _MAX_ELEMENTS_DECODED if key in _UNLIMITED else _MAX_ELEMENTS_HANDLED


def end_with_client(route: Route, connection: Connection) -> None:
    """Ends the work of this task on a request with Unwanted once its client has left, if the request changes nothing.

    Otherwise a client that comes back after each timeout of its own would fill the broker with work.
    """
    if route.api.key in _ENDS_WITH_CLIENT:
        end_unless(lambda: not connection.has_peer_left())


async def handle_in_turn(context: Context, request: Request) -> Any:
    """Calls the handler of a large request. One that does its work in one turn takes turns with other large requests.

    Otherwise a round of the loop could have several such turns, of some 10 ms each.
    """
    if request.route.api.key in _HANDLED_IN_SLICES:
        response = request.route.handler(context, request)
    else:
        async with turn_of_loop():
            response = request.route.handler(context, request)
    return await response if response.__class__ is CoroutineType else response


async def read_large_request(
    work: ThreadWork, route: Route, frame: memoryview, slot: RequestSlot, reply_soon: Callable[[Request, Any], None]
) -> tuple[Request, bool]:
    """Decodes a request in a thread. Raises PeerError if it is malformed.

    Returns also whether it must be refused, because its handler would keep the loop busy for too long.
    """
    header, position = route.decode_header(frame)
    request = LongRequest(route, header.correlation_id, header.client_id, slot, reply_soon)
    quotas = route.quotas
    # With quotas, the decoder of the route measures time, which works on the event loop only.
    decode = route.decode if quotas is None else codec(route.api.request, route.version).decode
    key = route.api.key
    is_commit = key in _COMMITS
    limit = MAX_ELEMENTS if key in _UNLIMITED else MAX_ELEMENTS_AT_ONCE * (2 if is_commit else 1)
    request.body, has_too_many = await work.run(partial(_decode, decode, frame, position, limit))
    if is_commit and not has_too_many:
        has_too_many = sum(len(topic.partitions) for topic in request.body.topics) >= MAX_ELEMENTS_AT_ONCE
    if quotas is not None:
        quotas.begin_large(len(frame))
    return request, has_too_many


def _decode(
    decode: Decode, frame: memoryview, position: int, max_elements: int, pause: Callable[[], None]
) -> tuple[Any, bool]:
    """Returns the message, and whether it has more than `max_elements`. Raises PeerError if it is malformed."""
    pause()
    try:
        return decode(frame, position, max_elements)[0], False
    except PeerError:
        return decode(frame, position, MAX_ELEMENTS)[0], True


async def refuse_at_length(
    work: ThreadWork, request: Request, refuse: Callable[[Request, int, str | None], Any]
) -> Any:
    """Returns the response of `refuse`, which is called in a thread: it has an element for each of the request's."""
    # Kafka refuses a commit of so many offsets with this code too: their records exceed max.message.bytes.
    is_commit = request.route.api.key in _COMMITS
    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_commit else ErrorCode.INVALID_REQUEST
    message = f"The request has more than {MAX_ELEMENTS_AT_ONCE} elements. Send several smaller requests."
    return await work.run(partial(_refuse, refuse, request, code, message))


def _refuse(
    refuse: Callable[[Request, int, str | None], Any],
    request: Request,
    code: int,
    message: str,
    pause: Callable[[], None],
) -> Any:
    pause()
    return refuse(request, code, message)


def has_many_elements(response: Value) -> bool:
    """Whether it takes long to encode the response. Counts the elements of its arrays, as many as needed."""
    return _count_down(response, _MANY_ELEMENTS) < 0


def _count_down(value: Value, left: int) -> int:
    """Returns `left` minus the number of elements; any negative number if there are more."""
    for name in value.names:
        member = getattr(value, name)
        if member.__class__ is list:
            left -= len(member)
            for element in member:
                if left < 0:
                    return left
                if isinstance(element, Value):
                    left = _count_down(element, left)
    return left


async def reply_at_length(work: ThreadWork, request: Request, response: Value) -> None:
    """Encodes the response in a thread and completes the request."""
    if request.route.quotas is not None:
        request.route.quotas.settle(request, response)
    errors: dict[int, int] = {}
    parts = await work.run(partial(_count_and_encode, request.route, response, request.body, errors))
    request.tally.times.add_errors(errors)
    request.reply_in_parts(parts)


def _count_and_encode(
    route: Route, response: Value, body: Value, errors: dict[int, int], pause: Callable[[], None]
) -> list[Any]:
    route.count_errors(response, errors)
    pause()
    return _encode(route.encode, response, body, pause)


def _encode(encode: Encode, response: Value, body: Value, pause: Callable[[], None]) -> list[Any]:
    parts: list[Any] = []
    encode(response, parts)
    joined: list[Any] = []
    begin = 0
    for number, part in enumerate(parts):
        # Slices of files stay: they are sent without a copy.
        is_bytes = isinstance(part, BYTES)
        if not is_bytes or number - begin >= _ELEMENTS_PER_STEP:
            joined.append(b"".join(parts[begin:number]))
            begin = number
            pause()
        if not is_bytes:
            joined.append(part)
            begin = number + 1
    joined.append(b"".join(parts[begin:]))
    _free(parts, pause)
    _free_lists(response, pause)
    _free_lists(body, pause)
    return joined


async def free_body(work: ThreadWork, request: Request) -> None:
    """Frees the body of a request that has its response. Does nothing if that takes no time."""
    if has_many_elements(request.body):
        await work.run(partial(_free_lists, request.body))


def _free_lists(value: Value, pause: Callable[[], None]) -> None:
    """Empties the lists of the message, unless a handler has kept them."""
    for name in value.names:
        member = getattr(value, name)
        if member.__class__ is list and sys.getrefcount(member) <= _OWN_REFERENCES:
            _free(member, pause)


def _free(elements: list[Any], pause: Callable[[], None]) -> None:
    """Empties the list in steps, and before that the long lists of its elements."""
    while elements:
        for _ in range(min(len(elements), _ELEMENTS_PER_STEP)):
            element = elements.pop()
            if isinstance(element, Value) and sys.getrefcount(element) < _OWN_REFERENCES and _has_long_list(element):
                _free_lists(element, pause)
            del element
        pause()


def _has_long_list(value: Value) -> bool:
    members = (getattr(value, name) for name in value.names)
    return any(member.__class__ is list and len(member) > _ELEMENTS_PER_STEP for member in members)
