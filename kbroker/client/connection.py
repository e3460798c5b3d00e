"""One outbound connection: frames, correlation, negotiated versions, and a bound on time and on the size of an answer.

Requests may overlap; a broker answers in their order, and each asker reads its own answer when its turn comes. Whatever
goes wrong between a request and its answer ends the connection: what would come next could belong to nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from struct import Struct
from typing import Any, Final

import trio

from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed, NotServed
from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.registry import Api, api

__all__ = ["CONNECT_SECONDS", "MAX_ANSWER_BYTES", "REQUEST_SECONDS", "Connection", "connect", "open_connection"]

API_VERSIONS: Final = api(18)
SOFTWARE: Final = "kbroker"

CONNECT_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 30.0
# Above what any fetch of ours asks for, and below what the first bytes of a web server or of TLS would mean.
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024

_READ_SIZE: Final = 256 * 1024
_LENGTH = Struct(">i")
_ERROR_CODE = Struct(">h")
_CORRELATION_SIZE: Final = 4


class Connection:
    """Use `connect` or `open_connection`; `ask` is all that most callers need."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        address: Address,
        *,
        client_id: str = SOFTWARE,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        """What the broker serves: API key -> first and last version."""
        self._stream = stream
        self._client_id = client_id
        self._max_answer_bytes = max_answer_bytes
        self._received = bytearray()
        self._sending = trio.Lock()
        self._correlation_id = 0
        self._last_turn: trio.Event | None = None
        self._failure: str | None = None

    @property
    def is_open(self) -> bool:
        return self._failure is None

    async def aclose(self) -> None:
        if self._failure is None:
            self._failure = f"the connection to {self.address} is closed"
        await trio.aclose_forcefully(self._stream)

    # Versions

    async def negotiate(self, timeout_s: float = REQUEST_SECONDS) -> None:
        """Asks which APIs are served. A broker that is older than our newest ApiVersions says so in version 0."""
        version = API_VERSIONS.versions[-1]
        software = {"client_software_name": SOFTWARE, "client_software_version": "1"}
        response = await self._exchange(API_VERSIONS, version, software, timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            ranges = {each.api_key: each.max_version for each in response.api_keys}
            version = min(ranges.get(API_VERSIONS.key, 0), version - 1)
            response = await self._exchange(API_VERSIONS, max(version, 0), software, timeout_s)
        if response.error_code != ErrorCode.NONE:
            await self.aclose()
            raise PeerError(f"{self.address} refuses to say what it serves: error code {response.error_code}")
        self.versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}

    def serves(self, asked: Api, *, at_least: int = 0) -> bool:
        return self._common_version(asked, at_least, None) is not None

    def version_of(self, asked: Api, *, at_least: int = 0, at_most: int | None = None) -> int:
        """The highest version that both sides know."""
        version = self._common_version(asked, at_least, at_most)
        if version is None:
            raise NotServed(f"the broker at {self.address} does not serve {asked.name}, or no version that we know")
        return version

    def _common_version(self, asked: Api, at_least: int, at_most: int | None) -> int | None:
        if asked.key not in self.versions:
            return None
        first, last = self.versions[asked.key]
        ours = asked.versions
        lowest = max(first, ours[0], at_least)
        highest = min(last, ours[-1], ours[-1] if at_most is None else at_most)
        return highest if lowest <= highest else None

    # Requests

    async def ask(
        self,
        asked: Api,
        /,
        *,
        at_least: int = 0,
        at_most: int | None = None,
        timeout_s: float = REQUEST_SECONDS,
        **members: Any,
    ) -> Any:
        """The answer, in the highest version that both sides know. Members that the version lacks are left out."""
        version = self.version_of(asked, at_least=at_least, at_most=at_most)
        return await self._exchange(asked, version, members, timeout_s)

    async def tell(
        self,
        asked: Api,
        /,
        *,
        at_least: int = 0,
        at_most: int | None = None,
        timeout_s: float = REQUEST_SECONDS,
        **members: Any,
    ) -> None:
        """For the one request that has no answer: Produce with acks=0."""
        version = self.version_of(asked, at_least=at_least, at_most=at_most)
        with self._ending_on_failure(timeout_s):
            async with self._sending:
                await self._stream.send_all(self._encode(asked, version, members))

    async def _exchange(self, asked: Api, version: int, members: dict[str, Any], timeout_s: float) -> Any:
        turn = trio.Event()
        try:
            with self._ending_on_failure(timeout_s):
                async with self._sending:
                    self._check_open()
                    frame = self._encode(asked, version, members)
                    correlation_id = self._correlation_id
                    before, self._last_turn = self._last_turn, turn
                    await self._stream.send_all(frame)
                if before is not None:
                    await before.wait()
                self._check_open()
                return self._decode(asked, version, correlation_id, await self._receive_frame())
        finally:
            turn.set()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise ConnectionFailed(self.address, self._failure)

    @contextmanager
    def _ending_on_failure(self, timeout_s: float) -> Iterator[None]:
        try:
            with trio.fail_after(timeout_s):
                self._check_open()
                yield
        except trio.TooSlowError:
            self._fail(f"{self.address} does not answer within {timeout_s:g} s")
            raise ConnectionFailed(self.address, f"{self.address} does not answer within {timeout_s:g} s") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError) as failure:
            self._fail(f"{self.address} closed the connection")
            raise ConnectionFailed(self.address, f"{self.address} closed the connection") from failure
        except ConnectionFailed as failure:
            self._fail(str(failure))
            raise
        except PeerError as failure:
            self._fail(str(failure))
            raise
        except trio.Cancelled:
            self._fail(f"the connection to {self.address} was given up")
            raise

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason

    def _encode(self, asked: Api, version: int, members: dict[str, Any]) -> bytes:
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        header = REQUEST_HEADER(
            request_api_key=asked.key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=self._client_id,
        )
        parts: list[Any] = [b""]
        codec(REQUEST_HEADER, asked.request_header_version(version)).encode(header, parts)
        codec(asked.request, version).encode(asked.request(**members), parts)
        parts[0] = _LENGTH.pack(sum(map(len, parts)))
        return b"".join(parts)

    def _decode(self, asked: Api, version: int, correlation_id: int, frame: bytes) -> Any:
        try:
            header, position = codec(RESPONSE_HEADER, asked.response_header_version(version)).decode(frame)
            if header.correlation_id != correlation_id:
                raise PeerError(f"answer {header.correlation_id} where {correlation_id} is due")
            if asked is API_VERSIONS and _begins_with_unsupported_version(frame):
                version = 0
            response, end = codec(asked.response, version).decode(frame, position)
            if end != len(frame):
                raise PeerError(f"{len(frame) - end} bytes are left behind the answer")
        except PeerError as failure:
            raise PeerError(f"{self.address} answers {asked.name} with nonsense: {failure}") from None
        return response

    async def _receive_frame(self) -> bytes:
        received = self._received
        await self._fill(_LENGTH.size)
        (size,) = _LENGTH.unpack_from(received)
        if not _CORRELATION_SIZE <= size <= self._max_answer_bytes:
            raise PeerError(f"{self.address} does not speak Kafka's protocol: it announces an answer of {size} bytes")
        end = _LENGTH.size + size
        await self._fill(end)
        frame = bytes(memoryview(received)[_LENGTH.size : end])
        del received[:end]
        return frame

    async def _fill(self, size: int) -> None:
        """Memory follows the bytes that arrive, never what a length claims."""
        received = self._received
        while len(received) < size:
            data = await self._stream.receive_some(_READ_SIZE)
            if not data:
                raise ConnectionFailed(self.address, f"{self.address} closed the connection")
            received += data


