"""`kbroker dump-log`: prints the files of a partition, in the format of Kafka's DumpLogSegments or as JSON.

Never changes a file; works while a broker writes them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from kbroker.cli.command import Command
from kbroker.cli.output import escape_control_characters, is_terminal, print_json_line
from kbroker.cli.record_text import bytes_to_json
from kbroker.errors import StorageFailure, UserError

if TYPE_CHECKING:
    from kbroker.protocol.record_batch import BatchHeader
    from kbroker.protocol.records import Record

__all__ = ["command"]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class DumpOptions(NamedTuple):
    with_records: bool
    with_data: bool
    with_metadata: bool
    max_bytes: int | None
    as_json: bool


@click.command(
    "dump-log",
    cls=Command,
    examples=[
        ("kbroker dump-log kbroker-data/orders-0", "Print the batches of all segments of a partition"),
        (
            "kbroker dump-log kbroker-data/orders-0/00000000000000000000.log --print-data-log",
            "Print one segment with its records",
        ),
        (
            "kbroker dump-log kbroker-data/orders-0/00000000000000000000.timeindex --json",
            "Print an index as JSON lines",
        ),
    ],
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--deep-iteration", "with_records", is_flag=True, help="Print records, not just batches.")
@click.option("--print-data-log", "with_data", is_flag=True, help="Print records with key and payload.")
@click.option("--skip-record-metadata", is_flag=True, help="Print only key and payload of records.")
@click.option("--max-bytes", type=click.IntRange(1), metavar="N", help="Read at most N bytes of each .log file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per entry.")
def command(
    paths: Sequence[Path],
    with_records: bool,
    with_data: bool,
    skip_record_metadata: bool,
    max_bytes: int | None,
    as_json: bool,
) -> None:
    """Print the contents of partition files: .log, .index, .timeindex, .txnindex and .snapshot.

    For a directory, prints all .log files in it. Files are only read; the broker may be running.
    """
    options = DumpOptions(with_records or with_data, with_data, not skip_record_metadata, max_bytes, as_json)
    for path in _files(paths):
        dump = _DUMPS.get(path.suffix)
        if dump is None:
            raise UserError(f"{path} is not a partition file. Supported types: {' '.join(_DUMPS)}")
        if not as_json:
            click.echo(f"Dumping {path}")
        try:
            dump(path, options)
        except BrokenPipeError:
            raise  # of the output, not of the file: `| head`
        except (OSError, StorageFailure) as problem:
            raise UserError(f"Could not read {path}: {getattr(problem, 'strerror', problem)}") from None


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    from kbroker.log.files.directory_metadata import split_partition_name

    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("*.log"))
        if not found and split_partition_name(path.resolve().name) is None:
            raise UserError(f"{path} is not a partition directory (TOPIC-PARTITION, for example orders-0)")
        yield from found  # an empty partition has no .log file yet


def _base_offset(path: Path) -> int:
    digits = path.name.partition(".")[0]
    if not digits.isdecimal():
        raise UserError(f"{path} is not a partition file: its name must be an offset")
    return int(digits)


def _print_line(text: str) -> None:
    click.echo(escape_control_characters(text) if is_terminal() else text)


def _dump_log(path: Path, options: DumpOptions) -> None:
    from kbroker.protocol.record_batch import InvalidBatch, iter_headers

    base_offset = _base_offset(path)
    if not options.as_json:
        click.echo(f"Log starting offset: {base_offset}")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return
        end = size if options.max_bytes is None else min(size, options.max_bytes)
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapping, memoryview(mapping) as content:
            position = 0
            try:
                for position, header in iter_headers(content, 0, end):
                    _show_batch(content, position, header, options)
                    position += header.size
            except InvalidBatch:
                pass  # reported below as invalid bytes
            if position < end and options.max_bytes is None:
                _show_invalid_bytes(path, end - position, options)


def _show_invalid_bytes(path: Path, size: int, options: DumpOptions) -> None:
    if options.as_json:
        print_json_line({"file": str(path), "invalid_bytes": size})
    else:
        click.echo(f"Found {size} invalid bytes at the end of {path.name}")


def _show_batch(content: memoryview, position: int, header: BatchHeader, options: DumpOptions) -> None:
    from kbroker.protocol.record_batch import InvalidBatch, validate_stored_batch
    from kbroker.protocol.records import iter_records

    problem = None
    try:
        validate_stored_batch(content, position, position + header.size)
    except InvalidBatch as found:
        problem = str(found)
    records: list[Record] = []
    if options.with_records:
        try:
            records = list(iter_records(content, position))
        except InvalidBatch as found:
            problem = str(found)
    if options.as_json:
        print_json_line(_batch_to_json(position, header, problem, records, options))
        return
    _print_line(_batch_line(position, header, problem is None))
    for record in records:
        _print_line(_record_line(header, record, options))


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
        "isTransactional": _java_boolean(header.is_transactional),
        "isControl": _java_boolean(header.is_control),
        "deleteHorizonMs": _optional_long(header.base_timestamp if header.has_delete_horizon else None),
        "position": position,
        _timestamp_type(header): header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": _codec_name(header),
        "crc": header.crc,
        "isvalid": _java_boolean(is_valid),
    }
    return " ".join(f"{name}: {value}" for name, value in fields.items())


def _record_line(header: BatchHeader, record: Record, options: DumpOptions) -> str:
    line = "|"
    if options.with_metadata:
        key_size = -1 if record.key is None else len(record.key)
        value_size = -1 if record.value is None else len(record.value)
        line += (
            f" offset: {record.offset} {_timestamp_type(header)}: {record.timestamp} keySize: {key_size} "
            f"valueSize: {value_size} sequence: {_sequence(header, record.offset - header.base_offset)} "
            f"headerKeys: [{','.join(_printable(name) for name, _ in record.headers)}]"
        )
        if header.is_control:
            line += _marker_text(record)
    if options.with_data and not header.is_control:
        line += "" if record.key is None else f" key: {record.key.decode('utf-8', 'replace')}"
        line += "" if record.value is None else f" payload: {record.value.decode('utf-8', 'replace')}"
    return line


def _marker_text(record: Record) -> str:
    from kbroker.protocol.records import read_control_type, read_end_transaction_marker

    marker = read_end_transaction_marker(record)
    if marker is None:
        return f" controlType: {read_control_type(record)}"
    return f" endTxnMarker: {'COMMIT' if marker.is_commit else 'ABORT'} coordinatorEpoch: {marker.coordinator_epoch}"


def _batch_to_json(
    position: int, header: BatchHeader, problem: str | None, records: Sequence[Record], options: DumpOptions
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
    if options.with_records:
        batch["records"] = [_record_to_json(record, options) for record in records]
    return batch


def _record_to_json(record: Record, options: DumpOptions) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if options.with_metadata:
        fields = {"offset": record.offset, "timestamp": record.timestamp}
    if options.with_data:
        fields["key"] = bytes_to_json(record.key)
        fields["value"] = bytes_to_json(record.value)
        fields["headers"] = [{"key": name, "value": bytes_to_json(value)} for name, value in record.headers]
    return fields


def _sequence(header: BatchHeader, delta: int) -> int:
    return -1 if header.base_sequence < 0 else header.base_sequence + delta & 0x7FFFFFFF


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _codec_name(header: BatchHeader) -> str:
    return CODECS[header.codec] if header.codec < len(CODECS) else str(header.codec)


def _java_boolean(truth: bool) -> str:
    return "true" if truth else "false"


def _optional_long(number: int | None) -> str:
    return "OptionalLong.empty" if number is None else f"OptionalLong[{number}]"


def _printable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _show(entry: dict[str, Any], names: dict[str, str], options: DumpOptions) -> None:
    """Prints an index entry: as JSON with its own names, as text with the names of DumpLogSegments."""
    if options.as_json:
        print_json_line(entry)
    else:
        _print_line(" ".join(f"{names.get(name, name)}: {value}" for name, value in entry.items()))


def _dump_offset_index(path: Path, options: DumpOptions) -> None:
    from kbroker.log.segments.offset_index import new_offset_index

    base_offset = _base_offset(path)
    index = new_offset_index(path.read_bytes())
    for number, (relative, position) in enumerate(zip(index.keys, index.values, strict=True)):
        if number and not relative:
            return  # index files are preallocated: the rest is zeros
        _show({"offset": base_offset + relative, "position": position}, {}, options)


def _dump_time_index(path: Path, options: DumpOptions) -> None:
    from kbroker.log.segments.time_index import new_time_index

    base_offset = _base_offset(path)
    index = new_time_index(path.read_bytes())
    for number, (timestamp, relative) in enumerate(zip(index.keys, index.values, strict=True)):
        if number and not relative:
            return  # preallocated, see above
        _show({"timestamp": timestamp, "offset": base_offset + relative}, {}, options)


def _dump_aborted_index(path: Path, options: DumpOptions) -> None:
    from kbroker.log.files.filesystem import OsFileSystem
    from kbroker.log.segments.aborted_index import AbortedIndex

    names = {
        "producer_id": "producerId",
        "first_offset": "firstOffset",
        "last_offset": "lastOffset",
        "last_stable_offset": "lastStableOffset",
    }
    for entry in AbortedIndex(OsFileSystem(), str(path)).entries:
        _show({"version": 0, **entry._asdict()}, names, options)


def _dump_snapshot(path: Path, options: DumpOptions) -> None:
    from kbroker.log.producers.producer_snapshot import CorruptSnapshot, decode_snapshot

    try:
        entries = decode_snapshot(path.read_bytes())
    except CorruptSnapshot as problem:
        raise UserError(f"{path} is corrupt: {problem}") from None
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
            "current_txn_first_offset": open_since if options.as_json else _optional_long(open_since),
            "last_timestamp": entry.timestamp,
        }
        for batch in entry.batches[:1]:
            fields["first_sequence"] = batch.first_sequence
            fields["last_sequence"] = batch.last_sequence
            fields["last_offset"] = batch.last_offset
            fields["offset_delta"] = batch.last_offset - batch.base_offset
            fields["timestamp"] = batch.timestamp
        _show(fields, names, options)


_DUMPS: Final[dict[str, Callable[[Path, DumpOptions], None]]] = {
    ".log": _dump_log,
    ".index": _dump_offset_index,
    ".timeindex": _dump_time_index,
    ".txnindex": _dump_aborted_index,
    ".snapshot": _dump_snapshot,
}
