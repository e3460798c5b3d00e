"""Requests that are recognised by their bytes obey the authorizer: a right counts until it is revoked, no longer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.security.acls.decision import AclRules
from kbroker.security.acls.entries import AclEntry, ResourcePattern
from kbroker.security.acls.index import AclIndex
from kbroker.security.acls.text import parse_acl
from kbroker.server.access.acl_authorizer import AclAuthorizer
from tests.log.batches import make_batch
from tests.server.handlers.harness import parse_response
from tests.server.requests.twins import (
    FETCH,
    LATEST,
    Twins,
    fetch_frame,
    fetched,
    list_offsets_frame,
    listed,
    produce_frame,
    produced,
)

TOPIC_AUTHORIZATION_FAILED = 29


class Rights:
    """ACLs of both twins."""

    def __init__(self, twins: Twins) -> None:
        self._indexes = [AclIndex(AclRules()) for _ in twins.brokers]
        for broker, index in zip(twins.brokers, self._indexes, strict=True):
            broker.context.authorizer = AclAuthorizer(index, broker.clock)

    def set(self, lines: Sequence[str]) -> None:
        for index in self._indexes:
            granted: dict[ResourcePattern, set[AclEntry]] = {pattern: set() for pattern in index.patterns()}
            for pattern, entry in [binding for line in lines for binding in parse_acl(line)]:
                granted.setdefault(pattern, set()).add(entry)
            index.replace({pattern: frozenset(entries) for pattern, entries in granted.items()})


@pytest.fixture
def rights(twins: Twins) -> Rights:
    return Rights(twins)


ALL = "allow User:ANONYMOUS ALL topic t"


async def test_a_recognised_produce_is_refused_once_the_right_is_revoked(twins: Twins, rights: Rights) -> None:
    rights.set([ALL])
    twins.ask_unknown(produce_frame(9, make_batch(b"v")))
    (answer,) = twins.ask_known(produce_frame(9, make_batch(b"v")))
    assert produced(9, answer) == (0, 1)
    rights.set(["allow User:ANONYMOUS READ topic t"])
    (answer,) = twins.ask_unknown(produce_frame(9, make_batch(b"v")))
    assert produced(9, answer)[0] == TOPIC_AUTHORIZATION_FAILED
    rights.set([ALL])
    (answer,) = twins.ask(produce_frame(9, make_batch(b"v")))
    assert produced(9, answer) == (0, 2)


async def test_a_recognised_fetch_is_refused_once_the_right_is_revoked(twins: Twins, rights: Rights) -> None:
    rights.set([ALL])
    twins.ask(produce_frame(9, make_batch(b"v")))
    twins.ask_unknown(fetch_frame(12, 0))
    (answer,) = twins.ask_known(fetch_frame(12, 0))
    assert fetched(12, answer)[0] == 0
    rights.set(["allow User:ANONYMOUS WRITE topic t"])
    (answer,) = twins.ask_unknown(fetch_frame(12, 0))
    assert fetched(12, answer) == (TOPIC_AUTHORIZATION_FAILED, b"")


async def test_a_fetch_session_ends_to_send_records_once_the_right_is_revoked(twins: Twins, rights: Rights) -> None:
    rights.set([ALL])
    twins.ask(produce_frame(9, make_batch(b"v")), produce_frame(9, make_batch(b"w")))
    (answer,) = twins.ask(fetch_frame(13, 0, session_epoch=0))
    session = parse_response(FETCH, 13, answer).session_id
    assert session
    twins.ask(fetch_frame(13, 0, session_id=session, session_epoch=1))
    (answer,) = twins.ask_known(fetch_frame(13, 0, session_id=session, session_epoch=2))
    assert fetched(13, answer)[0] == 0
    rights.set([])
    (answer,) = twins.ask_unknown(fetch_frame(13, 0, session_id=session, session_epoch=3))
    assert fetched(13, answer) == (TOPIC_AUTHORIZATION_FAILED, b"")


async def test_recognised_offsets_are_refused_once_the_right_is_revoked(twins: Twins, rights: Rights) -> None:
    rights.set([ALL])
    twins.ask_unknown(list_offsets_frame(9, LATEST))
    (answer,) = twins.ask_known(list_offsets_frame(9, LATEST))
    assert listed(9, answer)[0] == 0
    rights.set(["deny User:ANONYMOUS DESCRIBE topic t", ALL])
    (answer,) = twins.ask_unknown(list_offsets_frame(9, LATEST))
    assert listed(9, answer) == (TOPIC_AUTHORIZATION_FAILED, -1, -1)


async def test_what_one_client_has_taught_is_not_open_to_another(twins: Twins, rights: Rights) -> None:
    rights.set(["allow User:a ALL topic t"])
    for peer in twins.peers:
        peer.session.principal = "User:a"
    frames = [produce_frame(9, make_batch(b"v")), fetch_frame(12, 0), list_offsets_frame(9)]
    for _ in range(2):
        twins.ask(*frames)
    twins.ask_known(*frames)
    for peer in twins.peers:
        peer.session.principal = "User:b"  # the same bytes, and the same shapes
    answers = twins.ask_unknown(*frames)
    codes = [produced(9, answers[0])[0], fetched(12, answers[1])[0], listed(9, answers[2])[0]]
    assert codes == [TOPIC_AUTHORIZATION_FAILED] * 3


async def test_with_a_verbose_audit_log_no_request_skips_its_line(
    twins: Twins, rights: Rights, caplog: pytest.LogCaptureFixture
) -> None:
    rights.set([ALL])
    twins.ask(produce_frame(9, make_batch(b"v")))
    with caplog.at_level("DEBUG", "kafka.authorizer.logger"):
        twins.ask_unknown(produce_frame(9, make_batch(b"v")))
    assert "is Allowed Operation = Write" in caplog.text
