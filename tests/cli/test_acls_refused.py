"""`kbroker acls` against a broker that has no authorizer, or refuses."""

from __future__ import annotations

from kbroker.testing.running_broker import RunningBroker
from tests.cli.conftest import Call


async def test_a_broker_without_authorizer_says_so_in_one_line(call: Call, broker: RunningBroker) -> None:
    assert await call("acls", "list") == (
        1,
        "",
        "kbroker: ACLs: No Authorizer is configured on the broker (SECURITY_DISABLED)\n",
    )
    code, _, err = await call("acls", "allow", "User:a", "read", "--topic", "t")
    entry = "User:a Allow Read from * on Topic:LITERAL:t"
    assert (code, err) == (1, f"kbroker: ACL '{entry}': No Authorizer is configured. (SECURITY_DISABLED)\n")
