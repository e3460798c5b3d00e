"""SCRAM credentials of users, as the admin clients of librdkafka and of kafka-python set and delete them."""

from __future__ import annotations

import os
from typing import Any

import kafka.admin as python
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

ITERATIONS = 4096
RESOURCE_NOT_FOUND = 91


@pytest.fixture
def user() -> str:
    return f"user-{os.urandom(4).hex()}"


def code_of(future: Any) -> int:
    with pytest.raises(KafkaException) as raised:
        future.result()
    error: KafkaError = raised.value.args[0]
    return int(error.code())


def test_confluent_kafka_sets_describes_and_deletes_a_credential(admin: Any, user: str) -> None:
    mechanism = ScramMechanism.SCRAM_SHA_256
    info = ScramCredentialInfo(mechanism, ITERATIONS)
    wanted = UserScramCredentialUpsertion(user, info, b"secret", b"salt")
    admin.alter_user_scram_credentials([wanted])[user].result()
    (found,) = admin.describe_user_scram_credentials([user])[user].result().scram_credential_infos
    assert (found.mechanism, found.iterations) == (mechanism, ITERATIONS)
    deletion = UserScramCredentialDeletion(user, mechanism)
    admin.alter_user_scram_credentials([deletion])[user].result()
    assert code_of(admin.describe_user_scram_credentials([user])[user]) == RESOURCE_NOT_FOUND
    assert code_of(admin.alter_user_scram_credentials([deletion])[user]) == RESOURCE_NOT_FOUND


def test_kafka_python_sets_and_deletes_a_credential(python_admin: Any, user: str) -> None:
    mechanism = python.ScramMechanism.SCRAM_SHA_512
    wanted = python.UserScramCredentialUpsertion(user, mechanism, "secret", iterations=ITERATIONS)
    assert python_admin.alter_user_scram_credentials([wanted]) == {user: None}
    assert user in python_admin.describe_user_scram_credentials([user])
    deletion = python.UserScramCredentialDeletion(user, mechanism)
    assert python_admin.alter_user_scram_credentials([deletion]) == {user: None}
    assert python_admin.alter_user_scram_credentials([deletion])[user] is not None
