"""From a frame to its handler and back: header, version, compiled decode, call, compiled encode.

A handler is `handle(context, request)` in `handlers/<api>.py`. A plain function returns the response, or None when it
answers later itself, or a coroutine, which then runs as a task of its own. What a handler refuses as a whole (Refusal)
and what goes wrong inside it become error codes in the shape of its API, by the `refuse` of its module.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable
from importlib import import_module
from types import CoroutineType
from typing import Any

from kbroker.errors import PeerError, Refusal
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.registry import APIS, Api
from kbroker.server.connection import Connection
from kbroker.server.context import Context
from kbroker.server.controller_apis import CONTROLLER_APIS, only_on_controller
from kbroker.server.repeated_requests import RepeatedRequests
from kbroker.server.request import Handler, Request, Route, read_request
from kbroker.server.request_slot import RequestSlot

__all__ = ["Dispatch"]

logger = logging.getLogger(__name__)

_PREFIX = struct.Struct(">hh").unpack_from
_PRODUCE = 0
_FETCH = 1
_API_VERSIONS = 18


class Dispatch:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._run = context.append_run
        self._routes: dict[tuple[int, int], Route] = {}
        is_in_cluster = context.member is not None
        self._served: dict[int, Api] = {each.key: each for each in APIS if each.is_served(is_in_cluster=is_in_cluster)}
        self._quotas = context.quotas
        self._quotas.on_switch = self._forget_routes
        self._repeated: dict[int, RepeatedRequests] = {}
        self._interceptor = context.interceptor
        self.bugs = 0
        self.counts: dict[tuple[str, int], list[int]] = {}
        """Requests by API and version; each list holds the one number that its route counts up."""

    def handle(self, connection: Connection, frame: memoryview, slot: RequestSlot) -> None:
        is_plain = self._interceptor is None or self._interceptor.is_idle
        if is_plain and connection.repeated is not None and connection.repeated.handle(connection, frame, slot):
            return
        try:
            prefix = _PREFIX(frame)
        except struct.error:
            raise PeerError("a request shorter than its header") from None
        route = self._routes.get(prefix)
        if route is None:
            route = self._make_route(*prefix)
        route.tally[0] += 1
        request = read_request(route, frame, slot)
        if prefix[0] != _PRODUCE and self._run.produces:
            self._run.end()
        try:
            response = route.handler(self._context, request)
            if is_plain and route.repeated is not None and connection.shapes_left > 0:
                route.repeated.learn(connection, frame, request)
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

    def end_run(self) -> None:
        """All frames that had arrived on a connection are handled; its receive buffer still stands."""
        run = self._run
        if run.produces or run.flushes:
            run.end()

    async def _finish(self, request: Request, answering: Awaitable[Any]) -> None:
        try:
            response = await answering
            if response is not None:
                request.reply(response)
        except Exception as error:
            self._fail(request, error)
        self.end_run()

    def _fail(self, request: Request, error: Exception) -> None:
        """Answer in the shape of the API; where that fails too, closing is all that is left."""
        name = request.route.api.name
        if isinstance(error, Refusal):
            code, message = error.code, error.message
        else:
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
            self.bugs += 1
            logger.error("%s v%d met a bug", name, request.version, exc_info=error)
        if request.slot.parts is not None or request.slot.is_cancelled:
            return
        try:
            response = _refusal(request, code, message)
            if response is None:
                request.reply_nothing()
                request.slot.connection.finish()
            else:
                request.reply(response)
        except Exception:
            logger.exception("%s v%d could not be refused", name, request.version)
            request.slot.connection.close()

    def _forget_routes(self) -> None:
        self._routes.clear()
        for each in self._repeated.values():
            each.forget()

    def _make_route(self, key: int, version: int) -> Route:
        api = self._served.get(key)
        if api is None:
            raise PeerError(f"API {key} is not served")
        assert api.serves is not None
        first, last = api.serves
        if not first <= version <= last:
            if key != _API_VERSIONS:
                raise PeerError(f"{api.name} v{version} is not served")
            # A newer client asks in a version that we cannot read; it understands an answer in v0.
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
                tally=self.counts.setdefault((api.name, 0), [0]),
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
            tally=self.counts.setdefault((api.name, version), [0]),
            repeated=self._repeated_of(key),
        )
        if self._quotas.is_on and not api.between_brokers:
            route = self._quotas.metered(route)
        self._routes[key, version] = route
        return route

    def _repeated_of(self, key: int) -> RepeatedRequests | None:
        """As handlers are: loaded for the first request of their kind."""
        if key not in self._repeated:
            if key == _PRODUCE:
                from kbroker.server.repeated_produce import RepeatedProduces

                self._repeated[key] = RepeatedProduces(self._context)
            elif key == _FETCH:
                from kbroker.server.repeated_fetch import RepeatedFetches

                self._repeated[key] = RepeatedFetches(self._context)
        return self._repeated.get(key)

    def _intercepted(self, api: Api, handler: Handler) -> Handler:
        if self._context.member is not None and api.key in CONTROLLER_APIS:
            handler = only_on_controller(handler)
        return handler if self._interceptor is None else self._interceptor.intercept(api, handler)


def _decode_nothing(buffer: Any, position: int = 0) -> tuple[Any, int]:
    return None, position


def _refusal(request: Request, code: int, message: str | None) -> Any:
    """The API's own shape of an error, or the error code at the top of its response."""
    api = request.route.api
    module = import_module(f"kbroker.server.handlers.{api.module_name}")
    refuse = getattr(module, "refuse", None)
    if refuse is not None:
        return refuse(request, code, message)
    members: dict[str, Any] = {"error_code": code}
    if "error_message" in api.response.value.names:
        members["error_message"] = message
    return api.response(**members)
