"""Java consumers with each assignor of the classic protocol: members come, go, crash and pause, and nothing is lost."""

from __future__ import annotations

from compat_tests.tool_server import ToolServer

PACKAGE = "org.apache.kafka.clients.consumer"

# What a member gives up when a second one comes: eager ones everything, the cooperative one just what it must.
REVOKED = {"RangeAssignor": 6, "RoundRobinAssignor": 6, "StickyAssignor": 6, "CooperativeStickyAssignor": 3}


def test_every_record_is_seen_while_members_come_go_crash_and_pause(
    bootstrap: str, topic: str, tool_server: ToolServer
) -> None:
    """All assignors at once: most of the time goes by while the session of a crashed member runs out."""
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
