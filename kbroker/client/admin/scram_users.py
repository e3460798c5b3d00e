"""Users with SCRAM credentials (DescribeUserScramCredentials, AlterUserScramCredentials)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import trio

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.controller_requests import send_to_controller
from kbroker.client.failures import BrokerRefusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api
from kbroker.security.credentials import SCRAM_HASHES, SCRAM_MECHANISMS, new_salt, salted_password

__all__ = ["ScramUser", "delete_scram_user", "describe_scram_users", "set_scram_password"]

DESCRIBE_USER_SCRAM_CREDENTIALS: Final = api(50)
ALTER_USER_SCRAM_CREDENTIALS: Final = api(51)

_NAMES: Final = {scram.number: scram.mechanism for scram in SCRAM_HASHES}


class ScramUser(NamedTuple):
    name: str
    iterations: dict[str, int]
    """Mechanism -> iterations, for each mechanism with which the user can log in."""


async def describe_scram_users(cluster: Cluster, names: Iterable[str] = ()) -> list[ScramUser]:
    """Returns the named users, or all. Raises BrokerRefusal if a named user has no credential."""
    from kbroker.protocol.messages.describe_user_scram_credentials import UserName

    connection = await cluster.any_connection()
    users = [UserName(name=name) for name in names] or None
    response = await connection.send(DESCRIBE_USER_SCRAM_CREDENTIALS, users=users)
    if response.error_code != ErrorCode.NONE:
        raise BrokerRefusal(response.error_code, "users", response.error_message)
    found = []
    for result in response.results:
        if result.error_code != ErrorCode.NONE:
            raise BrokerRefusal(result.error_code, f"user {result.user}", result.error_message)
        iterations = {
            _NAMES.get(info.mechanism, str(info.mechanism)): info.iterations for info in result.credential_infos
        }
        found.append(ScramUser(result.user, iterations))
    return sorted(found)


async def set_scram_password(
    cluster: Cluster, user: str, *, password: str, mechanisms: Sequence[str], iterations: int
) -> None:
    """Creates the user, or replaces its password for these mechanisms. Sends a hash, never the password."""
    from kbroker.protocol.messages.alter_user_scram_credentials import ScramCredentialUpsertion

    def upsertions() -> list[Any]:
        return [_upsertion(ScramCredentialUpsertion, user, password, name, iterations) for name in mechanisms]

    # In a thread: each hash takes milliseconds.
    await _alter(cluster, user, upsertions=await trio.to_thread.run_sync(upsertions))


def _upsertion(kind: Any, user: str, password: str, mechanism: str, iterations: int) -> Any:
    scram = SCRAM_MECHANISMS[mechanism]
    salt = new_salt()
    salted = salted_password(scram, password, salt=salt, iterations=iterations)
    return kind(name=user, mechanism=scram.number, iterations=iterations, salt=salt, salted_password=salted)


async def delete_scram_user(cluster: Cluster, user: str, mechanisms: Sequence[str]) -> None:
    from kbroker.protocol.messages.alter_user_scram_credentials import ScramCredentialDeletion

    numbers = [SCRAM_MECHANISMS[name].number for name in mechanisms]
    await _alter(cluster, user, deletions=[ScramCredentialDeletion(name=user, mechanism=number) for number in numbers])


async def _alter(cluster: Cluster, user: str, *, deletions: Sequence[Any] = (), upsertions: Sequence[Any] = ()) -> None:
    async def send(connection: BrokerConnection) -> Any:
        response = await connection.send(
            ALTER_USER_SCRAM_CREDENTIALS, deletions=list(deletions), upsertions=list(upsertions)
        )
        return response.results[0]

    await send_to_controller(cluster, f"user {user}", send)
