"""AclIndex decides as the plain rules do, in every order of changes, and forgets its decisions with each change."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.acl_codes import AclOperation, PatternType, PermissionType, ResourceType
from kbroker.security.acls import index as indexes
from kbroker.security.acls.decision import Access, AclRules, decide
from kbroker.security.acls.entries import AclBinding, AclEntry, ResourcePattern
from kbroker.security.acls.index import AclIndex

OPERATIONS = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DESCRIBE_CONFIGS,
)
HOSTS = ("10.0.0.1", "10.0.0.2")

names = st.sampled_from(["*", "a", "ab", "abc", "b", "*a"])
patterns = st.builds(
    ResourcePattern,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    names,
    st.sampled_from(list(PatternType)),
)
entries = st.builds(
    AclEntry,
    st.sampled_from(["User:a", "User:b", "User:*", "Group:a"]),
    st.sampled_from(["*", *HOSTS]),
    st.sampled_from(OPERATIONS),
    st.sampled_from(list(PermissionType)),
)
accesses = st.builds(
    Access,
    st.sampled_from(["User:a", "User:b", "User:*", "Group:a", "User:super"]),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS[1:]),
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    names,
)
changes = st.lists(st.tuples(patterns, st.frozensets(entries, max_size=4)), max_size=8)


def bindings(known: dict[ResourcePattern, frozenset[AclEntry]]) -> list[AclBinding]:
    return [AclBinding(pattern, entry) for pattern, own in known.items() for entry in own]


def indexed(known: dict[ResourcePattern, frozenset[AclEntry]], rules: AclRules) -> AclIndex:
    index = AclIndex(rules)
    index.replace(known)
    return index


@given(changes, st.lists(accesses, min_size=1, max_size=6), st.booleans())
def test_the_index_decides_as_a_scan_of_all_entries(
    changed: list[tuple[ResourcePattern, frozenset[AclEntry]]], wanted: list[Access], allows_without_acl: bool
) -> None:
    rules = AclRules(frozenset({"User:super"}), allows_without_acl)
    index = AclIndex(rules)
    known: dict[ResourcePattern, frozenset[AclEntry]] = {}
    for pattern, own in [*changed, *[(pattern, frozenset[AclEntry]()) for pattern, _ in changed[:2]]]:
        known[pattern] = own
        index.replace({pattern: own})
        for access in wanted * 2:  # the second answer is a remembered one
            assert index.allows(*access) == decide(bindings(known), access, rules).is_allowed
    assert sorted(index.bindings()) == sorted(bindings(known))


@given(changes, accesses)
def test_any_resource_is_allowed_if_there_can_be_one(
    changed: list[tuple[ResourcePattern, frozenset[AclEntry]]], access: Access
) -> None:
    rules = AclRules(frozenset({"User:super"}))
    known = dict(changed)
    index = indexed(known, rules)
    for name in [name for pattern in known for name in (pattern.name, f"{pattern.name}~new")] + ["~new"]:
        if decide(bindings(known), access._replace(name=name), rules).is_allowed:
            assert index.allows_any(*access[:4])
            return
    assert not index.allows_any(*access[:4])


def allowing(*operations: AclOperation, principal: str = "User:a") -> frozenset[AclEntry]:
    return frozenset(AclEntry(principal, "*", operation, PermissionType.ALLOW) for operation in operations)


TOPIC = ResourcePattern(ResourceType.TOPIC, "t")


def test_a_change_of_any_entry_invalidates_remembered_decisions() -> None:
    index = indexed({TOPIC: allowing(AclOperation.READ)}, AclRules())
    asked = ("User:a", "10.0.0.1", AclOperation.READ, ResourceType.TOPIC, "t")
    assert index.allows(*asked)
    deny = AclEntry("User:*", "*", AclOperation.ALL, PermissionType.DENY)
    index.replace({ResourcePattern(ResourceType.TOPIC, "*"): frozenset({deny})})
    assert not index.allows(*asked)
    index.replace({ResourcePattern(ResourceType.TOPIC, "*"): frozenset()})
    assert index.allows(*asked)


def test_remembered_decisions_are_bounded_in_number_and_size() -> None:
    index = indexed({TOPIC: allowing(AclOperation.READ)}, AclRules())

    def ask(names: Iterable[str]) -> None:
        for name in names:
            index.allows("User:a", "10.0.0.1", AclOperation.READ, ResourceType.TOPIC, name)

    ask(f"name-{number}" for number in range(indexes.MAX_DECISIONS + 10))
    assert len(index._decisions) <= indexes.MAX_DECISIONS
    before = len(index._decisions)
    ask("x" * 10_000 + str(number) for number in range(10))
    assert len(index._decisions) == before


def test_hosts_are_compared_in_the_text_of_java() -> None:
    entry = AclEntry("User:a", "10.0.0.1", AclOperation.READ, PermissionType.ALLOW)
    other = AclEntry("User:b", "0:0:0:0:0:0:0:1", AclOperation.READ, PermissionType.ALLOW)
    index = indexed({TOPIC: frozenset({entry, other})}, AclRules())

    def allows(principal: str, host: str) -> bool:
        return index.allows(principal, host, AclOperation.READ, ResourceType.TOPIC, "t")

    assert allows("User:a", "10.0.0.1")
    assert allows("User:a", "::ffff:10.0.0.1")
    assert not allows("User:a", "10.0.0.2")
    assert allows("User:b", "::1")


def test_operations_imply_others_only_if_they_are_allowed() -> None:
    describe = AclOperation.DESCRIBE
    for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER):
        index = indexed({TOPIC: allowing(operation)}, AclRules())
        assert index.allows("User:a", "h", describe, ResourceType.TOPIC, "t")
        assert not index.allows("User:a", "h", AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "t")
    denied = AclEntry("User:a", "*", AclOperation.READ, PermissionType.DENY)
    index = indexed({TOPIC: allowing(describe) | {denied}}, AclRules())
    assert index.allows("User:a", "h", describe, ResourceType.TOPIC, "t")


def test_a_star_is_a_wildcard_only_as_a_literal_name() -> None:
    everything = indexed({ResourcePattern(ResourceType.TOPIC, "*"): allowing(AclOperation.READ)}, AclRules())
    assert everything.allows("User:a", "h", AclOperation.READ, ResourceType.TOPIC, "any")
    prefix = ResourcePattern(ResourceType.TOPIC, "*", PatternType.PREFIXED)
    stars = indexed({prefix: allowing(AclOperation.READ)}, AclRules())
    assert not stars.allows("User:a", "h", AclOperation.READ, ResourceType.TOPIC, "any")
    assert stars.allows("User:a", "h", AclOperation.READ, ResourceType.TOPIC, "*any")


def test_without_any_entry_for_a_resource_everybody_may_be_allowed() -> None:
    other = ResourcePattern(ResourceType.TOPIC, "other")
    index = indexed({other: allowing(AclOperation.READ, principal="User:b")}, AclRules(allows_without_acl=True))
    assert index.allows("User:a", "h", AclOperation.WRITE, ResourceType.TOPIC, "t")
    assert not index.allows("User:a", "h", AclOperation.READ, ResourceType.TOPIC, "other")
