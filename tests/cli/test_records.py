"""`kbroker produce` and `consume`: lines in, lines out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from kbroker.testing.running_broker import RunningBroker
from tests.cli.conftest import Call


async def test_produced_lines_are_consumed_unchanged(call: Call) -> None:
    assert await call("produce", "words", stdin=b"one\ntwo\r\n\nlast") == (0, "Wrote 4 records to topic words.\n", "")
    assert await call("consume", "words") == (0, "one\ntwo\n\nlast\n", "")


async def test_a_file_is_read_and_keys_are_split_off(call: Call, tmp_path: Path) -> None:
    lines = tmp_path / "orders.txt"
    lines.write_text("a:1\nb:2:2\nc:NULL\n")
    arguments = ("--key-separator", ":", "--header", "source=shop", "--null", "NULL", "--compression", "zstd")
    code, out, _ = await call("produce", "orders", str(lines), *arguments, "--json")
    assert (code, json.loads(out)) == (0, {"topic": "orders", "records": 3, "partitions": {"0": 3}})
    records = [json.loads(line) for line in (await call("consume", "orders", "--json")).out.splitlines()]
    assert [(record["key"], record["value"], record["offset"]) for record in records] == [
        ("a", "1", 0),
        ("b", "2:2", 1),
        ("c", None, 2),
    ]
    assert all(record["headers"] == [{"key": "source", "value": "shop"}] for record in records)


async def test_produce_reads_the_json_of_consume(call: Call) -> None:
    """Includes bytes that are not UTF-8: a copied topic equals the original."""
    await call("topics", "create", "first", "--partitions", "2")
    lines = [
        {"key": "k", "value": "v", "partition": 1, "timestamp": 1_700_000_000_000, "headers": {"a": "b"}},
        {"key": None, "value": {"base64": "/wA="}, "partition": 0, "timestamp": 1_700_000_000_001},
        {"value": {"nested": [1, "ä"]}, "partition": 0, "timestamp": 1_700_000_000_002},
    ]
    await call("produce", "first", "--format", "json", stdin="\n".join(map(json.dumps, lines)).encode())
    first = (await call("consume", "first", "--json")).out
    await call("topics", "create", "second", "--partitions", "2")
    await call("produce", "second", "--format", "json", stdin=first.encode())
    second = (await call("consume", "second", "--json")).out
    assert sorted(second.replace('"second"', '"first"').splitlines()) == sorted(first.splitlines())
    assert {json.dumps(json.loads(line)["value"]) for line in first.splitlines()} == {
        '"v"',
        '{"base64": "/wA="}',
        json.dumps('{"nested": [1, "ä"]}'),
    }


async def test_an_invalid_line_is_reported_by_number_and_lines_before_it_are_written(call: Call) -> None:
    code, out, err = await call("produce", "t", "--key-separator", ":", stdin=b"a:1\nb:2\nc\nd:4\n")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "line 3" in err
    assert (await call("consume", "t")).out == "1\n2\n"


@pytest.mark.parametrize(
    "line", ["[]", "{", '{"vallue": 1}', '{"partition": "x"}', '{"value": {"base64": "?"}}', '{"headers": 1}']
)
async def test_json_that_is_not_a_record_is_one_line(call: Call, line: str) -> None:
    code, _, err = await call("produce", "t", "--format", "json", stdin=line.encode())
    assert (code, err.count("\n")) == (1, 1)
    assert "line 1" in err


async def test_a_single_partition_is_written_and_read(call: Call) -> None:
    await call("topics", "create", "t", "--partitions", "3")
    for number in range(3):
        await call("produce", "t", "--partition", str(number), stdin=b"%d\n" % number)
    assert (await call("consume", "t", "--partition", "1")).out == "1\n"
    assert sorted((await call("consume", "t", "--partition", "0", "--partition", "2")).out.split()) == ["0", "2"]
    code, _, err = await call("consume", "t", "--partition", "3")
    assert (code, "partition 3 does not exist" in err) == (1, True)


async def test_a_header_may_have_several_values(call: Call) -> None:
    await call("topics", "create", "t")
    produced = await call("produce", "t", "--header", "tag=a", "--header", "tag=b", "--header", "tag=a", stdin=b"v\n")
    assert produced.code == 0, produced.err
    (record,) = map(json.loads, (await call("consume", "t", "--json")).out.splitlines())
    assert [header["value"] for header in record["headers"]] == ["a", "b", "a"]


async def test_reading_begins_at_the_requested_offset(call: Call) -> None:
    lines = [json.dumps({"value": str(number), "timestamp": 1000 + number}) for number in range(10)]
    await call("produce", "t", "--format", "json", stdin="\n".join(lines).encode())

    async def values(*arguments: str) -> str:
        return "".join((await call("consume", "t", *arguments)).out.split())

    assert await values() == await values("--offset", "earliest") == "0123456789"
    assert await values("--offset", "latest") == ""
    assert await values("--offset", "7") == "789"
    assert await values("--offset", "-2") == "89"
    assert await values("--offset", "-100", "--max", "3") == "012"
    assert await values("--since", "1006") == "6789"
    assert await values("--since", "1970-01-01T00:00:01.004") == "456789"
    assert await values("--since", "1m") == ""


async def test_a_template_formats_each_line(call: Call) -> None:
    line = {"key": "k", "value": "v", "timestamp": 0, "headers": [{"key": "h", "value": None}]}
    await call("produce", "t", "--format", "json", stdin=json.dumps(line).encode())
    template = r"{topic}/{partition}/{offset}\t{timestamp} {time}\\{key}={value} [{headers}] {"
    assert (await call("consume", "t", "--format", template)).out == (
        "t/0/0\t0 1970-01-01T00:00:00.000Z\\k=v [h=null] {\n"
    )
    code, _, err = await call("consume", "t", "--format", "{nothing}")
    assert (code, "{value}" in err) == (2, True)


async def test_a_group_continues_at_its_committed_offset(call: Call) -> None:
    await call("produce", "t", stdin=b"1\n2\n3\n")
    assert (await call("consume", "t", "--group", "g", "--max", "2")).out == "1\n2\n"
    await call("produce", "t", stdin=b"4\n")
    assert (await call("consume", "t", "--group", "g")).out == "3\n4\n"
    assert (await call("consume", "t", "--group", "g")).out == ""
    assert (await call("consume", "t", "--group", "other")).out == "1\n2\n3\n4\n"


@asynccontextmanager
async def following(broker: RunningBroker, *arguments: str) -> AsyncIterator[trio.Process]:
    """Yields a `consume --follow` process that has printed the first record."""
    address = f"{broker.host}:{broker.port}"
    command = [sys.executable, "-m", "kbroker", "consume", "t", "--follow", "--bootstrap", address, *arguments]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        with trio.fail_after(30):
            assert await process.stdout.receive_some() == b"1\n"
        yield process
    finally:
        if process.poll() is None:
            process.kill()


async def end_of(process: trio.Process) -> tuple[int, bytes, bytes]:
    """Returns exit code, the rest of stdout, and stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    with trio.fail_after(30):
        code = await process.wait()
        return code, bytes(await process.stdout.receive_some()), bytes(await process.stderr.receive_some())


