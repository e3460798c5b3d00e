"""DescribeUserScramCredentials: no user has credentials."""

from __future__ import annotations

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_user_scram_credentials as messages
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_USER_SCRAM_CREDENTIALS = 50


async def test_a_user_has_no_credentials(broker: HandlerBroker) -> None:
    users = [messages.UserName(name=name) for name in ("alice", "bob", "alice")]
    answer = await broker.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=users)
    assert [(result.user, result.error_code) for result in answer.results] == [
        ("alice", ErrorCode.DUPLICATE_RESOURCE),
        ("bob", ErrorCode.RESOURCE_NOT_FOUND),
    ]


async def test_no_user_is_listed(broker: HandlerBroker) -> None:
    answer = await broker.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
    assert (answer.error_code, answer.results) == (0, [])


async def test_the_describe_permission_is_required(broker: HandlerBroker) -> None:
    broker.allow()
    answer = await broker.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
