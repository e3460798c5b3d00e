"""`kbroker acls`: allows and denies operations, lists and removes ACL entries, and explains decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.command import Command, Function, Group, bootstrap_option, json_option, yes_option
from kbroker.cli.output import confirm, pluralize, print_json, print_table
from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.errors import UserError

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.protocol.acl_codes import AclOperation, PermissionType, ResourceType
    from kbroker.security.acls.decision import AclDecision
    from kbroker.security.acls.entries import AclBinding, ResourcePattern
    from kbroker.security.acls.filters import AclFilter

__all__ = ["command"]

_RESOURCES = {
    "topic": "TOPIC",
    "group": "GROUP",
    "transactional_id": "TRANSACTIONAL_ID",
    "user": "USER",
    "token": "DELEGATION_TOKEN",
}


@click.group("acls", cls=Group)
def command() -> None:
    """Allow and deny operations, list and remove ACLs, and explain decisions."""


_ABOUT_RESOURCES = {
    "topic": "Topic. A trailing '*' makes it a prefix; '*' covers all topics.",
    "group": "Consumer group. A trailing '*' makes it a prefix.",
    "transactional-id": "Transactional id. A trailing '*' makes it a prefix.",
    "user": "User with this name, as User:NAME, for operations on tokens.",
    "token": "Delegation token with this id.",
}


def _resource_options(function: Function) -> Function:
    """Adds an option for each type of resource, of which the command takes one."""
    return _add_resource_options(function, multiple=False)


def _resources_options(function: Function) -> Function:
    """Adds a repeatable option for each type of resource, as kafka-acls has them."""
    return _add_resource_options(function, multiple=True)


def _add_resource_options(function: Function, *, multiple: bool) -> Function:
    function = click.option("--cluster", "is_cluster", is_flag=True, help="The cluster itself.")(function)
    for option, about in reversed(_ABOUT_RESOURCES.items()):
        text = f"{about} Repeatable." if multiple else about
        function = click.option(f"--{option}", metavar="NAME", multiple=multiple, help=text)(function)
    return function


def _parse_operations(_ctx: click.Context, _argument: click.Parameter, text: str) -> list[AclOperation]:
    from kbroker.security.acls.text import parse_operations

    try:
        return parse_operations(text)
    except UserError as problem:
        raise click.BadParameter(str(problem)) from None


def _parse_principal(_ctx: click.Context, _argument: click.Parameter, text: str | None) -> str | None:
    from kbroker.security.acls.text import parse_principal

    try:
        return None if text is None else parse_principal(text)
    except UserError as problem:
        raise click.BadParameter(str(problem)) from None


_principal_argument = click.argument("principal", metavar="PRINCIPAL", callback=_parse_principal)
_operations_argument = click.argument("operations", metavar="OPERATION,...", callback=_parse_operations)
_hosts_option = click.option(
    "--host",
    "hosts",
    metavar="ADDRESS",
    multiple=True,
    default=("*",),
    help="Address of the client. Repeatable. [default: *]",
)


@command.command(
    "allow",
    cls=Command,
    examples=[
        ("kbroker acls allow User:alice read,write --topic orders", "Let a user read and write a topic"),
        ("kbroker acls allow User:alice read --group 'billing-*'", "Let a user join groups with a prefix"),
        ("kbroker acls allow User:alice read --topic orders --group billing", "Let a user read a topic in a group"),
        ("kbroker acls allow User:admin all --cluster", "Let a user manage the cluster"),
    ],
)
@_principal_argument
@_operations_argument
@_resources_options
@_hosts_option
@bootstrap_option
def allow(
    principal: str, operations: Sequence[AclOperation], hosts: Sequence[str], bootstrap: str, **resources: Any
) -> None:
    """Allow operations on resources.

    PRINCIPAL is for example User:alice; User:* stands for all. OPERATION is one of read, write, create, delete, alter,
    describe, cluster-action, describe-configs, alter-configs, idempotent-write, all, and others of Kafka.
    """
    from kbroker.protocol.acl_codes import PermissionType

    _create(bootstrap, PermissionType.ALLOW, principal, operations, hosts, _patterns(resources))


@command.command(
    "deny",
    cls=Command,
    examples=[("kbroker acls deny User:bob all --topic 'salaries-*'", "Keep a user away from topics with a prefix")],
)
@_principal_argument
@_operations_argument
@_resources_options
@_hosts_option
@bootstrap_option
def deny(
    principal: str, operations: Sequence[AclOperation], hosts: Sequence[str], bootstrap: str, **resources: Any
) -> None:
    """Deny operations on resources. A denial wins over every permission."""
    from kbroker.protocol.acl_codes import PermissionType

    _create(bootstrap, PermissionType.DENY, principal, operations, hosts, _patterns(resources))


def _create(
    bootstrap: str,
    permission: PermissionType,
    principal: str,
    operations: Sequence[AclOperation],
    hosts: Sequence[str],
    patterns: Sequence[ResourcePattern],
) -> None:
    from kbroker.security.acls.entries import AclBinding, AclEntry

    bindings = [
        AclBinding(pattern, AclEntry(principal, host, operation, permission))
        for pattern in patterns
        for host in hosts
        for operation in operations
    ]

    async def call(cluster: Cluster) -> None:
        from kbroker.client.admin.acls import create_acls

        await create_acls(cluster, bindings)

    run_with_cluster(bootstrap, call)
    click.echo(f"Added {pluralize(len(bindings), 'ACL')}.")


@command.command(
    "list",
    cls=Command,
    examples=[
        ("kbroker acls list", "List all ACLs"),
        ("kbroker acls list --principal User:alice --json", "List the ACLs of a user as JSON"),
        ("kbroker acls list --topic orders --covering", "List all ACLs that apply to a topic"),
    ],
)
@click.option("--principal", metavar="PRINCIPAL", callback=_parse_principal, help="Only ACLs of this principal.")
@_resource_options
@click.option("--covering", is_flag=True, help="Also prefixes and '*' that cover the name.")
@json_option
@bootstrap_option
def list_acls(principal: str | None, covering: bool, as_json: bool, bootstrap: str, **resource: Any) -> None:
    """List ACLs."""
    wanted = _filter(principal, resource, is_covering=covering)

    async def call(cluster: Cluster) -> list[AclBinding]:
        from kbroker.client.admin.acls import describe_acls

        return await describe_acls(cluster, wanted)

    found = run_with_cluster(bootstrap, call)
    if as_json:
        print_json([_as_json(binding) for binding in found])
    elif found:
        print_table(["principal", "permission", "operation", "resource", "name", "host"], [*map(_row, found)])
    else:
        click.echo("No ACLs.", err=True)


@command.command(
    "remove",
    cls=Command,
    examples=[
        ("kbroker acls remove --principal User:alice --topic orders --yes", "Remove a user's entries of a topic"),
    ],
)
@click.option("--principal", metavar="PRINCIPAL", callback=_parse_principal, help="Only ACLs of this principal.")
@_resource_options
@yes_option
@bootstrap_option
def remove(principal: str | None, yes: bool, bootstrap: str, **resource: Any) -> None:
    """Remove the ACLs of a principal, of a resource, or of a principal for a resource."""
    wanted = _filter(principal, resource, is_covering=False)
    if principal is None and wanted.name is None:
        raise click.UsageError("Use --principal or a resource such as --topic")
    confirm("Remove these ACLs?", yes=yes)

    async def call(cluster: Cluster) -> list[AclBinding]:
        from kbroker.client.admin.acls import delete_acls

        return await delete_acls(cluster, wanted)

    removed = run_with_cluster(bootstrap, call)
    for binding in removed:
        click.echo(f"Removed: {_sentence(binding)}")
    if not removed:
        click.echo("No matching ACLs.", err=True)


@command.command(
    "test",
    cls=Command,
    examples=[("kbroker acls test User:alice write --topic orders", "Ask whether a user may write to a topic")],
)
@_principal_argument
@_operations_argument
@_resource_options
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address of the client.")
@bootstrap_option
def test(principal: str, operations: Sequence[AclOperation], host: str, bootstrap: str, **resource: Any) -> None:
    """Test whether a principal is authorized, and by which ACL.

    Evaluates ACLs only, without super.users and allow.everyone.if.no.acl.found of the brokers. The
    exit code is 1 if any operation is not allowed.
    """
    from kbroker.security.acls.decision import Access, AclRules, decide

    kind, name = _resource(resource, is_pattern=False)
    wanted = _covering(kind, name)

    async def call(cluster: Cluster) -> list[AclBinding]:
        from kbroker.client.admin.acls import describe_acls

        return await describe_acls(cluster, wanted)

    bindings = run_with_cluster(bootstrap, call)
    is_allowed = True
    for operation in operations:
        decision = decide(bindings, Access(principal, host, operation, kind, name), AclRules())
        is_allowed = is_allowed and decision.is_allowed
        what = kind.name.lower().replace("_", " ")
        click.echo(f"May {principal} {operation.name} {what} {name}? {_answer(decision)}")
    if not is_allowed:
        click.get_current_context().exit(1)


def _answer(decision: AclDecision) -> str:
    yes_or_no = "Yes" if decision.is_allowed else "No"
    if decision.binding is not None:
        return f"{yes_or_no}, by: {_sentence(decision.binding)}"
    return f"{yes_or_no}: {decision.reason.value}."


def _resource(given: dict[str, Any], *, is_pattern: bool) -> tuple[ResourceType, str]:
    """Returns type and name of the only resource option. Raises UsageError if there is none, or several."""
    from kbroker.protocol.acl_codes import CLUSTER_NAME, ResourceType

    chosen = [
        (ResourceType[kind], given[option]) for option, kind in _RESOURCES.items() if given.get(option) is not None
    ]
    if given.get("is_cluster"):
        chosen.append((ResourceType.CLUSTER, CLUSTER_NAME))
    if len(chosen) != 1:
        raise click.UsageError("Use one of --topic, --group, --transactional-id, --cluster, --user and --token")
    kind, name = chosen[0]
    if not is_pattern and name.endswith("*"):
        raise click.UsageError("Name one resource, without '*'")
    return kind, name


def _pattern(given: dict[str, Any]) -> ResourcePattern:
    from kbroker.security.acls.text import parse_pattern

    try:
        return parse_pattern(*_resource(given, is_pattern=True))
    except UserError as problem:
        raise click.UsageError(str(problem)) from None


def _patterns(given: dict[str, Any]) -> list[ResourcePattern]:
    """Returns the patterns of repeatable options. Raises UsageError if there is none."""
    named: list[dict[str, Any]] = [{option: name} for option in _RESOURCES for name in given[option]]
    if given["is_cluster"] or not named:
        named.append({"is_cluster": given["is_cluster"]})
    return [_pattern(resource) for resource in named]


def _filter(principal: str | None, given: dict[str, Any], *, is_covering: bool) -> AclFilter:
    from kbroker.security.acls.filters import AclFilter

    if not given.get("is_cluster") and all(given.get(option) is None for option in _RESOURCES):
        if is_covering:
            raise click.UsageError("--covering needs a resource such as --topic")
        return AclFilter(principal=principal)
    if is_covering:
        return _covering(*_resource(given, is_pattern=False))._replace(principal=principal)
    pattern = _pattern(given)
    return AclFilter(pattern.type, pattern.name, pattern.pattern_type, principal)


def _covering(kind: ResourceType, name: str) -> AclFilter:
    from kbroker.protocol.acl_codes import MATCH
    from kbroker.security.acls.filters import AclFilter

    return AclFilter(kind, name, MATCH)


def _row(binding: AclBinding) -> list[str | int | None]:
    pattern, entry = binding
    kind = pattern.type.name.lower().replace("_", " ")
    return [entry.principal, entry.permission.name, entry.operation.name, kind, _name(pattern), entry.host]


def _name(pattern: ResourcePattern) -> str:
    from kbroker.protocol.acl_codes import PatternType

    return f"{pattern.name}*" if pattern.pattern_type is PatternType.PREFIXED else pattern.name


def _sentence(binding: AclBinding) -> str:
    principal, permission, operation, kind, name, host = _row(binding)
    return f"{permission} {principal} {operation} {kind} {name} from {host}"


def _as_json(binding: AclBinding) -> dict[str, str]:
    pattern, entry = binding
    return {
        "principal": entry.principal,
        "permission": entry.permission.name,
        "operation": entry.operation.name,
        "resource_type": pattern.type.name,
        "name": pattern.name,
        "pattern_type": pattern.pattern_type.name,
        "host": entry.host,
    }
