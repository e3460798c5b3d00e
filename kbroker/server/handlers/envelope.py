"""Envelope (58), v0: handles a CreateTopics request that a broker of Apache Kafka forwards for its client (KIP-590).

Served in a cluster only, by the controller. Kafka brokers forward automatic topic creation this way. Other APIs in an
envelope are refused. The inner request is authorized as its own client's, whose principal and address the envelope has.
"""

from __future__ import annotations

import ipaddress
import struct
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import PeerError, Refusal
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER
from kbroker.protocol.messages import envelope as messages
from kbroker.protocol.registry import api
from kbroker.server.access.between_brokers import member_of
from kbroker.server.requests.client_session import ClientSession
from kbroker.server.requests.request import Request, Route, read_request
from kbroker.server.requests.request_times import RequestTally, RequestTimes
from kbroker.server.requests.response_errors import error_counter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.server.context import Context

__all__ = ["handle"]

CREATE_TOPICS: Final = api(19)
_LENGTH_SIZE: Final = 4
_VERSION_SIZE: Final = 2


def handle(context: Context, request: Request) -> Any:
    if request.listener_name != context.config.inter_broker_endpoint.name:
        raise PeerError("Received an Envelope request on a listener that is not for brokers")
    return _handle_inner(context, request)


async def _handle_inner(context: Context, request: Request) -> Any:
    member_of(context, request)
    context.controller.store.check_active()
    data = request.body.request_data
    handler = import_module(f"kbroker.server.handlers.{CREATE_TOPICS.module_name}")
    client = _InnerClient(request.slot.connection, _principal(request), _client_host(request))
    slot: Any = _InnerSlot(client)
    try:
        inner = read_request(_route(context, data, handler), memoryview(data), slot)
    except PeerError as problem:
        raise Refusal(ErrorCode.INVALID_REQUEST) from problem
    try:
        response = await handler.handle(context, inner)
    except Refusal as refusal:
        response = handler.refuse(inner, refusal.code, refusal.message)
    inner.reply(response)
    return messages.RESPONSE(response_data=b"".join(slot.parts)[_LENGTH_SIZE:])


def _principal(request: Request) -> str:
    data = request.body.request_principal or b""
    try:
        if len(data) < _VERSION_SIZE or data[:_VERSION_SIZE] != bytes(_VERSION_SIZE):
            raise PeerError("Unknown version of a principal")
        principal, _ = codec(messages.PRINCIPAL, 0).decode(memoryview(data), _VERSION_SIZE)
    except PeerError as problem:
        raise Refusal(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE) from problem
    return f"{principal.type}:{principal.name}"


def _client_host(request: Request) -> str:
    try:
        return str(ipaddress.ip_address(bytes(request.body.client_host_address)))
    except ValueError as problem:
        raise Refusal(ErrorCode.INVALID_REQUEST) from problem


def _route(context: Context, data: bytes, handler: Any) -> Route:
    if len(data) < 4:
        raise PeerError("Envelope request is too short")
    key, version = struct.unpack_from(">hh", data)
    assert CREATE_TOPICS.serves is not None
    first, last = CREATE_TOPICS.serves
    if key != CREATE_TOPICS.key or not first <= version <= last:
        raise PeerError(f"API {key} v{version} cannot be sent in an Envelope request")
    return Route(
        CREATE_TOPICS,
        version,
        codec(REQUEST_HEADER, CREATE_TOPICS.request_header_version(version)).decode,
        codec(CREATE_TOPICS.request, version).decode,
        codec(CREATE_TOPICS.response, version).encode,
        has_flexible_header=CREATE_TOPICS.response_header_version(version) == 1,
        holds_slices=False,
        handler=handler.handle,
        fail=_fail,
        tally=RequestTally(context.run, RequestTimes()),  # not shown: the Envelope request is counted
        count_errors=error_counter(CREATE_TOPICS.response),
    )


def _fail(_request: Request, error: Exception) -> None:
    raise error


class _InnerClient:
    """The client of the inner request. Replaces its Connection, as far as a handler of CreateTopics uses it."""

    def __init__(self, connection: Any, principal: str, peer_host: str) -> None:
        self.session = ClientSession()
        self.session.principal = principal
        self.peer_host = peer_host
        self.listener_name: str = connection.listener_name


class _InnerSlot:
    """Collects the inner response, which the Envelope response then carries. Replaces a RequestSlot."""

    is_cancelled = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.parts: Sequence[bytes] = ()

    def complete(self, parts: Sequence[bytes]) -> None:
        self.parts = parts
