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


async def test_a_producer_without_rights_is_told_which_right_it_needs(call: Call, broker: RunningBroker) -> None:
    await call("topics", "create", "t")
    broker.faults.fail("InitProducerId", code="CLUSTER_AUTHORIZATION_FAILED")
    code, _, err = await call("produce", "t", stdin=b"x\n")
    reason = "Producing needs the right to WRITE to a topic, or IDEMPOTENT_WRITE on the cluster."
    assert (code, err) == (1, f"kbroker: topic t: {reason} (CLUSTER_AUTHORIZATION_FAILED)\n")
