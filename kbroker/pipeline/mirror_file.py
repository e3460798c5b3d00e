"""Tables in the file of a mirror: [source], [target] and [groups]. Knows no Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kbroker.config.toml_file import TomlTable
from kbroker.errors import UserError
from kbroker.pipeline.definition import TopicsToRead, read_bootstrap, read_options, read_topic_source

__all__ = [
    "ALL_GROUPS",
    "DEFAULT_GROUPS",
    "GroupsToMove",
    "MirrorPlan",
    "TargetCluster",
    "check_order_is_kept",
    "read_mirror",
]

ALL_GROUPS: Final = r"(?!console-consumer-|connect-|spark-kafka-|__).*"
"""All groups, except the new ones that console consumers, Connect and Spark create for each run."""


@dataclass(frozen=True, slots=True)
class TargetCluster:
    bootstrap: str
    replication_factor: int = -1
    """Replication factor of the topics that the mirror creates; -1 is the default of the brokers."""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupsToMove:
    """Groups whose offsets are translated."""

    pattern: str = ALL_GROUPS
    is_two_way: bool = False
    """Whether another mirror copies from the target to the source."""


DEFAULT_GROUPS: Final = GroupsToMove()


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    source: TopicsToRead
    target: TargetCluster
    groups: GroupsToMove | None = DEFAULT_GROUPS
    """None: no offsets are translated."""
    interval_s: float = 10.0
    """Time between two looks at topics, configs and groups."""

    def includes(self, topic: str) -> bool:
        """Whether the topic is mirrored. Internal topics never are."""
        if topic.startswith("__"):
            return False
        if self.source.pattern is not None:
            return re.fullmatch(self.source.pattern, topic) is not None
        return topic in self.source.topics


def check_order_is_kept(options: Mapping[str, str]) -> None:
    """Raises UserError if an option of the source gives one partition to several tasks."""
    for name in options:
        if name.lower() in ("minpartitions", "maxrecordsperpartition"):
            raise UserError(f"{name} would change the order of records in a partition. Remove it")


def read_mirror(file: TomlTable) -> MirrorPlan:
    source = read_topic_source(file)
    try:
        check_order_is_kept(source.options)
    except UserError as problem:
        raise file.table("source").problem(f"source.options: {problem}", key="options") from None
    return MirrorPlan(source, _read_target(file), _read_groups(file), file.fraction("interval_seconds", 10.0))


def _read_target(file: TomlTable) -> TargetCluster:
    file.require("target", "the cluster to write")
    table = file.table("target")
    target = TargetCluster(
        read_bootstrap(table), table.optional_number("replication_factor") or -1, read_options(table)
    )
    table.end()
    return target


def _read_groups(file: TomlTable) -> GroupsToMove | None:
    table = file.table("groups")
    is_wanted = table.flag("translate", True)
    pattern = table.text("pattern", ALL_GROUPS)
    try:
        re.compile(pattern)
    except re.error as problem:
        raise table.problem(f"groups.pattern is not a regular expression: {problem}", key="pattern") from None
    groups = GroupsToMove(pattern, table.flag("two_way", False))
    table.end()
    return groups if is_wanted else None
