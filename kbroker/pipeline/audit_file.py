"""Tables in the file of an audit: [audit] and one [hops.NAME] for each hop. Knows no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.config.toml_file import TomlTable
from kbroker.pipeline.audit_counts import PRODUCER
from kbroker.pipeline.definition import (
    TableSink,
    TopicsToRead,
    read_bootstrap,
    read_location,
    read_options,
    read_table,
    read_topic,
    read_topics,
)

__all__ = ["AuditPlan", "Hop", "read_audit"]


@dataclass(frozen=True, slots=True)
class Hop:
    """Place where records are counted: topics of a cluster, or a table."""

    name: str
    records: TopicsToRead | TableSink
    previous: str
    """Hop whose counts this hop must equal."""
    copies_only: bool = False
    """Whether to count only records that a mirror wrote."""


@dataclass(frozen=True, slots=True)
class AuditPlan:
    bootstrap: str
    topic: str
    """Topic of the counts, to which producers publish their own counts too."""
    hops: tuple[Hop, ...]
    window_ms: int = 60_000
    settle_ms: int = 60_000
    """Age at which a window is judged, counted from its end."""
    report: str | None = None
    """Directory for report.txt and report.svg."""
    options: Mapping[str, str] = field(default_factory=dict)
    """TLS and SASL for the audit topic."""


def read_audit(file: TomlTable) -> AuditPlan:
    file.require("audit", "the topic of the counts")
    table = file.table("audit")
    bootstrap = read_bootstrap(table)
    plan = AuditPlan(
        bootstrap,
        read_topic(table, "topic"),
        _read_hops(file, bootstrap),
        1000 * table.number("window_seconds", 60),
        1000 * table.number("settle_seconds", 60, at_least=0),
        read_location(table, "report") if "report" in table else None,
        read_options(table),
    )
    table.end()
    return plan


def _read_hops(file: TomlTable, bootstrap: str) -> tuple[Hop, ...]:
    file.require("hops", "where records are counted, for example [hops.broker]")
    tables = file.table("hops")
    names = [name for name in tables.keys if name in tables]
    hops: list[Hop] = []
    for name in names:
        if name == PRODUCER:
            raise tables.problem("producers publish their own counts to the audit topic: remove this hop", key=name)
        hops.append(_read_hop(tables.table(name), name, PRODUCER if not hops else hops[0].name, bootstrap))
        if hops[-1].previous not in (PRODUCER, *(hop.name for hop in hops[:-1])):
            reason = f"hops.{name}.after is '{hops[-1].previous}', which is not a hop before it"
            raise tables.problem(reason, key=name)
    if not hops:
        raise file.problem("there is no hop: add a table such as [hops.broker]", key="hops")
    return tuple(hops)


def _read_hop(table: TomlTable, name: str, previous: str, bootstrap: str) -> Hop:
    is_table = "path" in table or "table" in table
    after = table.text("after", previous)
    copies_only = False if is_table else table.flag("copies_only", False)
    records = read_table(table) if is_table else read_topics(table, bootstrap)
    table.end()
    return Hop(name, records, after, copies_only)
