"""Login of one connection: runs its SaslExchange, delays failures, ends sessions, then hands over to dispatch.

Until the login, every frame comes here, and none may be larger than `sasl.server.max.receive.size`. A session without
an end then leaves the connection to dispatch alone: its requests cost nothing here. With an end, each request is
compared with the clock first, as in Kafka: after the end only a SaslHandshake is allowed, which re-authenticates. Slow
logins are ended by `PendingLogins`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from kbroker.errors import PeerError
from kbroker.server.authentication.sasl_exchange import Login, SaslExchange, SaslStep
from kbroker.server.requests.client_session import ClientSession

if TYPE_CHECKING:
    from kbroker.server.authentication.sasl_listener import SaslListener
    from kbroker.server.wire.connection import Connection
    from kbroker.server.wire.request_slot import RequestSlot

__all__ = ["ConnectionLogin"]

# Kafka's limit: a SaslHandshake that comes sooner is refused as if there were no re-authentication.
_REAUTHENTICATION_SECONDS: Final = 1.0
_SASL_HANDSHAKE: Final = b"\x00\x11"


class ConnectionLogin:
    __slots__ = ("_connection", "_ends_at", "_exchange", "_listener", "_login", "_reauthenticated_at")

    def __init__(self, listener: SaslListener, connection: Connection) -> None:
        self._listener = listener
        self._connection = connection
        self._login: Login | None = None
        self._ends_at: float | None = None  # None: the session has no end
        self._reauthenticated_at: float | None = None
        self._exchange: SaslExchange | None = self._new_exchange()

    def _new_exchange(self) -> SaslExchange:
        self._connection.reader.max_frame_size = self._listener.max_receive_size
        return self._listener.new_exchange(self._login)

    def handle(self, connection: Connection, frame: memoryview, slot: RequestSlot) -> None:
        """Handles a frame in place of dispatch, which gets it if the client is logged in."""
        if self._exchange is None and not self._begins_again(frame):
            self._listener.handle(connection, frame, slot)
            return
        exchange = self._exchange
        assert exchange is not None
        step = exchange.handle(frame)
        if step.failure is not None:
            self._fail(slot, step)
            return
        if exchange.login is not None:
            self._complete(exchange.login)
        slot.complete(() if step.response is None else (step.response,))

    def _begins_again(self, frame: memoryview) -> bool:
        """Whether the frame begins a re-authentication. Raises PeerError if the session has ended."""
        if self._ends_at is None:
            return False
        now = self._listener.clock.monotonic()
        if bytes(frame[:2]) == _SASL_HANDSHAKE:
            last = self._reauthenticated_at
            if last is None or now - last >= _REAUTHENTICATION_SECONDS:
                self._reauthenticated_at = now
                self._exchange = self._new_exchange()
                self._listener.logins.begin(self._connection, now)
                return True
        if now >= self._ends_at:
            self._listener.expired_sessions += 1
            raise PeerError("the session has ended, and the client did not re-authenticate")
        return False

    def _complete(self, login: Login) -> None:
        listener, connection = self._listener, self._connection
        listener.count_success(is_again=self._login is not None)
        self._exchange, self._login = None, login
        listener.logins.finish(connection)
        connection.reader.max_frame_size = listener.max_request_size
        session = cast(ClientSession, connection.session)
        session.principal, session.is_with_token = f"User:{login.user}", login.is_with_token
        if login.session_ms is None:
            self._ends_at = None
            connection.handle_with(listener.handle)
        else:
            self._ends_at = listener.clock.monotonic() + login.session_ms / 1000

    def _fail(self, slot: RequestSlot, step: SaslStep) -> None:
        """Reads nothing until the delay is over, then sends the response if there is one, and closes the connection.

        The delay slows down guessing, and clients that reconnect at once.
        """
        listener, connection = self._listener, self._connection
        listener.count_failure(connection, step.failure or "")
        listener.logins.finish(connection)
        connection.hold()

        def end() -> None:
            if not connection.is_closed:
                if step.response is not None:
                    slot.complete((step.response,))
                connection.finish(drop_parked=True)
            connection.release()

        listener.deadlines.add(listener.failure_delay_s, end)
