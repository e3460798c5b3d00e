"""DescribeUserScramCredentials (50), v0: mechanisms and iterations of users, without salts and keys (KIP-554).

No list, or an empty one, means all users. Kafka's ConfigCommand calls this API before it shows the quotas of users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_user_scram_credentials as messages
from kbroker.server.access.permissions import allows_cluster
from kbroker.server.authentication.stored_credentials import credentials_of, user_with_credential
from kbroker.time_slice import finish_in_slices

if TYPE_CHECKING:
    from kbroker.controller.image import Image
    from kbroker.security.credentials import ScramCredential, ScramHash
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.DESCRIBE):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    return finish_in_slices(context.clock, _steps(context.controller.image, request.body.users or ()))


def _steps(image: Image, users: Sequence[Any]) -> Generator[None, None, Any]:
    counts: Counter[str] = Counter()
    for user in users:
        counts[user.name] += 1
        yield
    if not users:
        for entity, configs in image.entity_configs.items():
            name = user_with_credential(entity, configs)
            if name is not None:
                counts[name] = 1
            yield
    results = []
    for name in counts if users else sorted(counts):
        credentials = credentials_of(image, name)
        if users or credentials:
            results.append(_result(name, counts[name], credentials))
        yield
    return messages.RESPONSE(error_message=None, results=results)


def refuse(request: Request, code: int, message: str | None) -> Any:
    results = [
        messages.DescribeUserScramCredentialsResult(user=user.name, error_code=code, error_message=message)
        for user in request.body.users or ()
    ]
    return messages.RESPONSE(error_code=code, error_message=message, results=results)


def _result(name: str, count: int, credentials: Mapping[ScramHash, ScramCredential]) -> Any:
    if count > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return messages.DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
    if not credentials:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {name}"
        return messages.DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
    infos = [
        messages.CredentialInfo(mechanism=scram.number, iterations=credential.iterations)
        for scram, credential in credentials.items()
    ]
    return messages.DescribeUserScramCredentialsResult(user=name, error_message=None, credential_infos=infos)
