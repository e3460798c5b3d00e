"""An independent implementation: kafka-python's frames decode here, ours decode there, for all that it knows.

Its classes are filled and read generically, by the field names that both sides derive from Kafka's specs.
"""

from __future__ import annotations

import importlib
import io
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.api_data import ApiData
from kafka.protocol.api_header import RequestHeader, ResponseHeader
from kafka.protocol.api_message import ApiMessage

from kbroker.protocol import types
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.registry import APIS
from kbroker.protocol.versions import Field, Message, Struct
from tests.protocol.all_messages import API_MESSAGES, CONSUMER_PROTOCOL
from tests.protocol.generated_values import some_values

EXAMPLES = 5
MODULES = ("admin", "consumer", "metadata", "producer", "sasl")


def classes() -> dict[str, Any]:
    """Name -> kafka-python's class."""
    modules = [importlib.import_module(f"kafka.protocol.{name}") for name in MODULES]
    exported = [getattr(module, name) for module in modules for name in module.__all__]
    return {
        each.__name__: each for each in exported if isinstance(each, type) and issubclass(each, ApiMessage | ApiData)
    }


THEIRS = classes()
KNOWN = [message for message in (*API_MESSAGES, *CONSUMER_PROTOCOL) if message.name in THEIRS]
known_message = pytest.mark.parametrize("message", KNOWN, ids=lambda message: message.name)


def common_versions(message: Message) -> list[int]:
    """It still speaks the versions below the first that its specs call valid."""
    _, last = THEIRS[message.name].valid_versions
    return [version for version in message.versions if version <= last]


def cases(message: Message) -> Iterator[tuple[int, Any]]:
    for version in common_versions(message):
        for value in some_values(message, version, EXAMPLES):
            yield version, value


def their_struct(struct: Struct, value: Any, theirs: Any, version: int) -> Any:
    """Our value as theirs. `theirs`: their class of the struct."""
    fields = theirs._struct.fields
    present = [each for each in struct.fields if each.is_in(version) and not is_left_out(each, value)]
    members = {
        (name := their_name(each, fields)): their_value(each.subcon, getattr(value, each.name), fields[name], version)
        for each in present
    }
    return theirs(version=version, **members)


def their_name(each: Field, fields: dict[str, Any]) -> str:
    """They shorten `topic_authorized_operations` and its like."""
    return each.name if each.name in fields else each.name[each.name.index("authorized_operations") :]


def is_left_out(each: Field, value: Any) -> bool:
    """A struct in a tag has no default there but being absent."""
    return each.tag is not None and getattr(value, each.name) == each.default()


def their_value(subcon: Any, value: Any, field: Any, version: int) -> Any:
    if value is None:
        return None
    match subcon:
        case types.Array():
            if isinstance(subcon.element, Struct):
                return [their_struct(subcon.element, each, field.data_class, version) for each in value]
            return [uuid.UUID(bytes=each) if subcon.element is types.Uuid else each for each in value]
        case Struct():
            return their_struct(subcon, value, field.data_class, version)
    if subcon is types.Uuid:
        return uuid.UUID(bytes=value)
    if field.type_str == "bitfield":
        return {bit for bit in range(32) if value >> bit & 1}
    return value


def our_struct(struct: Struct, theirs: Any, version: int) -> Any:
    """Their value as ours."""
    fields = type(theirs)._struct.fields
    members = {
        each.name: our_value(each, getattr(theirs, name := their_name(each, fields)), fields[name], version)
        for each in struct.fields
        if each.is_in(version)
    }
    return struct(**members)


def our_value(each: Field, value: Any, field: Any, version: int) -> Any:
    if each.subcon is types.Uuid:
        return types.ZERO_UUID if value is None else value.bytes
    if field.type_str == "bitfield":
        return signed(value)
    if value is None:
        return each.default() if each.tag is not None else None
    match each.subcon:
        case types.Array():
            element = each.subcon.element
            if isinstance(element, Struct):
                return [our_struct(element, item, version) for item in value]
            return [(item or uuid.UUID(int=0)).bytes if element is types.Uuid else item for item in value]
        case Struct():
            return our_struct(each.subcon, value, version)
        case types.Blob():
            return bytes(value)
    return value


def signed(bits: set[int] | None) -> int:
    """Their set of bits as an INT32; null stands for "not asked for", the lowest number."""
    number = 1 << 31 if bits is None else sum(1 << bit for bit in bits)
    return number - (1 << 32) if number >> 31 else number


@known_message
def test_their_bytes_decode_here(message: Message) -> None:
    for version, value in cases(message):
        theirs = their_struct(message, value, THEIRS[message.name], version)
        data = bytes(theirs.encode(version=version, header=False))
        assert codec(message, version).decode(data) == (value, len(data))
        assert codec(message, version).to_bytes(value) == data


@known_message
def test_our_bytes_decode_there(message: Message) -> None:
    for version, value in cases(message):
        theirs = decoded_there(message, codec(message, version).to_bytes(value), version)
        assert our_struct(message, theirs, version) == value


def decoded_there(message: Message, data: bytes, version: int) -> Any:
    cls = THEIRS[message.name]
    if message.name != "ApiVersionsResponse":
        return cls.decode(data, version=version, header=False)
    # Theirs takes any answer with an error for v0, as a client should; here the version is known.
    return ApiMessage.decode.__func__(cls, data, version=version)


@pytest.mark.parametrize("client_id", [None, "", "kafka-python", "Ж" * 200])
def test_request_headers_are_the_same(client_id: str | None) -> None:
    for version in (1, 2):
        members = {"request_api_key": 3, "request_api_version": 9, "correlation_id": -7, "client_id": client_id}
        theirs = RequestHeader(**members).encode(flexible=version == 2)
        value = REQUEST_HEADER(**members)
        assert codec(REQUEST_HEADER, version).to_bytes(value) == theirs
        assert codec(REQUEST_HEADER, version).decode(theirs) == (value, len(theirs))
        assert RequestHeader.decode(io.BytesIO(theirs), flexible=version == 2).client_id == client_id


def test_response_headers_are_the_same() -> None:
    for version in (0, 1):
        theirs = ResponseHeader(correlation_id=77).encode(flexible=version == 1)
        assert codec(RESPONSE_HEADER, version).to_bytes(RESPONSE_HEADER(correlation_id=77)) == theirs


def test_whole_frames_carry_the_header_version_that_they_expect() -> None:
    compared = 0
    for api in APIS:
        theirs = THEIRS.get(api.request.name)
        for version in common_versions(api.request) if theirs else ():
            value = api.request()
            frame = their_struct(api.request, value, theirs, version)
            frame.with_header(correlation_id=5, client_id="me")
            header = REQUEST_HEADER(
                request_api_key=api.key, request_api_version=version, correlation_id=5, client_id="me"
            )
            parts: list[bytes] = []
            codec(REQUEST_HEADER, api.request_header_version(version)).encode(header, parts)
            codec(api.request, version).encode(value, parts)
            assert b"".join(parts) == frame.encode(version=version, header=True), (api, version)
            compared += 1
    assert compared > 150


def test_the_comparison_reaches_most_apis() -> None:
    """If kafka-python moves its classes, this must not become a comparison of nothing."""
    assert len(KNOWN) > 100
    assert sum(len(common_versions(message)) for message in KNOWN) > 450
