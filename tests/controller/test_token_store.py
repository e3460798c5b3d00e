"""Delegation tokens in the metadata tree: Kafka 3.9's nodes, announcements to other brokers, conflicts, expiry."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kbroker.controller.token_store import KnownToken, TokenStore
from kbroker.controller.trees.embedded_store import open_embedded_store
from kbroker.controller.trees.tree import Tree
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.security.credentials import SCRAM_HASHES, credential_of_password
from kbroker.security.delegation_token import TokenRules, token_password
from tests.controller.conftest import EmbeddedSessions, Sessions
from tests.controller.test_acl_store import SettableClock, wait_until
from tests.controller.unreliable_tree import open_unreliable

DAY = 86_400_000
RULES = TokenRules("key", 7 * DAY, DAY)
CHANGES = "/delegation_token/token_changes"


class CountedBytes:
    """Other bytes with each call, in place of random ones."""

    count = 0

    def __call__(self, size: int) -> bytes:
        type(self).count += 1
        return type(self).count.to_bytes(size, "big")


def store_of(tree: Tree, clock: SettableClock | None = None) -> TokenStore:
    return TokenStore(tree, RULES, clock or SettableClock(), random_bytes=CountedBytes(), timeout_s=10)


@asynccontextmanager
async def running(store: TokenStore) -> AsyncIterator[TokenStore]:
    await store.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        yield store
        nursery.cancel_scope.cancel()


async def create(store: TokenStore, owner: str = "User:a", *renewers: str) -> KnownToken:
    return await store.create(owner=owner, requester="User:q", renewers=renewers, lifetime_ms=-1)


def ids_of(store: TokenStore) -> set[str]:
    return {known.token.token_id for known in store.known()}


async def code_of(refused: object) -> int:
    with pytest.raises(Refusal) as refusal:
        await refused  # type: ignore[misc]
    return refusal.value.code


async def test_a_token_has_the_node_and_the_announcement_of_kafka(tree: Tree) -> None:
    clock = SettableClock()
    store = store_of(tree, clock)
    await store.load()
    known = await create(store, "User:CN=a,O=b", "User:r", "User:*")
    token = known.token
    assert len(token.token_id) == 22
    assert json.loads((await tree.get(f"/delegation_token/tokens/{token.token_id}")).data) == {
        "version": 3,
        "owner": "User%3ACN%3Da%2CO%3Db",
        "tokenRequester": "User%3Aq",
        "renewers": ["User%3Ar", "User%3A%2A"],
        "issueTimestamp": clock.ms,
        "maxTimestamp": clock.ms + 7 * DAY,
        "expiryTimestamp": clock.ms + DAY,
        "tokenId": token.token_id,
    }
    assert await tree.children(CHANGES) == ["token_change_0000000000"]
    assert (await tree.get(f"{CHANGES}/token_change_0000000000")).data == token.token_id.encode()


async def test_a_new_store_loads_all_tokens(sessions: Sessions, tree: Tree) -> None:
    first = store_of(tree)
    await first.load()
    created = [await create(first, f"User:{number}") for number in range(3)]
    second = store_of(await sessions.open())
    await second.load()
    assert {known.token for known in second.known()} == {known.token for known in created}
    for known in created:
        found = second.find(known.token.token_id)
        assert found is not None
        assert found.hmac == known.hmac


async def test_nodes_of_apache_kafka_are_read(tree: Tree) -> None:
    store = store_of(tree)
    await store.load()
    times = '"issueTimestamp":1,"maxTimestamp":9000000,"expiryTimestamp":8000000'
    for version, more in ((3, ',"tokenRequester":"User%3Aq"'), (1, "")):
        people = '"renewers":["User%3Ar"],"owner":"User%3Aa%20b"'
        text = f'{{{people},{times},"tokenId":"t{version}","version":{version}{more}}}'
        await tree.create(f"/delegation_token/tokens/t{version}", text.encode())
    other = store_of(tree)
    await other.load()
    tokens = {known.token.token_id: known.token for known in other.known()}
    assert tokens["t3"].requester == "User:q"
    assert tokens["t1"].requester == tokens["t1"].owner == "User:a b"
    assert tokens["t1"].renewers == ("User:r",)
    assert (tokens["t1"].issue_ms, tokens["t1"].expiry_ms, tokens["t1"].max_ms) == (1, 8_000_000, 9_000_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"version":4}',
        b'{"version":3,"tokenId":"other"}',
        b'{"version":1,"tokenId":"t","owner":"a","renewers":[],"issueTimestamp":1,"maxTimestamp":9,"expiryTimestamp":9}',
        b'{"version":1,"tokenId":"t","owner":"User%3Aa","renewers":[],"issueTimestamp":1,"maxTimestamp":"9"}',
    ],
)
async def test_a_node_that_cannot_be_read_is_no_token(
    tree: Tree, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of(tree)
    await store.load()
    await tree.create("/delegation_token/tokens/t", data)
    other = store_of(tree)
    await other.load()
    assert list(other.known()) == []
    assert "/delegation_token/tokens/t has no valid delegation token" in caplog.text


async def test_another_broker_follows_the_changes(sessions: Sessions, tree: Tree) -> None:
    async with running(store_of(tree)) as writer, running(store_of(await sessions.open())) as reader:
        known = await create(writer)
        token_id = known.token.token_id
        await wait_until(lambda: ids_of(reader) == {token_id})
        expiry = await reader.renew(known.hmac, "User:a", 3 * DAY)
        await wait_until(lambda: [known.token.expiry_ms for known in writer.known()] == [expiry])
        await reader.expire(known.hmac, "User:a", -1)
        assert ids_of(reader) == set()
        await wait_until(lambda: ids_of(writer) == set())
        assert await code_of(writer.renew(known.hmac, "User:a", -1)) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


async def test_a_change_is_made_to_the_token_in_the_tree(sessions: Sessions, tree: Tree) -> None:
    """The other broker has not seen yet that the token is gone, or that it ends sooner."""
    first, second = store_of(tree), store_of(await sessions.open())
    await first.load()
    known, other = await create(first), await create(first)
    await second.load()  # but does not run
    await first.expire(known.hmac, "User:a", -1)
    assert await code_of(second.renew(known.hmac, "User:a", -1)) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    await first.expire(other.hmac, "User:a", 0)
    second._clock.ms += 1  # type: ignore[attr-defined]
    assert await code_of(second.renew(other.hmac, "User:a", -1)) == ErrorCode.DELEGATION_TOKEN_EXPIRED


async def test_two_brokers_change_one_token_at_the_same_time(sessions: Sessions, tree: Tree) -> None:
    async with running(store_of(tree)) as first, running(store_of(await sessions.open())) as second:
        known = await create(first)
        await wait_until(lambda: bool(ids_of(second)))
        async with trio.open_nursery() as nursery:
            for number in range(4):
                for store in (first, second):
                    nursery.start_soon(store.renew, known.hmac, "User:a", DAY + number)
        stored = json.loads((await tree.get(f"/delegation_token/tokens/{known.token.token_id}")).data)

        def is_known_everywhere() -> bool:
            return {each.token.expiry_ms for store in (first, second) for each in store.known()} == {
                stored["expiryTimestamp"]
            }

        await wait_until(is_known_everywhere)


async def test_a_new_session_reads_what_changed_meanwhile(sessions: Sessions, tree: Tree) -> None:
    other = store_of(await sessions.open())
    async with running(store_of(tree)) as store:
        known = await create(store)
        await other.load()
        await other.expire(known.hmac, "User:a", -1)
        created = await create(other)
        for name in await tree.children(CHANGES):
            await tree.delete(f"{CHANGES}/{name}")  # as if they had expired
        await sessions.expire(tree)
        await wait_until(lambda: ids_of(store) == {created.token.token_id})


async def test_an_expired_token_is_found_no_more_and_then_deleted(tree: Tree) -> None:
    clock = SettableClock()
    store = store_of(tree, clock)
    await store.load()
    old = await create(store)
    clock.ms += DAY
    new = await create(store)
    assert store.find(old.token.token_id) is old
    clock.ms += 1
    assert store.find(old.token.token_id) is None
    assert len(ids_of(store)) == 2
    await store.delete_expired()
    assert ids_of(store) == {new.token.token_id}
    assert await tree.children("/delegation_token/tokens") == [new.token.token_id]


async def test_a_token_that_another_broker_has_renewed_is_not_deleted(sessions: Sessions, tree: Tree) -> None:
    clock = SettableClock()
    controller, other = store_of(tree, clock), store_of(await sessions.open(), clock)
    await controller.load()
    known = await create(controller)
    await other.load()
    await other.renew(known.hmac, "User:a", 2 * DAY)
    clock.ms += DAY + 1
    await controller.delete_expired()
    assert [known.token.expiry_ms for known in controller.known()] == [clock.ms + DAY - 1]


async def test_only_the_controller_deletes_expired_tokens(tree: Tree, autojump_clock: trio.testing.MockClock) -> None:
    clock = SettableClock()
    store = store_of(tree, clock)
    await store.load()
    await create(store)
    clock.ms += 2 * DAY
    is_controller = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run_expiry, 3600, lambda: is_controller)
        await trio.sleep(3 * 3600 + 1)
        assert len(ids_of(store)) == 1
        is_controller = True
        await trio.sleep(3600)
        nursery.cancel_scope.cancel()
    assert ids_of(store) == set()


async def test_credentials_fit_the_password_and_are_computed_once(tree: Tree) -> None:
    store = store_of(tree)
    await store.load()
    known = await create(store)
    for scram in SCRAM_HASHES:
        credential = known.credential(scram)
        expected = credential_of_password(scram, token_password(known.hmac), salt=credential.salt)
        assert credential == expected
        assert known.credential(scram) is credential


async def test_tokens_stay_valid_while_the_tree_is_away_and_changes_are_refused() -> None:
    async with open_embedded_store(":memory:") as embedded:
        tree = await open_unreliable(EmbeddedSessions(embedded))
        async with running(store_of(tree)) as store:
            known = await create(store)
            tree.suspend()
            assert store.find(known.token.token_id) is known
            assert await code_of(create(store)) == ErrorCode.REQUEST_TIMED_OUT
            tree.resume()


async def test_more_renewers_than_a_node_can_hold_are_refused(tree: Tree) -> None:
    store = store_of(tree)
    await store.load()
    assert await code_of(create(store, "User:a", *[f"User:{'x' * 1000}{n}" for n in range(1000)])) == (
        ErrorCode.INVALID_REQUEST
    )
    assert ids_of(store) == set()
