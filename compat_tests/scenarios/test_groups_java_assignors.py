"""Java consumers with each classic assignor: no record is lost while members join, leave, crash and pause."""

from __future__ import annotations

from compat_tests.tool_server import ToolServer

PACKAGE = "org.apache.kafka.clients.consumer"

# Partitions that a member revokes when a second one joins: all with eager assignors, only the moved ones otherwise.
REVOKED = {"RangeAssignor": 6, "RoundRobinAssignor": 6, "StickyAssignor": 6, "CooperativeStickyAssignor": 3}


def test_every_record_is_seen_while_members_join_leave_crash_and_pause(
    bootstrap: str, topic: str, tool_server: ToolServer
) -> None:
    """Runs all assignors at once: most of the time is the session timeout of a crashed member."""
    classes = [f"{PACKAGE}.{assignor}" for assignor in REVOKED]
    lines = tool_server.run("AssignorScenario", bootstrap, topic, *classes, timeout_s=240).splitlines()
    for assignor, revoked in REVOKED.items():
        said = [line.partition(": ")[2] for line in lines if line.startswith(f"{assignor}: ")]
        assert said == [
            "one has all",
            "two share",
            f"revoked {revoked}",
            "three share",
            "a pause",
            "others go on",
            "paused took 0",
            "the pause ends",
            "one does not poll for too long",
            "it polls again",
            "one went",
            "one crashed",
            "a new one came",
        ], assignor
