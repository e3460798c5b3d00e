"""Passes each frame to its handler: header, version, compiled decode, call, compiled encode of the response.

Requests of more than 256 KB or 5,000 elements (2,000 if their handler takes one turn) are decoded in a thread, and
responses with very many elements are encoded in one, because both take one turn otherwise. The size does not count for
Produce: records are not decoded.

A handler is `handle(context, request)` in `handlers/<api>.py`. It returns the response, or None if it replies later by
itself, or a coroutine, which then runs in its own task. A Refusal or an unexpected exception of a handler becomes an
error response of its API, built by the function `refuse` of its module.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import CoroutineType
from typing import Any, Final, cast

import trio

from kbroker.errors import PeerError, Refusal
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.registry import APIS, Api
from kbroker.server.context import Context
from kbroker.server.requests.client_session import ClientSession
from kbroker.server.requests.controller_apis import CONTROLLER_APIS, only_on_controller
from kbroker.server.requests.large_messages import (
    FullCollections,
    end_with_client,
    free_body,
    handle_in_turn,
    has_many_elements,
    max_elements_on_loop,
    read_large_request,
    refuse_at_length,
    reply_at_length,
)
from kbroker.server.requests.repeated_requests import RepeatedRequests
from kbroker.server.requests.request import Handler, Request, Route, read_request
from kbroker.server.requests.request_times import RequestTally, RequestTimes
from kbroker.server.requests.response_errors import error_counter
from kbroker.server.requests.thread_work import MAX_THREADS
from kbroker.server.wire.connection import Connection
from kbroker.server.wire.request_slot import RequestSlot
from kbroker.time_slice import Unwanted, check_wanted

__all__ = ["CONSUMER_FETCH", "FOLLOWER_FETCH", "Dispatch"]

logger = logging.getLogger(__name__)

# Kafka's names of the two kinds of Fetch in metrics.
CONSUMER_FETCH: Final = "FetchConsumer"
FOLLOWER_FETCH: Final = "FetchFollower"

_PREFIX: Final = struct.Struct(">hh").unpack_from
_PREFIX_SIZE: Final = 4  # API key and version
_LARGE_FRAME: Final = 256 * 1024
_API_KEY_LOW_BYTE: Final = 1  # 0 in a Produce. No API has a key above 255.
_PRODUCE: Final = 0
_FETCH: Final = 1
_LIST_OFFSETS: Final = 2
_API_VERSIONS: Final = 18


class Dispatch:
    def __init__(self, context: Context) -> None:
        self._context = context
        self.run = context.run
        self._routes: dict[tuple[int, int], Route] = {}
        self.is_in_cluster = is_in_cluster = context.member is not None
        self._served: dict[int, Api] = {api.key: api for api in APIS if api.is_served(is_in_cluster=is_in_cluster)}
        self._quotas = context.quotas
        self._quotas.on_switch = self._forget_routes
        self._repeated: dict[int, RepeatedRequests] = {}
        self._interceptor = context.interceptor
        self._large_requests = trio.Semaphore(MAX_THREADS)  # each may take a few hundred megabytes
        self._large_control_requests = trio.Semaphore(MAX_THREADS)  # of brokers: they never wait for clients
        self._full_collections = FullCollections()
        self.bugs = 0
        self.tallies: dict[tuple[str, int], RequestTally] = {}
        """Number of requests by API and version."""
        self.times: dict[str, RequestTimes] = {}
        """Times and errors by API. Fetch has two entries, as in Kafka: FetchConsumer and FetchFollower."""

    def open_session(self) -> ClientSession:
        return ClientSession()

    def handle(self, connection: Connection, frame: memoryview, slot: RequestSlot) -> None:
        if len(frame) < _PREFIX_SIZE:
            raise PeerError("Request is shorter than its header")
        run = self.run
        key = frame[_API_KEY_LOW_BYTE]
        if key and (run.produces or run.partitions):
            # Any request but a Produce must see the records of the requests before it.
            run.write()
        is_plain = self._interceptor is None or self._interceptor.is_idle
        session = cast(ClientSession, connection.session)
        repeated = self._repeated.get(key)
        if repeated is not None and is_plain and repeated.handle(session, frame, slot):
            return
        prefix = _PREFIX(frame)
        route = self._routes.get(prefix)
        if route is None:
            route = self._make_route(*prefix)
        if len(frame) > _LARGE_FRAME and prefix[0] != _PRODUCE:
            self._begin_large(connection, route, frame, slot)
            return
        try:
            request = read_request(route, frame, slot, route.max_elements)
        except PeerError:
            if len(frame) < route.max_elements:
                raise
            # Malformed, or too many elements for the event loop: a thread finds out.
            self._begin_large(connection, route, frame, slot)
            return
        if route.tally_of is not None:
            request.tally = route.tally_of(request)
        request.tally.on_received()
        try:
            response = route.handler(self._context, request)
            if is_plain and route.repeated is not None:
                route.repeated.learn(session, frame, request)
            if response is None:
                return
            if response.__class__ is CoroutineType:
                self._context.nursery.start_soon(self._finish, request, response)
            else:
                request.reply(response)
        except PeerError:
            raise
        except Exception as error:
            self._fail(request, error)

    def refusal_frame(self, frame: memoryview, code: int, message: str) -> bytes | None:
        """Returns the error response of the frame's API as a frame, and calls no handler. None if it has no response.

        Raises PeerError if the request is malformed or not supported.
        """
        prefix = _PREFIX(frame)
        route = self._routes.get(prefix)
        if route is None:
            route = self._make_route(*prefix)
        no_slot: Any = None
        request = read_request(route, frame, no_slot, route.max_elements)
        response = _refusal(request, code, message)
        return None if response is None else request.framed(response)

    def _begin_large(self, connection: Connection, route: Route, frame: memoryview, slot: RequestSlot) -> None:
        connection.hold()
        self._context.nursery.start_soon(self._handle_large, connection, route, frame, slot, self.run.began)

    async def _handle_large(
        self, connection: Connection, route: Route, frame: memoryview, slot: RequestSlot, began: float
    ) -> None:
        """Handles a large request. Its connection is held until the response is encoded, or the request waits."""
        limit = self._large_control_requests if route.api.between_brokers else self._large_requests
        try:
            async with limit:
                with self._full_collections:
                    work = self._context.thread_work
                    end_with_client(route, connection)
                    check_wanted()  # it may have waited for others
                    request, has_too_many = await read_large_request(work, route, frame, slot, self._reply_soon)
                    request.began = began
                    if route.tally_of is not None:
                        request.tally = route.tally_of(request)
                    request.tally.received += 1  # not `on_received`: no run handles it
                    if await self._answer_large(request, has_too_many):
                        await free_body(work, request)
        except Unwanted:  # before it was decoded
            connection.abandon()
        except PeerError as error:
            connection.drop(str(error))
        except Exception as error:  # of the decoder, or no memory: there is no request that could be answered
            connection.close_after_bug(error)
        finally:
            connection.release()
            self.run.write()

    async def _answer_large(self, request: Request, has_too_many: bool) -> bool:
        """Returns whether the request is done. Otherwise its handler replies later."""
        try:
            if has_too_many:
                response = await refuse_at_length(self._context.thread_work, request, _refusal)
            else:
                response = await handle_in_turn(self._context, request)
            if response is None:
                return False
            await self._reply(request, response)
        except Unwanted:
            request.slot.connection.abandon()
        except PeerError:
            raise
        except Exception as error:
            self._fail(request, error)
        return True

    def _reply_soon(self, request: Request, response: Any) -> None:
        """Replies to a large request that has waited: its response may have to be encoded in a thread."""
        self._context.nursery.start_soon(self._finish_large, request, response)

    async def _finish_large(self, request: Request, response: Any) -> None:
        try:
            await self._reply(request, response)
        except Unwanted:
            request.slot.connection.abandon()
        except Exception as error:
            self._fail(request, error)

    async def _finish(self, request: Request, answering: Awaitable[Any]) -> None:
        end_with_client(request.route, request.slot.connection)
        try:
            response = await answering
            if response is not None:
                await self._reply(request, response)
        except Unwanted:
            request.slot.connection.abandon()
        except Exception as error:
            self._fail(request, error)
        self.run.write()

    async def _reply(self, request: Request, response: Any) -> None:
        if not has_many_elements(response):
            request.reply_at_once(response)
        else:
            if not request.route.holds_slices:  # `complete` releases slices
                check_wanted()
            await reply_at_length(self._context.thread_work, request, response)

    def _fail(self, request: Request, error: Exception) -> None:
        """Sends the error response of the API. Closes the connection if that fails too."""
        name = request.route.api.name
        if isinstance(error, Refusal):
            code, message = error.code, error.message
        else:
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
            self.bugs += 1
            logger.error("Unexpected error handling %s v%d", name, request.version, exc_info=error)
        if request.slot.parts is not None or request.slot.is_cancelled:
            return
        try:
            response = _refusal(request, code, message)
            if response is None:
                request.reply_nothing()
                request.slot.connection.finish()
            else:
                request.reply_at_once(response)
        except Exception:
            logger.exception("Could not send the error response of %s v%d", name, request.version)
            request.slot.connection.close()

    def _forget_routes(self) -> None:
        self._routes.clear()
        for repeated in self._repeated.values():
            repeated.forget()

    def _make_route(self, key: int, version: int) -> Route:
        api = self._served.get(key)
        if api is None:
            raise PeerError(f"API key {key} is not supported")
        assert api.serves is not None
        first, last = api.serves
        if not first <= version <= last:
            if key != _API_VERSIONS:
                raise PeerError(f"{api.name} v{version} is not supported")
            # A newer client may send a version that this broker cannot read. It can read a response in v0 (KIP-511).
            module = import_module("kbroker.server.handlers.api_versions")
            return Route(
                api,
                0,
                codec(REQUEST_HEADER, 1).decode,
                _decode_nothing,
                codec(api.response, 0).encode,
                has_flexible_header=False,
                holds_slices=False,
                handler=self._intercepted(api, module.handle_unknown_version),
                fail=self._fail,
                tally=self._tally(api.name, 0),
                count_errors=error_counter(api.response),
            )
        module = import_module(f"kbroker.server.handlers.{api.module_name}")
        route = Route(
            api,
            version,
            codec(REQUEST_HEADER, api.request_header_version(version)).decode,
            codec(api.request, version).decode,
            codec(api.response, version).encode,
            has_flexible_header=api.response_header_version(version) == 1,
            holds_slices=key == _FETCH,
            handler=self._intercepted(api, module.handle),
            fail=self._fail,
            tally=self._tally(CONSUMER_FETCH if key == _FETCH else api.name, version),
            count_errors=error_counter(api.response),
            tally_of=self._fetch_tally(module.replica_id, version) if key == _FETCH else None,
            repeated=self._repeated_of(key),
            max_elements=max_elements_on_loop(key),
        )
        if self._quotas.is_on and not api.between_brokers:
            route = self._quotas.metered(route)
        self._routes[key, version] = route
        return route

    def _tally(self, name: str, version: int) -> RequestTally:
        tally = self.tallies.get((name, version))
        if tally is None:
            times = self.times.setdefault(name, RequestTimes())
            tally = self.tallies[name, version] = RequestTally(self.run, times)
        return tally

    def _fetch_tally(self, replica_id: Callable[[Request], int], version: int) -> Callable[[Request], RequestTally]:
        """Returns a function that chooses the tally by the sender: a follower or a consumer."""
        of_consumers = self._tally(CONSUMER_FETCH, version)
        return lambda request: self._tally(FOLLOWER_FETCH, version) if replica_id(request) >= 0 else of_consumers

    def _repeated_of(self, key: int) -> RepeatedRequests | None:
        """Loads the module with the first request of its API, as handlers are loaded."""
        if key not in self._repeated:
            if key == _PRODUCE:
                from kbroker.server.requests.repeated_produce import RepeatedProduces

                self._repeated[key] = RepeatedProduces(self._context)
            elif key == _FETCH:
                from kbroker.server.requests.repeated_fetch import RepeatedFetches

                self._repeated[key] = RepeatedFetches(self._context)
            elif key == _LIST_OFFSETS:
                from kbroker.server.requests.repeated_list_offsets import RepeatedListOffsets

                self._repeated[key] = RepeatedListOffsets(self._context)
        return self._repeated.get(key)

    def _intercepted(self, api: Api, handler: Handler) -> Handler:
        if self._context.member is not None and api.key in CONTROLLER_APIS:
            handler = only_on_controller(handler, CONTROLLER_APIS[api.key])
        return handler if self._interceptor is None else self._interceptor.intercept(api, handler)


def _decode_nothing(buffer: Any, position: int = 0, max_elements: int = 0, /) -> tuple[Any, int]:
    return None, position


def _refusal(request: Request, code: int, message: str | None) -> Any:
    """Returns the error response from `refuse` of the API's module, or a response with the top-level error code."""
    api = request.route.api
    module = import_module(f"kbroker.server.handlers.{api.module_name}")
    refuse = getattr(module, "refuse", None)
    if refuse is not None:
        return refuse(request, code, message)
    members: dict[str, Any] = {"error_code": code}
    if "error_message" in api.response.value.names:
        members["error_message"] = message
    return api.response(**members)
