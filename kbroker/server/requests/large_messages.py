"""Requests and responses with very many elements: decoded, encoded and freed in a thread, with turns for the loop.

500,000 topic names take seconds. Everything that takes one call of C (joining the parts of a response, freeing a list)
is done in steps too: such a call keeps the GIL.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.protocol.compiler.load import Decode, Encode, codec
from kbroker.protocol.values import Value
from kbroker.server.requests.request import Request, Route
from kbroker.server.wire.request_slot import RequestSlot

if TYPE_CHECKING:
    from kbroker.server.requests.thread_work import ThreadWork

__all__ = ["has_many_elements", "read_large_request", "reply_at_length"]

_MANY_ELEMENTS: Final = 2_000  # their encoding takes about 2 ms
_ELEMENTS_PER_STEP: Final = 2_000
_OWN_REFERENCES: Final = 3  # of the message, of a variable, of the call that counts them: a handler keeps no other


async def read_large_request(work: ThreadWork, route: Route, frame: memoryview, slot: RequestSlot) -> Request:
    """Decodes a request in a thread. Raises PeerError if it is malformed."""
    header, position = route.decode_header(frame)
    request = Request(route, header.correlation_id, header.client_id, None, slot)
    quotas = route.quotas
    # With quotas, the decoder of the route measures time, which works on the event loop only.
    decode = route.decode if quotas is None else codec(route.api.request, route.version).decode
    request.body = await work.run(partial(_decode, decode, frame, position))
    if quotas is not None:
        quotas.begin_large(len(frame))
    return request


def _decode(decode: Decode, frame: memoryview, position: int, pause: Callable[[], None]) -> Any:
    pause()
    return decode(frame, position)[0]


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
    request.route.count_errors(response, request.tally.times.errors)
    request.reply_in_parts(await work.run(partial(_encode, request.route.encode, response, request.body)))


def _encode(encode: Encode, response: Value, body: Value, pause: Callable[[], None]) -> list[bytes]:
    parts: list[bytes] = []
    encode(response, parts)
    joined = []
    for start in range(0, len(parts), _ELEMENTS_PER_STEP):
        joined.append(b"".join(parts[start : start + _ELEMENTS_PER_STEP]))
        pause()
    _free(parts, pause)
    for value in (response, body):
        for name in value.names:
            member = getattr(value, name)
            if member.__class__ is list and sys.getrefcount(member) <= _OWN_REFERENCES:
                _free(member, pause)
    return joined


def _free(elements: list[Any], pause: Callable[[], None]) -> None:
    """Empties the list in steps. Nothing else uses the elements any more."""
    while elements:
        del elements[-_ELEMENTS_PER_STEP:]
        pause()
