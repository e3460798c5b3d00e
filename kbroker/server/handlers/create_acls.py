"""CreateAcls (30), v0-3: adds ACLs (KIP-140). v1: pattern types (KIP-290). v3: the resource type USER (KIP-373).

An entry that exists already is created again without an error. The other brokers get to know of it by the tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.messages import create_acls as messages
from kbroker.server.access.acl_requests import acls_of, binding_of, check_codes
from kbroker.server.requests.error_fields import error_fields
from kbroker.time_slice import respond_in_slices

if TYPE_CHECKING:
    from kbroker.controller.acl_store import AclStore
    from kbroker.security.acls.entries import AclBinding
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    creations = request.body.creations
    for creation in creations:
        codes = (creation.resource_type, creation.resource_pattern_type, creation.operation, creation.permission_type)
        check_codes(*codes)
    acls = acls_of(context, request, AclOperation.ALTER, without_authorizer="No Authorizer is configured.")
    return respond_in_slices(context.clock, binding_of, creations, lambda wanted: _create(acls, wanted))


async def _create(acls: AclStore, wanted: list[AclBinding | Refusal]) -> Any:
    valid = [binding for binding in wanted if not isinstance(binding, Refusal)]
    outcomes = iter(await acls.add(valid))
    results = [binding if isinstance(binding, Refusal) else next(outcomes) for binding in wanted]
    return messages.RESPONSE(results=[messages.AclCreationResult(**error_fields(refusal)) for refusal in results])


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        results=[messages.AclCreationResult(error_code=code, error_message=message) for _ in request.body.creations]
    )