async def test_following_waits_for_new_records(broker: RunningBroker, call: Call) -> None:
    await call("produce", "t", stdin=b"1\n")
    async with following(broker, "--max", "3") as process:
        await call("produce", "t", "--rate", "1000", stdin=b"2\n3\n")
        assert process.stdout is not None
        rest = b""
        with trio.fail_after(30):
            while len(rest) < 4:
                rest += await process.stdout.receive_some()
        assert rest == b"2\n3\n"
        assert await end_of(process) == (0, b"", b"")


async def test_following_is_ended_by_an_interrupt(broker: RunningBroker, call: Call) -> None:
    await call("produce", "t", stdin=b"1\n")
    async with following(broker) as process:
        process.send_signal(signal.SIGINT)
        assert await end_of(process) == (130, b"", b"\n")


async def test_an_offset_beyond_the_end_is_a_warning(call: Call) -> None:
    await call("topics", "create", "t", "--partitions", "5")
    for partition in ("0", "1"):
        await call("produce", "t", "--partition", partition, stdin=b"a\nb\nc\n")
    assert await call("consume", "t", "--offset", "2", "--partition", "0", "--partition", "1") == (0, "c\nc\n", "")
    assert await call("consume", "t", "--offset", "3", "--partition", "0") == (0, "", "")
    assert await call("consume", "t", "--offset", "4", "--partition", "0") == (
        0,
        "",
        "kbroker: warning: offset 4 is beyond the end: t-0 ends at 3\n",
    )
    assert await call("consume", "t", "--offset", "1") == (
        0,
        "b\nc\nb\nc\n",
        "kbroker: warning: offset 1 is beyond the end: t-2 ends at 0, t-3 ends at 0, t-4 ends at 0\n",
    )
    assert (await call("consume", "t", "--offset", "9")).err.endswith("t-2 ends at 0, and 2 others\n")


