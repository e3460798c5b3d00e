"""Groups after a restart: they continue after a broker was stopped or killed, and Kafka can read their records."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from compat_tests.apache_kafka import JavaTools
from compat_tests.process import free_ports, run_kbroker
from compat_tests.scenarios.groups import Member, create_topic, poll_until, produce_numbers, same_split


@contextmanager
def kbroker(directory: Path, port: int) -> Iterator[Popen[bytes]]:
    with run_kbroker(directory, "--data-dir", str(directory / "data"), port=port) as (_, process):
        yield process


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_static_members_and_offsets_survive_the_broker(tmp_path: Path, topic: str, how: signal.Signals) -> None:
    (port,) = free_ports(1)
    bootstrap = f"127.0.0.1:{port}"
    members: list[Member] = []
    with kbroker(tmp_path, port) as process:
        create_topic(bootstrap, topic, 4)
        for name in ("a", "b"):
            options = {"group_instance_id": name, "session_timeout_ms": 30_000, "reconnect_backoff_max_ms": 500}
            members.append(Member(bootstrap, topic, topic, **options))
        poll_until(members, lambda: same_split(members, [2, 2], 4), "two members share")
        produce_numbers(bootstrap, topic, range(40), 4)
        poll_until(members, lambda: sum(len(member.seen) for member in members) >= 40, "every record is seen")
        for member in members:
            member.consumer.commit(asynchronous=False)
        had, rebalances = [member.partitions for member in members], [member.rebalances for member in members]
        process.send_signal(how)
        process.wait()
    with kbroker(tmp_path, port):
        produce_numbers(bootstrap, topic, range(40, 48), 4)
        poll_until(members, lambda: sum(len(member.seen) for member in members) >= 48, "the new records are seen")
        assert [member.partitions for member in members] == had
        assert [member.rebalances for member in members] == rebalances
        assert members[0].committed(topic, 4) == [10, 10, 10, 10]
        for member in members:
            member.close()


def test_kafka_reads_the_records_of_groups(tmp_path: Path, topic: str, java_tools: JavaTools) -> None:
    (port,) = free_ports(1)
    bootstrap = f"127.0.0.1:{port}"
    with kbroker(tmp_path, port):
        create_topic(bootstrap, topic, 1)
        produce_numbers(bootstrap, topic, range(3), 1)
        member = Member(bootstrap, topic, topic, group_instance_id="named")
        poll_until([member], lambda: len(member.seen) >= 3, "it reads everything")
        member.consumer.commit(asynchronous=False)
        member.close()
    files = [file for file in (tmp_path / "data").glob("__consumer_offsets-*/*.log") if file.stat().st_size]
    assert len(files) == 1
    dump = java_tools.dump_log(*files, options=("--offsets-decoder",))
    assert '"offset":3' in dump
    assert f'"topic":"{topic}"' in dump
    assert '"groupInstanceId":"named"' in dump
    assert '"protocolType":"consumer"' in dump