def _begins_with_unsupported_version(frame: bytes) -> bool:
    if len(frame) < _CORRELATION_SIZE + _ERROR_CODE.size:
        return False
    (code,) = _ERROR_CODE.unpack_from(frame, _CORRELATION_SIZE)
    return bool(code == ErrorCode.UNSUPPORTED_VERSION)


async def connect(
    address: Address,
    *,
    client_id: str = SOFTWARE,
    timeout_s: float = CONNECT_SECONDS,
    max_answer_bytes: int = MAX_ANSWER_BYTES,
) -> Connection:
    """A connection that knows what its broker serves. Close it with `aclose`."""
    try:
        with trio.fail_after(timeout_s):
            stream = await trio.open_tcp_stream(address.host, address.port)
    except (OSError, trio.TooSlowError) as failure:
        raise ConnectionFailed(address, f"nobody answers at {address}{_detail(failure)}") from None
    connection = Connection(stream, address, client_id=client_id, max_answer_bytes=max_answer_bytes)
    try:
        await connection.negotiate(timeout_s)
    except BaseException:
        await connection.aclose()
        raise
    return connection


def _detail(failure: Exception) -> str:
    """What the system said, where it is more than that nobody listens."""
    import socket

    return " (its name is not known)" if isinstance(failure, socket.gaierror) else ""


@asynccontextmanager
async def open_connection(
    address: Address,
    *,
    client_id: str = SOFTWARE,
    timeout_s: float = CONNECT_SECONDS,
    max_answer_bytes: int = MAX_ANSWER_BYTES,
) -> AsyncIterator[Connection]:
    connection = await connect(address, client_id=client_id, timeout_s=timeout_s, max_answer_bytes=max_answer_bytes)
    try:
        yield connection
    finally:
        await connection.aclose()
