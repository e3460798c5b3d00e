"""State that the connections of one SASL listener share: mechanisms, limits, counters, and the way to dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.clock import Clock
from kbroker.config.listener import ListenerConfig
from kbroker.security.mechanism import printable
from kbroker.server.authentication.connection_login import ConnectionLogin
from kbroker.server.authentication.sasl_exchange import EnabledMechanism, Login, SaslExchange
from kbroker.server.handlers.api_versions import early_response
from kbroker.server.wire.deadlines import Deadlines

if TYPE_CHECKING:
    from kbroker.server.requests.dispatch import Dispatch
    from kbroker.server.wire.connection import Connection
    from kbroker.server.wire.network import Network

__all__ = ["SaslListener"]


class SaslListener:
    def __init__(
        self,
        config: ListenerConfig,
        mechanisms: Mapping[str, EnabledMechanism],
        *,
        dispatch: Dispatch,
        network: Network,
        deadlines: Deadlines,
        clock: Clock,
    ) -> None:
        self.name = config.name
        self.max_receive_size = config.sasl_server_max_receive_size
        self.max_request_size = network.limits.max_request_size
        self.failure_delay_s = config.connection_failed_authentication_delay_ms / 1000
        self.deadlines = deadlines
        self.clock = clock
        self.handle = dispatch.handle
        self.logins = network.logins
        self.successes = 0
        self.failures = 0
        self.reauthentications = 0
        self.expired_sessions = 0
        self._mechanisms = mechanisms
        self._dispatch = dispatch
        self._network = network

    def on_open(self, connection: Connection) -> None:
        """Puts the login before dispatch. Called with each new connection of the listener."""
        connection.handle_with(ConnectionLogin(self, connection).handle)

    def new_exchange(self, previous: Login | None) -> SaslExchange:
        return SaslExchange(self._mechanisms, self, self.clock.now_ms, previous)

    def count_success(self, *, is_again: bool) -> None:
        if is_again:
            self.reauthentications += 1
        else:
            self.successes += 1

    def count_failure(self, connection: Connection, reason: str) -> None:
        self.failures += 1
        self._network.reports.line(f"Failed authentication with {connection.peer} ({printable(reason)})")

    # Responses for SaslExchange

    def api_versions(self, version: int, body: Any) -> tuple[Any, bool]:
        response: Any = early_response(self._dispatch.is_in_cluster, version, body)
        return response, response.error_code == 0

    def refusal(self, frame: memoryview, code: int, message: str) -> bytes | None:
        return self._dispatch.refusal_frame(frame, code, message)
