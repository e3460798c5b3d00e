"""One outbound connection: frames, correlation ids, negotiated versions, request timeouts, a limit on response sizes.

Requests may overlap. A broker responds in the order of the requests, so each caller of `send` waits for its turn and
then reads its own response. Any failure between a request and its response closes the connection, since the next
response could not be matched with its request.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import trio

from kbroker.client.address import Address
from kbroker.client.failures import ConnectionFailed, CouldNotConnect, HandshakeFailed, NotServed
from kbroker.client.frames import Frames, SocketWatch
from kbroker.errors import PeerError
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.record_batch import ReadBuffer
from kbroker.protocol.registry import Api, api

if TYPE_CHECKING:
    from kbroker.client.connection_security import ConnectionSecurity
    from kbroker.security.client_login import ClientLogin

__all__ = ["CONNECT_SECONDS", "MAX_RESPONSE_BYTES", "REQUEST_SECONDS", "BrokerConnection", "connect", "open_connection"]

API_VERSIONS: Final = api(18)
SOFTWARE: Final = "kbroker"

CONNECT_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 30.0
# Larger than any Fetch response that this client requests. Smaller than the first bytes of HTTP or TLS, read as a
# length.
MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024

# Part of a session's lifetime after which a client logs in again. Java's clients take 85 to 95 %.
_RENEWAL: Final = 0.85

_LENGTH = Struct(">i")
_ERROR_CODE = Struct(">h")
_CORRELATION_SIZE: Final = 4


class BrokerConnection:
    """A connection to one broker. Create it with `connect` or `open_connection`.

    `lends`: the records of a response are a view, which is valid until the next request. Requests must not overlap.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        address: Address,
        *,
        client_id: str = SOFTWARE,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        lends: bool = False,
        watch: SocketWatch | None = None,
    ) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        """The APIs that the broker supports: API key -> first and last version."""
        self.features: dict[str, int] = {}
        """The finalized features of the cluster: name -> level. Empty if the broker does not know features."""
        self.supported_features: dict[str, tuple[int, int]] = {}
        """Name -> lowest and highest level that the broker supports."""
        self._frames = Frames(stream, address, max_bytes=max_response_bytes, lends=lends, watch=watch)
        self._client_id = client_id
        self._sending = trio.Lock()
        self._correlation_id = 0
        self._last_turn: trio.Event | None = None
        self._login: ClientLogin | None = None
        self._renew_login_at = math.inf  # on trio's clock
        self._failure: str | None = None

    @property
    def is_open(self) -> bool:
        return self._failure is None

    async def aclose(self) -> None:
        if self._failure is None:
            self._failure = f"The connection to {self.address} is closed"
        self._frames.unlisten()
        await trio.aclose_forcefully(self._frames.stream)

    # Versions

    async def negotiate(self, timeout_s: float = REQUEST_SECONDS) -> None:
        """Fetches the supported versions. A broker that does not know our newest ApiVersions responds in version 0."""
        version = API_VERSIONS.versions[-1]
        software = {"client_software_name": SOFTWARE, "client_software_version": "1"}
        response = await self._exchange(API_VERSIONS, version, software, timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            max_versions = {served.api_key: served.max_version for served in response.api_keys}
            version = min(max_versions.get(API_VERSIONS.key, 0), version - 1)
            response = await self._exchange(API_VERSIONS, max(version, 0), software, timeout_s)
        if response.error_code != ErrorCode.NONE:
            await self.aclose()
            raise PeerError(f"ApiVersions request to {self.address} failed: error code {response.error_code}")
        self.versions = {served.api_key: (served.min_version, served.max_version) for served in response.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}
        self.supported_features = {
            feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features
        }

    def serves(self, api: Api, *, at_least: int = 0) -> bool:
        return self._common_version(api, at_least, None) is not None

    def version_of(self, api: Api, *, at_least: int = 0, at_most: int | None = None) -> int:
        """Returns the highest version that both sides support. Raises NotServed if there is none."""
        version = self._common_version(api, at_least, at_most)
        if version is None:
            raise NotServed(f"The broker at {self.address} does not support {api.name} in any version known to kbroker")
        return version

    def _common_version(self, api: Api, at_least: int, at_most: int | None) -> int | None:
        if api.key not in self.versions:
            return None
        first, last = self.versions[api.key]
        ours = api.versions
        lowest = max(first, ours[0], at_least)
        highest = min(last, ours[-1], ours[-1] if at_most is None else at_most)
        return highest if lowest <= highest else None

    # Login

    async def log_in(self, login: ClientLogin, timeout_s: float = REQUEST_SECONDS) -> None:
        """Logs in with SASL, and again during a later request, before the session ends.

        Raises LoginFailed if the broker refuses the login.
        """
        with self._ending_on_failure(timeout_s):
            async with self._sending:
                await self._log_in(login)

    async def _log_in(self, login: ClientLogin) -> None:
        from kbroker.client.sasl_login import log_in  # a connection without SASL does not need it

        began = trio.current_time()
        lifetime_ms = await log_in(self.address, login, self._ask)
        self._login = login
        self._renew_login_at = began + _RENEWAL * lifetime_ms / 1000 if lifetime_ms else math.inf

    async def _renew_login(self) -> None:
        """Logs in again if the session ends soon. Called with the send lock held: no request may come in between."""
        if self._login is None or trio.current_time() < self._renew_login_at:
            return
        if self._last_turn is not None:
            await self._last_turn.wait()  # all earlier responses are read
            self._check_open()
        await self._log_in(self._login)

    async def _ask(self, api: Api, at_least: int, members: dict[str, Any]) -> Any:
        """Sends a request and reads its response. Called with the send lock held, and no other response awaited."""
        version = self.version_of(api, at_least=at_least)
        await self._frames.send(self._encode(api, version, members))
        return self._decode(api, version, self._correlation_id, await self._frames.receive())

    # Requests

    async def send(
        self,
        api: Api,
        /,
        *,
        at_least: int = 0,
        at_most: int | None = None,
        timeout_s: float = REQUEST_SECONDS,
        **members: Any,
    ) -> Any:
        """Sends a request in the highest common version and returns the response.

        Skips members that the version lacks.
        """
        version = self.version_of(api, at_least=at_least, at_most=at_most)
        return await self._exchange(api, version, members, timeout_s)

    async def converse(
        self,
        api: Api,
        go_on: Callable[[Any], dict[str, Any] | None],
        /,
        *,
        at_least: int = 0,
        timeout_s: float = REQUEST_SECONDS,
        **members: Any,
    ) -> Any:
        """Like `send`; then sends requests with the members that `go_on` returns for each response, until it is None.

        Returns the last response. Over a watched socket, `go_on` is not called by this task, and must not raise.
        """
        version = self.version_of(api, at_least=at_least)
        while True:
            response = await self._exchange(api, version, members, timeout_s)
            following = go_on(response)
            if following is None:
                return response
            members = following
            if self._frames.is_watched and self._renew_login_at == math.inf:
                return await self._hold(api, version, members, timeout_s, go_on)

    async def _hold(
        self,
        api: Api,
        version: int,
        members: dict[str, Any],
        timeout_s: float,
        go_on: Callable[[Any], dict[str, Any] | None],
    ) -> Any:
        from kbroker.client.conversation import Conversation  # of followers only

        conversation = Conversation(
            self._frames,
            lambda members: self._encode(api, version, members),
            lambda frame: self._decode(api, version, self._correlation_id, frame),
            go_on,
        )
        with self._ending_on_failure(timeout_s, is_limited=False):
            await self._begin_sending()
            try:
                return await conversation.hold(members, timeout_s)
            finally:
                self._sending.release()

    async def send_oneway(
        self,
        api: Api,
        /,
        *,
        at_least: int = 0,
        at_most: int | None = None,
        timeout_s: float = REQUEST_SECONDS,
        **members: Any,
    ) -> None:
        """Sends a request that has no response: Produce with acks=0."""
        version = self.version_of(api, at_least=at_least, at_most=at_most)
        with self._ending_on_failure(timeout_s):
            async with self._sending:
                await self._renew_login()
                await self._frames.send(self._encode(api, version, members))

    async def _exchange(self, api: Api, version: int, members: dict[str, Any], timeout_s: float) -> Any:
        turn = trio.Event()
        try:
            with self._ending_on_failure(timeout_s):
                await self._begin_sending()
                try:
                    self._check_open()
                    await self._renew_login()
                    frame = self._encode(api, version, members)
                    correlation_id = self._correlation_id
                    # Turns are assigned under the send lock, so their order is the order of the requests on the wire.
                    before, self._last_turn = self._last_turn, turn
                    await self._frames.send(frame)
                finally:
                    self._sending.release()
                if before is not None and not before.is_set():  # waiting for a set event lets all other tasks run first
                    await before.wait()
                self._check_open()
                return self._decode(api, version, correlation_id, await self._frames.receive())
        finally:
            # After a failure too: the next caller then finds the connection closed instead of waiting forever.
            turn.set()

    async def _begin_sending(self) -> None:
        """Acquires the send lock. All other tasks run first only if it is not free."""
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise ConnectionFailed(self.address, self._failure)

    @contextmanager
    def _ending_on_failure(self, timeout_s: float, *, is_limited: bool = True) -> Iterator[None]:
        try:
            with trio.fail_after(timeout_s if is_limited else math.inf):
                self._check_open()
                yield
        except trio.TooSlowError:
            reason = f"Timed out after {timeout_s:g} s waiting for a response from {self.address}"
            self._fail(reason)
            raise ConnectionFailed(self.address, reason) from None
        except (trio.BrokenResourceError, trio.ClosedResourceError) as failure:
            error = self._broken_by(failure)
            self._fail(str(error))
            raise error from failure
        except ConnectionFailed as failure:
            self._fail(str(failure))
            raise
        except PeerError as failure:
            self._fail(str(failure))
            raise
        except trio.Cancelled:
            self._fail(f"A request to {self.address} was cancelled, and its connection was closed")
            raise

    def _broken_by(self, failure: Exception) -> ConnectionFailed:
        """Returns the error for a stream that has broken. With TLS 1.3 a missing certificate shows here only."""
        if isinstance(self._frames.stream, trio.SSLStream):
            from kbroker.client.client_tls import tls_problem

            problem = tls_problem(failure)
            if problem is not None:
                return HandshakeFailed(self.address, problem)
        return ConnectionFailed(self.address, f"{self.address} closed the connection")

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason

    def _encode(self, api: Api, version: int, members: dict[str, Any]) -> bytes:
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        header = REQUEST_HEADER(
            request_api_key=api.key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=self._client_id,
        )
        parts: list[Any] = [b""]
        codec(REQUEST_HEADER, api.request_header_version(version)).encode(header, parts)
        codec(api.request, version).encode(api.request(**members), parts)
        parts[0] = _LENGTH.pack(sum(map(len, parts)))
        return b"".join(parts)

    def _decode(self, api: Api, version: int, correlation_id: int, frame: ReadBuffer) -> Any:
        try:
            header, position = codec(RESPONSE_HEADER, api.response_header_version(version)).decode(frame)
            if header.correlation_id != correlation_id:
                raise PeerError(f"correlation id {header.correlation_id} instead of {correlation_id}")
            if api is API_VERSIONS and _begins_with_unsupported_version(frame):
                version = 0
            response, end = codec(api.response, version).decode(frame, position)
            if end != len(frame):
                raise PeerError(f"{len(frame) - end} bytes left after the response")
        except PeerError as failure:
            raise PeerError(f"{self.address} sent an invalid {api.name} response: {failure}") from None
        return response


def _begins_with_unsupported_version(frame: ReadBuffer) -> bool:
    if len(frame) < _CORRELATION_SIZE + _ERROR_CODE.size:
        return False
    (code,) = _ERROR_CODE.unpack_from(frame, _CORRELATION_SIZE)
    return bool(code == ErrorCode.UNSUPPORTED_VERSION)


async def connect(
    address: Address,
    *,
    client_id: str = SOFTWARE,
    timeout_s: float = CONNECT_SECONDS,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
    security: ConnectionSecurity | None = None,
    lends: bool = False,
    watch: SocketWatch | None = None,
) -> BrokerConnection:
    """Connects, negotiates versions, and logs in. The caller closes the connection with `aclose`.

    `security`: None for a PLAINTEXT listener. Raises HandshakeFailed or LoginFailed if one side refuses the other.
    """
    stream = await _open_stream(address, timeout_s, security)
    connection = BrokerConnection(
        stream, address, client_id=client_id, max_response_bytes=max_response_bytes, lends=lends, watch=watch
    )
    try:
        await connection.negotiate(timeout_s)
        if security is not None and security.login is not None:
            await connection.log_in(security.login, timeout_s)
    except BaseException:
        await connection.aclose()
        raise
    return connection


async def _open_stream(address: Address, timeout_s: float, security: ConnectionSecurity | None) -> trio.abc.Stream:
    try:
        with trio.fail_after(timeout_s):
            stream = await trio.open_tcp_stream(address.host, address.port)
            if security is None or security.tls is None:
                return stream
            try:
                return await security.tls.secure(stream, address)
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
    except (OSError, trio.TooSlowError) as failure:
        raise CouldNotConnect(address, _detail(failure)) from None


def _detail(failure: Exception) -> str:
    """Returns the reason to show with the address, or "" if the address itself says enough."""
    import socket

    return " (unknown host)" if isinstance(failure, socket.gaierror) else ""


@asynccontextmanager
async def open_connection(
    address: Address,
    *,
    client_id: str = SOFTWARE,
    timeout_s: float = CONNECT_SECONDS,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
    security: ConnectionSecurity | None = None,
    lends: bool = False,
    watch: SocketWatch | None = None,
) -> AsyncIterator[BrokerConnection]:
    connection = await connect(
        address,
        client_id=client_id,
        timeout_s=timeout_s,
        max_response_bytes=max_response_bytes,
        security=security,
        lends=lends,
        watch=watch,
    )
    try:
        yield connection
    finally:
        await connection.aclose()
