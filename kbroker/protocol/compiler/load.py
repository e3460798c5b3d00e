"""Compiled codecs: the codec of a message and version is compiled on first use and cached.

The source is registered with `linecache`, so that tracebacks show the lines of emitted code.
"""

from __future__ import annotations

import linecache
from typing import Any, NamedTuple, Protocol

from kbroker.protocol.compiler.emit import Source
from kbroker.protocol.compiler.plan import plan
from kbroker.protocol.compiler.runtime import Buffer
from kbroker.protocol.versions import Message

__all__ = ["MessageCodec", "codec"]


class Decode(Protocol):
    def __call__(self, buffer: Buffer, position: int = 0, max_elements: int = ..., /) -> tuple[Any, int]:
        """Returns the message and the position after it. Raises PeerError if it is malformed or has more elements."""
        ...


class Encode(Protocol):
    def __call__(self, value: Any, parts: list[Any]) -> None:
        """Appends the message's bytes to `parts`. The value of a Records field is appended as it is."""
        ...


class MessageCodec(NamedTuple):
    decode: Decode
    encode: Encode
    source: str

    def to_bytes(self, value: Any) -> bytes:
        parts: list[Any] = []
        self.encode(value, parts)
        return b"".join(parts)


_codecs: dict[tuple[int, int], MessageCodec] = {}
_messages: list[Message] = []  # keeps the messages alive, so that the ids in the keys stay unique


def codec(message: Message, version: int) -> MessageCodec:
    key = (id(message), version)
    known = _codecs.get(key)
    if known is None:
        known = _codecs[key] = _compile(message, version)
        _messages.append(message)
    return known


def _compile(message: Message, version: int) -> MessageCodec:
    label = f"{message.name} v{version}"
    steps = plan(message, version)
    source = Source(label)
    source.decoder(steps)
    source.encoder(steps)
    text, filename = source.text(), f"<codec of {label}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    names = source.names
    exec(compile(text, filename, "exec"), names)
    return MessageCodec(names["decode"], names["encode"], text)
