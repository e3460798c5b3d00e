"""Public keys of a token issuer: loaded from a file or URL in a thread, refreshed in the background (KIP-768).

A login never waits for the issuer. A token with an unknown key fails, and lets the keys be loaded again soon, at most
once a minute: the issuer may have a new key, and the client tries again.
"""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Final
from urllib.parse import urlsplit

import trio

from kbroker.clock import Clock
from kbroker.errors import UserError
from kbroker.security.json_web_keys import MAX_JWKS_BYTES, JsonWebKeys, parse_jwks

__all__ = ["KeySet", "check_jwks_url"]

logger = logging.getLogger(__name__)

_SCHEMES: Final = ("https", "http", "file")
_FETCH_SECONDS: Final = 10.0
_UNKNOWN_KEY_SECONDS: Final = 60.0


class KeySet:
    def __init__(self, url: str, clock: Clock, *, refresh_ms: int, backoff_ms: int, max_backoff_ms: int) -> None:
        self.url = url
        self.keys = JsonWebKeys()
        self._clock = clock
        self._refresh_s = max(refresh_ms, 1) / 1000
        self._backoff_s = max(backoff_ms, 1) / 1000
        self._max_backoff_s = max(max_backoff_ms, backoff_ms, 1) / 1000
        self._is_wanted = trio.Event()
        self._wanted_at: float | None = None

    async def load(self) -> None:
        """Loads the keys. Raises UserError if they cannot be loaded; the old ones are kept then."""
        try:
            self.keys = parse_jwks(await trio.to_thread.run_sync(_fetch, self.url))
        except (OSError, ValueError, HTTPException) as problem:
            raise UserError(f"Could not load the keys of {_shown(self.url)}: {problem}") from None

    async def run(self) -> None:
        """Refreshes the keys until it is cancelled. After a failure it tries again soon, then less and less often."""
        pause_s, backoff_s = self._refresh_s, self._backoff_s
        while True:
            with trio.move_on_after(pause_s):
                await self._is_wanted.wait()
            self._is_wanted = trio.Event()
            try:
                await self.load()
            except UserError as problem:
                logger.warning("%s. The old keys are used.", problem)
                pause_s, backoff_s = backoff_s, min(2 * backoff_s, self._max_backoff_s)
            else:
                pause_s, backoff_s = self._refresh_s, self._backoff_s

    def on_unknown_key(self) -> None:
        """Lets the keys be loaded soon, unless that was done in the last minute."""
        now = self._clock.monotonic()
        if self._wanted_at is None or now - self._wanted_at >= _UNKNOWN_KEY_SECONDS:
            self._wanted_at = now
            self._is_wanted.set()


def check_jwks_url(url: str, *, source: str) -> None:
    """Raises UserError if the keys cannot be loaded from this kind of URL."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or (parts.scheme != "file" and not parts.hostname):
        raise UserError(f"{source} must be a URL that begins with https://, http:// or file:///")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the configured address must answer itself, not send the broker to another host."""

    def redirect_request(self, *_arguments: object, **_named: object) -> None:
        return None


def _fetch(url: str) -> bytes:
    """Returns the bytes at a URL, a little more than allowed at most. Blocks: runs in a thread."""
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(url, timeout=_FETCH_SECONDS) as response:
            data: bytes = response.read(MAX_JWKS_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()  # it is the response, with its socket
        raise
    return data


def _shown(url: str) -> str:
    """Returns the URL without user, password and query: they may be secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{'' if parts.port is None else f':{parts.port}'}{parts.path}"