async def test_following_from_an_offset_beyond_the_end_is_one_line(call: Call) -> None:
    await call("produce", "t", stdin=b"1\n")
    assert await call("consume", "t", "--follow", "--offset", "9") == (
        1,
        "",
        "kbroker: Offset out of range. Run 'kbroker offsets t' to see the valid range.\n",
    )


async def test_a_closed_pipe_ends_consume_without_an_error(broker: RunningBroker, call: Call) -> None:
    await call("produce", "t", stdin=b"x" * 1000 + b"\n" + b"line\n" * 50_000)
    consume = f"{sys.executable} -m kbroker consume t --bootstrap {broker.host}:{broker.port} | head -c 10"
    result = await trio.run_process(["sh", "-c", consume], capture_stdout=True, capture_stderr=True)
    assert (result.stdout, result.stderr) == (b"x" * 10, b"")


async def test_following_ends_when_its_reader_has_ended(broker: RunningBroker, call: Call) -> None:
    """Also if no record comes any more, whose write would fail."""
    await call("produce", "t", stdin=b"line\n")
    consume = f"{sys.executable} -m kbroker consume t --follow -b {broker.host}:{broker.port} | head -n 1"
    with trio.fail_after(60):
        result = await trio.run_process(["sh", "-c", consume], capture_stdout=True, capture_stderr=True)
    assert (result.stdout, result.stderr) == (b"line\n", b"")


async def test_a_command_whose_reader_has_ended_has_the_exit_code_of_a_broken_pipe(
    broker: RunningBroker, call: Call
) -> None:
    """Also if all output fits into Python's buffer: it is written when the command ends."""
    await call("topics", "create", "t")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "kbroker", "topics", "list", "-b", f"{broker.host}:{broker.port}"]
        process = await trio.run_process(command, stdout=writer, capture_stderr=True, check=False)
    finally:
        os.close(writer)
    assert (process.returncode, process.stderr) == (141, b"")


async def test_an_interrupt_while_a_person_types_is_code_130(broker: RunningBroker, call: Call) -> None:
    await call("topics", "create", "t")
    keyboard, stdin = os.openpty()
    try:
        command = [sys.executable, "-m", "kbroker", "produce", "t", "-b", f"{broker.host}:{broker.port}"]
        process = await trio.lowlevel.open_process(command, stdin=stdin, stderr=subprocess.PIPE)
        assert process.stderr is not None
        with trio.fail_after(60):
            assert (await process.stderr.receive_some()).startswith(b"Type one record per line")
            os.write(keyboard, b"one\n")
            while (await call("consume", "t")).out != "one\n":  # then it reads on
                await trio.lowlevel.checkpoint()
            process.send_signal(signal.SIGINT)
            rest = b"".join([part async for part in process.stderr])
            assert (await process.wait(), rest) == (130, b"\n")
    finally:
        os.close(keyboard)
        os.close(stdin)


