"""The consumer protocol (KIP-848) with real clients: every record is read while members join, leave and crash."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from compat_tests.apache_kafka import JavaTools
from compat_tests.process import free_ports
from compat_tests.scenarios.consumer_groups import ConsumerMember, WireMember, poll_for
from compat_tests.scenarios.groups import Member, create_topic, poll_until, produce_numbers, same_split
from compat_tests.scenarios.test_groups_java import GROUPS, rows
from compat_tests.scenarios.test_groups_restart import kbroker
from compat_tests.scenarios.test_groups_wire import Wire

LONGER_THAN_A_SESSION_S = 75.0


def seen(*members: Member) -> set[int]:
    return {number for member in members for number in member.seen}


def test_every_record_is_seen_while_members_join_and_leave(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 4)
    produce_numbers(bootstrap, topic, range(40), 4)
    first = ConsumerMember(bootstrap, topic, topic)
    poll_until([first], lambda: len(seen(first)) == 40, "it reads everything")
    first.consumer.commit(asynchronous=False)
    second = ConsumerMember(bootstrap, topic, topic)
    both = [first, second]
    poll_until(both, lambda: same_split(both, [2, 2], 4), "two members share")
    produce_numbers(bootstrap, topic, range(40, 80), 4)
    poll_until(both, lambda: len(seen(*both)) == 80, "the new records are seen")
    assert len(first.seen) + len(second.seen) == 80
    first.consumer.commit(asynchronous=False)
    second.consumer.commit(asynchronous=False)
    second.close()
    poll_until([first], lambda: same_split([first], [4], 4), "one member has everything again")
    assert first.committed(topic, 4) == [20, 20, 20, 20]
    first.close()


def test_a_member_that_crashes_is_replaced_after_its_session(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 2)
    produce_numbers(bootstrap, topic, range(20), 2)
    wire = Wire(bootstrap)
    try:
        assert WireMember(wire, topic, "doomed").join([topic]).error_code == 0
    finally:
        wire.close()
    member = ConsumerMember(bootstrap, topic, topic)
    poll_for(
        [member], LONGER_THAN_A_SESSION_S, lambda: len(seen(member)) == 20, "it takes over the partitions of the other"
    )
    member.close()


def test_a_static_member_keeps_its_partitions(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 4)
    members = [ConsumerMember(bootstrap, topic, topic, group_instance_id=name) for name in ("a", "b")]
    poll_until(members, lambda: same_split(members, [2, 2], 4), "two members share")
    had, rebalances = members[1].partitions, members[0].rebalances
    members[1].close()
    members[1] = ConsumerMember(bootstrap, topic, topic, group_instance_id="b")
    poll_until(members, lambda: members[1].partitions == had, "it has its former partitions")
    assert members[0].rebalances == rebalances
    for member in members:
        member.close()


def test_a_regular_expression_finds_topics_old_and_new(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, f"{topic}.one", 1)
    create_topic(bootstrap, f"not.{topic}.one", 1)
    produce_numbers(bootstrap, f"{topic}.one", range(5), 1)
    member = ConsumerMember(bootstrap, topic, f"^{topic}\\..*")
    poll_until([member], lambda: seen(member) == set(range(5)), "the first topic is read")
    create_topic(bootstrap, f"{topic}.two", 1)
    produce_numbers(bootstrap, f"{topic}.two", range(5, 9), 1)
    poll_for([member], 60, lambda: seen(member) == set(range(9)), "the new topic is read")
    member.close()


def test_classic_members_are_replaced_one_by_one(bootstrap: str, topic: str) -> None:
    """Checks a rolling upgrade: with both protocols in one group, no record is lost or read twice."""
    create_topic(bootstrap, topic, 4)
    old = [Member(bootstrap, topic, topic, partition_assignment_strategy="range") for _ in range(2)]
    poll_until(old, lambda: same_split(old, [2, 2], 4), "two classic members share")
    produce_numbers(bootstrap, topic, range(40), 4)
    poll_until(old, lambda: len(seen(*old)) == 40, "they read everything")
    for member in old:
        member.consumer.commit(asynchronous=False)
    gone = old.pop()
    gone.close()
    new = [ConsumerMember(bootstrap, topic, topic)]
    mixed = [*old, *new]
    poll_until(mixed, lambda: same_split(mixed, [2, 2], 4), "a member of each protocol share")
    produce_numbers(bootstrap, topic, range(40, 80), 4)
    poll_until(mixed, lambda: len(seen(gone, *mixed)) == 80, "they read the new records")
    for member in mixed:
        member.consumer.commit(asynchronous=False)
    last = old.pop()
    last.close()
    new.append(ConsumerMember(bootstrap, topic, topic))
    poll_until(new, lambda: same_split(new, [2, 2], 4), "two new members share")
    produce_numbers(bootstrap, topic, range(80, 120), 4)
    poll_until(new, lambda: len(seen(gone, last, *new)) == 120, "they read the new records")
    assert sum(len(member.seen) for member in (gone, last, *new)) == 120
    for member in new:
        member.close()


def test_java_shares_a_group_with_another_client(bootstrap: str, topic: str, java_tools: JavaTools) -> None:
    create_topic(bootstrap, topic, 2)
    produce_numbers(bootstrap, topic, range(20), 2)
    protocol = ["--consumer-property", "group.protocol=consumer", "--group", topic, "--from-beginning"]
    output = java_tools.console_consumer(bootstrap, topic, *protocol, "--max-messages", "20")
    assert sorted(map(int, output.split())) == list(range(20))
    member = ConsumerMember(bootstrap, topic, topic)
    poll_until([member], lambda: same_split([member], [2], 2), "the other one has left")
    produce_numbers(bootstrap, topic, range(20, 24), 2)
    poll_until([member], lambda: seen(member) == set(range(20, 24)), "it goes on where Java ended")
    member.consumer.commit(asynchronous=False)
    common = ["--bootstrap-server", bootstrap, "--describe", "--group", topic]
    (state,) = rows(java_tools.run(GROUPS, *common, "--state"))
    assert {"Stable", "uniform"} <= set(state.values())
    found = rows(java_tools.run(GROUPS, *common))
    assert {row["PARTITION"]: row["LAG"] for row in found} == {"0": "0", "1": "0"}
    member.close()
    produce_numbers(bootstrap, topic, range(24, 30), 2)
    regex = ["--include", f"{topic[:-2]}..", *protocol]
    output = java_tools.run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, *regex, "--max-messages", "6"),
    )
    assert sorted(map(int, output.split())) == list(range(24, 30))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_members_continue_after_a_restart_of_the_broker(tmp_path: Path, topic: str, how: signal.Signals) -> None:
    (port,) = free_ports(1)
    bootstrap = f"127.0.0.1:{port}"
    with kbroker(tmp_path, port) as process:
        create_topic(bootstrap, topic, 4)
        members = [ConsumerMember(bootstrap, topic, topic) for _ in range(2)]
        poll_until(members, lambda: same_split(members, [2, 2], 4), "two members share")
        produce_numbers(bootstrap, topic, range(40), 4)
        poll_until(members, lambda: len(seen(*members)) == 40, "every record is seen")
        for member in members:
            member.consumer.commit(asynchronous=False)
        had, rebalances = [member.partitions for member in members], [member.rebalances for member in members]
        process.send_signal(how)
        process.wait()
    with kbroker(tmp_path, port):
        produce_numbers(bootstrap, topic, range(40, 48), 4)
        poll_until(members, lambda: len(seen(*members)) == 48, "the new records are seen")
        assert [member.partitions for member in members] == had
        assert [member.rebalances for member in members] == rebalances
        for member in members:
            member.close()


def test_kafka_reads_the_records_of_a_consumer_group(tmp_path: Path, topic: str, java_tools: JavaTools) -> None:
    (port,) = free_ports(1)
    bootstrap = f"127.0.0.1:{port}"
    with kbroker(tmp_path, port):
        create_topic(bootstrap, topic, 1)
        member = ConsumerMember(bootstrap, topic, f"^{topic}.*", group_instance_id="named")
        poll_until([member], lambda: same_split([member], [1], 1), "it has its partition")
        member.close()
    files = [file for file in (tmp_path / "data").glob("__consumer_offsets-*/*.log") if file.stat().st_size]
    assert len(files) == 1
    dump = java_tools.dump_log(*files, options=("--offsets-decoder",))
    for said in ('"instanceId":"named"', '"assignedPartitions":[{', '"memberEpoch":', f'"topics":["{topic}"]'):
        assert said in dump


def test_two_java_consumers_share_the_topics_of_a_pattern(bootstrap: str, topic: str, java_tools: JavaTools) -> None:
    """Checks SubscriptionPattern, with which the Java client lets the broker match patterns."""
    create_topic(bootstrap, f"{topic}.one", 2)
    create_topic(bootstrap, f"{topic}.two", 2)
    produce_numbers(bootstrap, f"{topic}.one", range(10), 2)
    produce_numbers(bootstrap, f"{topic}.two", range(10, 20), 2)
    source = str(Path(__file__).with_name("TwoConsumers.java"))
    output = java_tools.run(source, bootstrap, topic, f"{topic}\\..+", "20").splitlines()
    assert output == ["shared 2 2", "alone 4", f"seen {list(range(20))}"]
