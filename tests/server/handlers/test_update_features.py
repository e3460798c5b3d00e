"""UpdateFeatures: every update is refused."""

from __future__ import annotations

import pytest

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import update_features as messages
from tests.server.handlers.harness import HandlerBroker

UPDATE_FEATURES = 57


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(("level", "upgrade_type"), [(1, 1), (0, 3), (-1, 1), (1, 9)])
async def test_no_feature_can_be_set(broker: HandlerBroker, version: int, level: int, upgrade_type: int) -> None:
    update = messages.FeatureUpdateKey(
        feature="transaction.version", max_version_level=level, upgrade_type=upgrade_type
    )
    answer = await broker.ask(UPDATE_FEATURES, version, feature_updates=[update])
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "transaction.version" in answer.error_message


async def test_a_request_without_updates_succeeds(broker: HandlerBroker) -> None:
    assert (await broker.ask(UPDATE_FEATURES, 2)).error_code == 0


async def test_the_alter_permission_is_required(broker: HandlerBroker) -> None:
    broker.allow()
    assert (await broker.ask(UPDATE_FEATURES, 2)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
