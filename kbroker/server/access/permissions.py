"""Checks of handlers: ask the authorizer for the principal and host of a request, and log the decision.

`quiet` suppresses the audit line, where Kafka does so: for questions whose denial refuses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kbroker.protocol.acl_codes import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.client_session import ClientSession
    from kbroker.server.requests.request import Request
    from kbroker.server.wire.request_slot import RequestSlot

__all__ = [
    "allows_any_topic",
    "allows_cluster",
    "allows_group",
    "allows_repeated",
    "allows_token",
    "allows_topic",
    "allows_transactional_id",
    "allows_user",
    "not_authorized_text",
]


_TOPIC: Final = ResourceType.TOPIC  # reading the member of an enum takes as long as the decision


def allows_topic(
    context: Context, request: Request, operation: AclOperation, name: str, *, quiet: bool = False
) -> bool:
    return context.authorizer.allows_all or _allows(context, request, operation, ResourceType.TOPIC, name, quiet)


def allows_group(
    context: Context, request: Request, operation: AclOperation, group_id: str, *, quiet: bool = False
) -> bool:
    return context.authorizer.allows_all or _allows(context, request, operation, ResourceType.GROUP, group_id, quiet)


def allows_cluster(context: Context, request: Request, operation: AclOperation, *, quiet: bool = False) -> bool:
    return context.authorizer.allows_all or _allows(
        context, request, operation, ResourceType.CLUSTER, CLUSTER_NAME, quiet
    )


def allows_transactional_id(context: Context, request: Request, operation: AclOperation, transactional_id: str) -> bool:
    return context.authorizer.allows_all or _allows(
        context, request, operation, ResourceType.TRANSACTIONAL_ID, transactional_id, False
    )


def allows_token(context: Context, request: Request, operation: AclOperation, token_id: str) -> bool:
    return context.authorizer.allows_all or _allows(
        context, request, operation, ResourceType.DELEGATION_TOKEN, token_id, False
    )


def allows_user(context: Context, request: Request, operation: AclOperation, principal: str) -> bool:
    """Asks for an operation on a user: its name as a resource is the whole principal, for example User:alice."""
    return context.authorizer.allows_all or _allows(context, request, operation, ResourceType.USER, principal, False)


def allows_any_topic(context: Context, request: Request, operation: AclOperation) -> bool:
    """Whether the client may do this with any topic, also with one that does not exist."""
    is_allowed = context.authorizer.allows_any(request.principal, request.client_host, operation, ResourceType.TOPIC)
    _audit(context, request, operation, ResourceType.TOPIC, "*", is_allowed=is_allowed)
    return is_allowed


def allows_repeated(
    context: Context, session: ClientSession, slot: RequestSlot, operation: AclOperation, topic: str
) -> bool:
    """Whether a request that was recognised by its bytes may be answered without its handler. Hot path.

    Callers check `allows_all` before, which saves a call. The right is asked for each time: it may have been revoked.
    If it is denied, the handler writes the audit line.
    """
    authorizer = context.authorizer
    return (
        authorizer.allows(session.principal, slot.connection.peer_host, operation, _TOPIC, topic)
        and not authorizer.logs_all
    )


def not_authorized_text(request: Request) -> str:
    """Returns Kafka's message of a refused operation on the cluster. Kafka prints more fields of the request."""
    session = f"Session({request.principal},/{request.client_host})"
    listener = f"ListenerName({request.listener_name})"
    return f"Request Request(session={session}, listenerName={listener}) is not authorized."


def _allows(
    context: Context, request: Request, operation: AclOperation, resource: ResourceType, name: str, quiet: bool
) -> bool:
    is_allowed = context.authorizer.allows(request.principal, request.client_host, operation, resource, name)
    if not quiet:
        _audit(context, request, operation, resource, name, is_allowed=is_allowed)
    return is_allowed


def _audit(
    context: Context, request: Request, operation: AclOperation, resource: ResourceType, name: str, *, is_allowed: bool
) -> None:
    if not is_allowed or context.authorizer.logs_all:
        from kbroker.security.acls.decision import Access  # a broker without authorizer loads no rules of ACLs

        access = Access(request.principal, request.client_host, operation, resource, name)
        context.authorizer.audit(access, request.route.api.name, is_allowed=is_allowed)
