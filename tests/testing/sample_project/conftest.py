"""What all brokers of this project's tests have in common."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def kbroker_settings() -> dict[str, Any]:
    return {"auto_create_topics_enable": False}
