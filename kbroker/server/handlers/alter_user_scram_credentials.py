"""AlterUserScramCredentials (51), v0: sets and deletes SCRAM credentials of users (KIP-554).

The client sends salt and salted password, never the password. All changes of one user are made together, or none. In a
cluster only the controller handles it. Connections that are logged in stay logged in, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_user_scram_credentials as messages
from kbroker.security.credentials import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_HASHES,
    ScramHash,
    credential_of_salted_password,
    format_credential,
)
from kbroker.server.access.permissions import allows_cluster
from kbroker.server.authentication.stored_credentials import user_entity
from kbroker.server.requests.error_fields import error_fields
from kbroker.time_slice import TimeSlice

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

_HASHES = {scram.number: scram for scram in SCRAM_HASHES}


async def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.ALTER):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    deletions: dict[str, list[Any]] = {}
    upsertions: dict[str, list[Any]] = {}
    results = []
    time_slice = TimeSlice(context.clock)
    for changes, by_user in ((request.body.deletions, deletions), (request.body.upsertions, upsertions)):
        for change in changes:
            by_user.setdefault(change.name, []).append(change)
            await time_slice.checkpoint_if_over()
    for user in deletions | upsertions:
        outcome: Refusal | None = None
        try:
            await _alter(context, user, deletions.get(user, ()), upsertions.get(user, ()))
        except Refusal as refusal:
            outcome = refusal.with_traceback(None)  # its frames would stay in memory until the response
        results.append(_result(user, outcome))
        await time_slice.checkpoint_if_over()
    return messages.RESPONSE(results=results)


def refuse(request: Request, code: int, message: str | None) -> Any:
    refusal = Refusal(code, message)
    users = dict.fromkeys(change.name for change in (*request.body.deletions, *request.body.upsertions))
    return messages.RESPONSE(results=[_result(user, refusal) for user in users])


async def _alter(context: Context, user: str, deletions: Sequence[Any], upsertions: Sequence[Any]) -> None:
    _check(user, deletions, upsertions)
    new = {_HASHES[upsertion.mechanism].mechanism: _stored(upsertion) for upsertion in upsertions}
    deleted = [_HASHES[deletion.mechanism].mechanism for deletion in deletions]

    def update(current: Mapping[str, str]) -> dict[str, str]:
        if any(mechanism not in current for mechanism in deleted):
            message = "Attempt to delete a user credential that does not exist"
            raise Refusal(ErrorCode.RESOURCE_NOT_FOUND, message)
        return {name: text for name, text in current.items() if name not in deleted} | new

    await context.controller.update_entity_configs(user_entity(user), update, validate_only=False)


def _check(user: str, deletions: Sequence[Any], upsertions: Sequence[Any]) -> None:
    """Raises Refusal if a change of the user is invalid."""
    if not user:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if any(change.mechanism not in _HASHES for change in (*deletions, *upsertions)):
        raise Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if any(upsertion.iterations < MIN_ITERATIONS for upsertion in upsertions):
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if any(upsertion.iterations > MAX_ITERATIONS for upsertion in upsertions):
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    counts = Counter(change.mechanism for change in (*deletions, *upsertions))
    if max(counts.values()) > 1:
        message = "A user credential cannot be altered twice in the same request"
        raise Refusal(ErrorCode.DUPLICATE_RESOURCE, message)


def _stored(upsertion: Any) -> str:
    scram: ScramHash = _HASHES[upsertion.mechanism]
    salt, salted = bytes(upsertion.salt), bytes(upsertion.salted_password)
    credential = credential_of_salted_password(scram, salted, salt=salt, iterations=upsertion.iterations)
    return format_credential(credential)


def _result(user: str, refusal: Refusal | None) -> Any:
    return messages.AlterUserScramCredentialsResult(user=user, **error_fields(refusal))
