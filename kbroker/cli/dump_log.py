"""`kbroker dump-log`: the files of a partition as text, in the words of Kafka's DumpLogSegments, or as JSON.

Reads whatever lies there, also while a broker writes it; never changes a file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from kbroker.cli.command import Command
from kbroker.cli.output import is_terminal, print_json_line, tame
from kbroker.cli.record_text import json_of_bytes
from kbroker.errors import StorageFailure, UserError

if TYPE_CHECKING:
    from kbroker.protocol.record_batch import BatchHeader
    from kbroker.protocol.records import Record

__all__ = ["command"]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class Wanted(NamedTuple):
    with_records: bool
    with_data: bool
    with_metadata: bool
    max_bytes: int | None
    as_json: bool


@click.command(
    "dump-log",
    cls=Command,
    examples=[
        ("kbroker dump-log kbroker-data/orders-0", "the batches of every segment of a partition"),
        (
            "kbroker dump-log kbroker-data/orders-0/00000000000000000000.log --print-data-log",
            "one segment, its records too",
        ),
        (
            "kbroker dump-log kbroker-data/orders-0/00000000000000000000.timeindex --json",
            "an index, an object on each line",
        ),
    ],
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--deep-iteration", "with_records", is_flag=True, help="Every record, not just batches.")
@click.option("--print-data-log", "with_data", is_flag=True, help="Every record with its key and payload.")
@click.option("--skip-record-metadata", is_flag=True, help="Of records only key and payload.")
@click.option("--max-bytes", type=click.IntRange(1), metavar="N", help="Look at so much of each .log at most.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each entry, for programs.")
def command(
    paths: Sequence[Path],
    with_records: bool,
    with_data: bool,
    skip_record_metadata: bool,
    max_bytes: int | None,
    as_json: bool,
) -> None:
    """Show what the files of a partition hold: .log, .index, .timeindex, .txnindex and .snapshot.

    A directory stands for the .log files in it. Nothing is changed, and a broker may be running.
    """
    wanted = Wanted(with_records or with_data, with_data, not skip_record_metadata, max_bytes, as_json)
    for path in _files(paths):
        dump = _DUMPS.get(path.suffix)
        if dump is None:
            raise UserError(f"{path} is none of the files that can be shown: {' '.join(_DUMPS)}")
        if not as_json:
            click.echo(f"Dumping {path}")
        try:
            dump(path, wanted)
        except (OSError, StorageFailure) as problem:
            raise UserError(f"{path} cannot be read: {getattr(problem, 'strerror', problem)}") from None


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    from kbroker.log.directory_metadata import split_partition_name

    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("*.log"))
        if not found and split_partition_name(path.resolve().name) is None:
            raise UserError(f"{path} is no directory of a partition, such as orders-0")
        yield from found  # none in a partition that nobody has written to


def _base_offset(path: Path) -> int:
    digits = path.name.partition(".")[0]
    if not digits.isdecimal():
        raise UserError(f"{path} is not named by an offset, as the files of a partition are")
    return int(digits)


def _say(text: str) -> None:
    click.echo(tame(text) if is_terminal() else text)


def _dump_log(path: Path, wanted: Wanted) -> None:
    from kbroker.protocol.record_batch import InvalidBatch, iter_headers

    base_offset = _base_offset(path)
    if not wanted.as_json:
        click.echo(f"Log starting offset: {base_offset}")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return
        end = size if wanted.max_bytes is None else min(size, wanted.max_bytes)
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapping, memoryview(mapping) as content:
            position = 0
            try:
                for position, header in iter_headers(content, 0, end):
                    _show_batch(content, position, header, wanted)
                    position += header.size
            except InvalidBatch:
                pass  # counted below, like whatever else is no batch
            if position < end and wanted.max_bytes is None:
                _show_rest(path, end - position, wanted)


def _show_rest(path: Path, size: int, wanted: Wanted) -> None:
    if wanted.as_json:
        print_json_line({"file": str(path), "invalid_bytes": size})
    else:
        click.echo(f"Found {size} invalid bytes at the end of {path.name}")


def _show_batch(content: memoryview, position: int, header: BatchHeader, wanted: Wanted) -> None:
    from kbroker.protocol.record_batch import InvalidBatch, validate_stored_batch
    from kbroker.protocol.records import iter_records

    problem = None
    try:
        validate_stored_batch(content, position, position + header.size)
    except InvalidBatch as found:
        problem = str(found)
    records: list[Record] = []
    if wanted.with_records:
        try:
            records = list(iter_records(content, position))
        except InvalidBatch as found:
            problem = str(found)
    if wanted.as_json:
        print_json_line(_json_of_batch(position, header, problem, records, wanted))
        return
    _say(_batch_line(position, header, problem is None))
    for record in records:
        _say(_record_line(header, record, wanted))


def _batch_line(position: int, header: BatchHeader, is_valid: bool) -> str:
    fields = {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": _sequence(header, header.last_offset_delta),
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": _java(header.is_transactional),
        "isControl": _java(header.is_control),
        "deleteHorizonMs": _optional_long(header.base_timestamp if header.has_delete_horizon else None),
        "position": position,
        _timestamp_type(header): header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": _codec_name(header),
        "crc": header.crc,
        "isvalid": _java(is_valid),
    }
    return " ".join(f"{name}: {value}" for name, value in fields.items())


def _record_line(header: BatchHeader, record: Record, wanted: Wanted) -> str:
    line = "|"
    if wanted.with_metadata:
        key_size = -1 if record.key is None else len(record.key)
        value_size = -1 if record.value is None else len(record.value)
        line += (
            f" offset: {record.offset} {_timestamp_type(header)}: {record.timestamp} keySize: {key_size} "
            f"valueSize: {value_size} sequence: {_sequence(header, record.offset - header.base_offset)} "
            f"headerKeys: [{','.join(_printable(name) for name, _ in record.headers)}]"
        )
        if header.is_control:
            line += _marker_text(record)
    if wanted.with_data and not header.is_control:
        line += "" if record.key is None else f" key: {record.key.decode('utf-8', 'replace')}"
        line += "" if record.value is None else f" payload: {record.value.decode('utf-8', 'replace')}"
    return line


def _marker_text(record: Record) -> str:
    from kbroker.protocol.records import read_control_type, read_end_transaction_marker

    marker = read_end_transaction_marker(record)
    if marker is None:
        return f" controlType: {read_control_type(record)}"
    return f" endTxnMarker: {'COMMIT' if marker.is_commit else 'ABORT'} coordinatorEpoch: {marker.coordinator_epoch}"


def _json_of_batch(
    position: int, header: BatchHeader, problem: str | None, records: Sequence[Record], wanted: Wanted
) -> dict[str, Any]:
    batch: dict[str, Any] = {
        "position": position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": _timestamp_type(header),
        "codec": _codec_name(header),
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
        "valid": problem is None,
    }
    if problem is not None:
        batch["problem"] = problem
    if wanted.with_records:
        batch["records"] = [_json_of_record(each, wanted) for each in records]
    return batch


def _json_of_record(record: Record, wanted: Wanted) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if wanted.with_metadata:
        fields = {"offset": record.offset, "timestamp": record.timestamp}
    if wanted.with_data:
        fields["key"] = json_of_bytes(record.key)
        fields["value"] = json_of_bytes(record.value)
        fields["headers"] = [{"key": name, "value": json_of_bytes(value)} for name, value in record.headers]
    return fields


def _sequence(header: BatchHeader, delta: int) -> int:
    return -1 if header.base_sequence < 0 else header.base_sequence + delta & 0x7FFFFFFF


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _codec_name(header: BatchHeader) -> str:
    return CODECS[header.codec] if header.codec < len(CODECS) else str(header.codec)


def _java(truth: bool) -> str:
    return "true" if truth else "false"


def _optional_long(number: int | None) -> str:
    return "OptionalLong.empty" if number is None else f"OptionalLong[{number}]"


def _printable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _show(entry: dict[str, Any], names: dict[str, str], wanted: Wanted) -> None:
    """One entry of an index: our names for JSON, Kafka's for text."""
    if wanted.as_json:
        print_json_line(entry)
    else:
        _say(" ".join(f"{names.get(name, name)}: {value}" for name, value in entry.items()))