async def test_reading_ends_at_the_requested_timestamp(call: Call) -> None:
    await call("topics", "create", "t", "--partitions", "2")
    lines = [json.dumps({"value": str(number), "timestamp": 1000 + number, "partition": 1}) for number in range(10)]
    await call("produce", "t", "--format", "json", stdin="\n".join(lines).encode())
    assert (await call("consume", "t", "--until", "1003")).out.split() == ["0", "1", "2"]
    assert (await call("consume", "t", "--since", "1002", "--until", "1005")).out.split() == ["2", "3", "4"]
    assert (await call("consume", "t", "--until", "500")).out == ""
    assert len((await call("consume", "t", "--until", "0s")).out.split()) == 10
    assert (await call("consume", "t", "--until", "1003", "--follow")).code == 2


async def test_keys_values_and_records_are_separated_by_any_text(call: Call) -> None:
    arguments = ("--key-separator", r"\t", "--delimiter", ";;")
    assert (await call("produce", "t", *arguments, stdin=b"a\t1;;b\t2\n;;c\t3")).out == "Wrote 3 records to topic t.\n"
    assert (await call("consume", "t", "--key-separator", "=")).out == "a=1\nb=2\n\nc=3\n"
    assert (await call("consume", "t", "--delimiter", r"\0")).out == "1\x002\n\x003\x00"
    assert (await call("produce", "t", "--delimiter", "", stdin=b"x")).code == 2


async def test_integers_json_and_hex_are_decoded(call: Call) -> None:
    line = {"key": {"base64": "AAAAKg=="}, "value": '{"a": [1, "ä"]}'}
    await call("produce", "t", "--format", "json", stdin=json.dumps(line).encode())
    text = (await call("consume", "t", "--key-decoder", "int32", "--value-decoder", "json", "--key-separator", " ")).out
    assert text == '42 {"a": [1, "ä"]}\n'
    found = json.loads((await call("consume", "t", "--key-decoder", "int32", "--value-decoder", "json", "--json")).out)
    assert (found["key"], found["value"]) == (42, {"a": [1, "ä"]})
    assert (await call("consume", "t", "--key-decoder", "hex", "--format", "{key}")).out == "0000002a\n"
    assert await call("consume", "t", "--key-decoder", "int64") == (
        1,
        "",
        "kbroker: t-0, offset 0: the key is not int64: int64 has 8 bytes, not 4\n",
    )


async def test_records_without_a_key_reach_more_than_one_partition(call: Call) -> None:
    await call("topics", "create", "t", "--partitions", "3")
    out = (await call("produce", "t", "--json", stdin=b"0123456789\n" * 100_000)).out
    written = json.loads(out)["partitions"]
    assert sum(written.values()) == 100_000
    assert len(written) == 3


async def test_a_server_that_is_not_a_broker_is_one_line(call: Call) -> None:
    async def web_server(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, web_server, listeners)
        code, out, err = await call("consume", "t", "--bootstrap", f"127.0.0.1:{port}")
        nursery.cancel_scope.cancel()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "does not speak the Kafka protocol" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "t", "--key", "a", "--key-separator", ":"),
        ("produce", "t", "--key-separator", ""),
        ("produce", "t", "--format", "json", "--null", "x"),
        ("produce", "t", "--rate", "0"),
        ("produce", "t", "no-such-file"),
        ("consume", "t", "--offset", "3", "--since", "1m"),
        ("consume", "t", "--offset", "somewhere"),
        ("consume", "t", "--max", "0"),
    ],
)
async def test_a_usage_error_is_one_line_and_code_2(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = await call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
