"""DescribeAcls, CreateAcls, DeleteAcls: without an authorizer, SECURITY_DISABLED in the shape of each API."""

from __future__ import annotations

import pytest

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_acls, delete_acls
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31


@pytest.mark.parametrize("version", range(4))
async def test_acl_requests_get_security_disabled(broker: HandlerBroker, version: int) -> None:
    seen = await broker.ask(DESCRIBE_ACLS, version)
    assert (seen.error_code, seen.resources) == (ErrorCode.SECURITY_DISABLED, [])
    assert seen.error_message
    made = await broker.ask(CREATE_ACLS, version, creations=[create_acls.AclCreation(), create_acls.AclCreation()])
    assert [result.error_code for result in made.results] == [54, 54]
    gone = await broker.ask(DELETE_ACLS, version, filters=[delete_acls.DeleteAclsFilter()])
    assert [(result.error_code, result.matching_acls) for result in gone.filter_results] == [(54, [])]
