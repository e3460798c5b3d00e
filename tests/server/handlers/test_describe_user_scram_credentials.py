"""DescribeUserScramCredentials: nobody has any."""

from __future__ import annotations

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_user_scram_credentials as messages
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_USER_SCRAM_CREDENTIALS = 50


async def test_a_user_has_no_credentials(broker: HandlerBroker) -> None:
    users = [messages.UserName(name=name) for name in ("alice", "bob", "alice")]
    answer = await broker.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=users)
    assert [(each.user, each.error_code) for each in answer.results] == [
        ("alice", ErrorCode.DUPLICATE_RESOURCE),
        ("bob", ErrorCode.RESOURCE_NOT_FOUND),
    ]


async def test_there_is_nobody_to_list(broker: HandlerBroker) -> None:
    answer = await broker.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
    assert (answer.error_code, answer.results) == (0, [])


async def test_who_may_not_describe_the_cluster_is_refused(broker: HandlerBroker) -> None:
    broker.allow()
    answer = await broker.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
