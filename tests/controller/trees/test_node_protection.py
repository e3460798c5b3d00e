"""The table of Kafka's ZkData."""

from __future__ import annotations

import pytest

from kbroker.controller.trees.node_protection import Protection, protection_of


@pytest.mark.parametrize(
    ("path", "protection"),
    [
        ("/consumers", Protection.OPEN),
        ("/consumers/group", Protection.READABLE),
        ("/brokers/ids/1", Protection.READABLE),
        ("/config", Protection.READABLE),
        ("/config/topics/orders", Protection.READABLE),
        ("/kafka-acl/Topic/orders", Protection.READABLE),
        ("/config/users", Protection.SECRET),
        ("/config/users/alice/clients/a", Protection.SECRET),
        ("/config/brokers/1", Protection.SECRET),
        ("/delegation_token", Protection.READABLE),
        ("/delegation_token/tokens/a", Protection.SECRET),
    ],
)
def test_who_may_do_what_with_a_node(path: str, protection: Protection) -> None:
    assert protection_of(path) is protection
