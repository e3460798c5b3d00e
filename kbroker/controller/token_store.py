"""Delegation tokens in the metadata tree: creates, renews and expires them, and follows the changes of other brokers.

Any broker may write; the controller deletes expired tokens. A token whose node cannot be read does not exist: nobody
can log in with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import trio

from kbroker.clock import Clock
from kbroker.controller.announcements import ATTEMPTS, AnnouncedChanges, Announcement
from kbroker.controller.trees import token_znodes
from kbroker.controller.trees.tree import (
    BadVersion,
    Create,
    Delete,
    Node,
    NodeExists,
    NodeTooLarge,
    NoNode,
    SetData,
    Tree,
    TreeOperation,
    path_problem,
)
from kbroker.controller.trees.znodes import BadNode
from kbroker.errors import Refusal
from kbroker.names import random_uuid, uuid_to_text
from kbroker.protocol.error_codes import ErrorCode
from kbroker.security.credentials import ScramCredential, ScramHash, credential_of_password
from kbroker.security.delegation_token import DelegationToken, TokenRules, token_password

__all__ = ["KnownToken", "TokenStore"]

logger = logging.getLogger(__name__)

_Change = Callable[[DelegationToken | None], DelegationToken | None]
"""Returns the new token for the current one; None to delete it. Raises Refusal if it may not change so."""


class KnownToken:
    """A token with its HMAC. SCRAM credentials are computed with the first login, which takes milliseconds."""

    __slots__ = ("_credentials", "hmac", "token")

    def __init__(self, token: DelegationToken, hmac: bytes) -> None:
        self.token = token
        self.hmac = hmac
        self._credentials: dict[ScramHash, ScramCredential] = {}

    def credential(self, scram: ScramHash) -> ScramCredential:
        if scram not in self._credentials:
            self._credentials[scram] = credential_of_password(scram, token_password(self.hmac))
        return self._credentials[scram]


class TokenStore:
    """Call `load` before the broker accepts clients, then `run`, and `run_expiry` in the same nursery."""

    def __init__(
        self, tree: Tree, rules: TokenRules, clock: Clock, *, random_bytes: Callable[[int], bytes], timeout_s: float
    ) -> None:
        """`timeout_s`: how long a client's change may wait for the tree."""
        self._tree = tree
        self._rules = rules
        self._clock = clock
        self._random_bytes = random_bytes
        self._known: dict[str, KnownToken] = {}
        self._ids: dict[bytes, str] = {}
        """HMAC -> token id."""
        parents = [token_znodes.TOKEN_CHANGES]
        self._changes = AnnouncedChanges(tree, clock, parents, about="delegation tokens", timeout_s=timeout_s)

    # Reading

    async def load(self) -> None:
        await self._changes.load([token_znodes.TOKENS, token_znodes.TOKEN_CHANGES], self._read)

    async def run(self) -> None:
        """Follows the changes of other brokers."""
        await self._changes.run(self._read)

    def find(self, token_id: str) -> KnownToken | None:
        """Returns a token that is not expired; the controller may not have deleted an expired one yet."""
        known = self._known.get(token_id)
        return None if known is None or known.token.is_expired(self._clock.now_ms()) else known

    def known(self) -> Iterable[KnownToken]:
        """Returns all tokens, also expired ones."""
        return self._known.values()

    async def _read(self, announced: Sequence[Announcement] | None) -> None:
        if announced is None:
            ids = {*self._known, *await self._tree.children(token_znodes.TOKENS)}
        else:
            ids = {data.decode(errors="replace") for _, _, data in announced}
        token_ids = sorted(token_id for token_id in ids if path_problem(token_znodes.token_path(token_id)) is None)
        nodes = await self._tree.get_many([token_znodes.token_path(token_id) for token_id in token_ids])
        for token_id, node in zip(token_ids, nodes, strict=True):
            try:
                self._note(token_id, _token_of(token_id, node))
            except BadNode as failure:
                logger.error("Ignored a delegation token: %s", failure)
                self._note(token_id, None)

    def _note(self, token_id: str, token: DelegationToken | None) -> None:
        known = self._known.get(token_id)
        if token is None:
            if known is not None:
                del self._known[token_id], self._ids[known.hmac]
        elif known is not None:
            known.token = token
        else:
            hmac = self._rules.hmac(token_id)
            self._known[token_id] = KnownToken(token, hmac)
            self._ids[hmac] = token_id

    # Writing

    async def create(self, *, owner: str, requester: str, renewers: Sequence[str], lifetime_ms: int) -> KnownToken:
        """Raises Refusal if the token could not be stored."""
        token_id = uuid_to_text(random_uuid(self._random_bytes))
        now_ms = self._clock.now_ms()
        token = self._rules.issue(
            token_id, owner=owner, requester=requester, renewers=renewers, lifetime_ms=lifetime_ms, now_ms=now_ms
        )
        await self._update(token_id, lambda _: token)
        logger.info("Created delegation token %s of %s", token_id, ascii(owner))
        return self._known[token_id]

    async def renew(self, hmac: bytes, principal: str, period_ms: int) -> int:
        """Renews a token. Returns the new expiry in ms since the epoch. Raises Refusal if it may not be renewed."""

        def renewed(token: DelegationToken | None) -> DelegationToken:
            return self._rules.renew(_existing(token), principal, period_ms=period_ms, now_ms=self._clock.now_ms())

        token = await self._update(self._id_of(hmac), renewed)
        assert token is not None
        return token.expiry_ms

    async def expire(self, hmac: bytes, principal: str, period_ms: int) -> int:
        """Sets the expiry, or deletes the token if the period is negative. Returns the expiry.

        Raises Refusal if there is no such token, or the principal may not change it.
        """

        def expired(token: DelegationToken | None) -> DelegationToken | None:
            return self._rules.expire(_existing(token), principal, period_ms=period_ms, now_ms=self._clock.now_ms())

        token = await self._update(self._id_of(hmac), expired)
        return self._clock.now_ms() if token is None else token.expiry_ms

    def _id_of(self, hmac: bytes) -> str:
        token_id = self._ids.get(hmac)
        if token_id is None:
            raise Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return token_id

    async def _update(self, token_id: str, change: _Change) -> DelegationToken | None:
        try:
            if await self._changes.write(lambda: self._try_update(token_id, change)):
                known = self._known.get(token_id)
                return None if known is None else known.token
        except NodeTooLarge as failure:
            raise Refusal(ErrorCode.INVALID_REQUEST, "The token has too many renewers") from failure
        text = f"Failed to update a delegation token after trying a maximum of {ATTEMPTS - 1} times"
        raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, text)

    async def _try_update(self, token_id: str, change: _Change) -> bool:
        """Returns False if another broker has changed the node since it was read."""
        path = token_znodes.token_path(token_id)
        (node,) = await self._tree.get_many([path])
        before = _token_of(token_id, node)
        after = change(before)
        if after != before:
            announcement = Create(token_znodes.TOKEN_CHANGE, token_id.encode(), sequential=True)
            try:
                await self._tree.multi([_write(path, node, after), announcement])
            except (BadVersion, NodeExists, NoNode):
                return False
        self._note(token_id, after)
        return True

    # Expiry

    async def run_expiry(self, interval_s: float, is_controller: Callable[[], bool]) -> None:
        """Deletes expired tokens while this broker is the controller."""
        while True:
            await trio.sleep(interval_s)
            if is_controller():
                await self.delete_expired()

    async def delete_expired(self) -> None:
        def without_expired(token: DelegationToken | None) -> DelegationToken | None:
            # Another broker may have renewed it.
            return None if token is None or token.is_expired(self._clock.now_ms()) else token

        now_ms = self._clock.now_ms()
        for token_id in [known.token.token_id for known in self._known.values() if known.token.is_expired(now_ms)]:
            try:
                if await self._update(token_id, without_expired) is None:
                    logger.info("Deleted expired delegation token %s", token_id)
            except Refusal as failure:
                logger.error("Could not delete expired delegation token %s: %s", token_id, failure.message)


def _token_of(token_id: str, node: Node | None) -> DelegationToken | None:
    return None if node is None else token_znodes.decode_token(token_id, node.data)


def _existing(token: DelegationToken | None) -> DelegationToken:
    if token is None:
        raise Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token


def _write(path: str, node: Node | None, token: DelegationToken | None) -> TreeOperation:
    if token is None:
        assert node is not None
        return Delete(path, node.stat.version)
    data = token_znodes.encode_token(token)
    return Create(path, data) if node is None else SetData(path, data, node.stat.version)