def _dump_offset_index(path: Path, wanted: Wanted) -> None:
    from kbroker.log.offset_index import new_offset_index

    base_offset = _base_offset(path)
    index = new_offset_index(path.read_bytes())
    for number, (relative, position) in enumerate(zip(index.keys, index.values, strict=True)):
        if number and not relative:
            return  # a broker makes the file large at first: the rest is empty
        _show({"offset": base_offset + relative, "position": position}, {}, wanted)


def _dump_time_index(path: Path, wanted: Wanted) -> None:
    from kbroker.log.time_index import new_time_index

    base_offset = _base_offset(path)
    index = new_time_index(path.read_bytes())
    for number, (timestamp, relative) in enumerate(zip(index.keys, index.values, strict=True)):
        if number and not relative:
            return  # as above
        _show({"timestamp": timestamp, "offset": base_offset + relative}, {}, wanted)


def _dump_aborted_index(path: Path, wanted: Wanted) -> None:
    from kbroker.log.aborted_index import AbortedIndex
    from kbroker.log.filesystem import OsFileSystem

    names = {
        "producer_id": "producerId",
        "first_offset": "firstOffset",
        "last_offset": "lastOffset",
        "last_stable_offset": "lastStableOffset",
    }
    for each in AbortedIndex(OsFileSystem(), str(path)).entries:
        _show({"version": 0, **each._asdict()}, names, wanted)


def _dump_snapshot(path: Path, wanted: Wanted) -> None:
    from kbroker.log.producer_snapshot import CorruptSnapshot, decode_snapshot

    try:
        entries = decode_snapshot(path.read_bytes())
    except CorruptSnapshot as problem:
        raise UserError(f"{path} is damaged: {problem}") from None
    names = {
        "producer_id": "producerId",
        "producer_epoch": "producerEpoch",
        "coordinator_epoch": "coordinatorEpoch",
        "current_txn_first_offset": "currentTxnFirstOffset",
        "last_timestamp": "lastTimestamp",
        "first_sequence": "firstSequence",
        "last_sequence": "lastSequence",
        "last_offset": "lastOffset",
        "offset_delta": "offsetDelta",
    }
    for producer_id, entry in entries:
        open_since = None if entry.current_txn_first_offset < 0 else entry.current_txn_first_offset
        fields: dict[str, Any] = {
            "producer_id": producer_id,
            "producer_epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_first_offset": open_since if wanted.as_json else _optional_long(open_since),
            "last_timestamp": entry.timestamp,
        }
        for batch in entry.batches[:1]:
            fields["first_sequence"] = batch.first_sequence
            fields["last_sequence"] = batch.last_sequence
            fields["last_offset"] = batch.last_offset
            fields["offset_delta"] = batch.last_offset - batch.base_offset
            fields["timestamp"] = batch.timestamp
        _show(fields, names, wanted)


_DUMPS: Final[dict[str, Callable[[Path, Wanted], None]]] = {
    ".log": _dump_log,
    ".index": _dump_offset_index,
    ".timeindex": _dump_time_index,
    ".txnindex": _dump_aborted_index,
    ".snapshot": _dump_snapshot,
}
