"""Metadata files of a data directory (meta.properties, partition.metadata, kbroker.format), and the names of partition
directories."""

from __future__ import annotations

import base64
import re

from kbroker.errors import UserError
from kbroker.log.files.filesystem import FileSystem

__all__ = [
    "FORMAT_VERSION",
    "PARTITION_METADATA",
    "check_format",
    "decode_partition_metadata",
    "deleted_name",
    "encode_partition_metadata",
    "future_name",
    "is_deleted_name",
    "partition_name",
    "read_meta_properties",
    "split_future_name",
    "split_partition_name",
    "stray_name",
    "write_meta_properties",
]

META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
FORMAT_FILE = "kbroker.format"
FORMAT_VERSION = 1
_NAME_LIMIT = 255
_DELETED_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"
_FUTURE_NAME = re.compile(r"([a-zA-Z0-9._-]+-(?:0|[1-9][0-9]*))\.[^.]+-future")
_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]*)")


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def split_partition_name(name: str) -> tuple[str, int] | None:
    found = _PARTITION_NAME.fullmatch(name)
    return (found[1], int(found[2])) if found else None


def deleted_name(topic: str, partition: int, *, unique: str) -> str:
    """Returns the directory name of a deleted partition. A long topic name is shortened to fit a file name."""
    return _shortened_name(topic, partition, unique, _DELETED_SUFFIX)


def stray_name(topic: str, partition: int, *, unique: str) -> str:
    """Returns the directory name of a log whose partition is not on this broker any more, as in Kafka 3.9."""
    return _shortened_name(topic, partition, unique, _STRAY_SUFFIX)


def _shortened_name(topic: str, partition: int, unique: str, suffix: str) -> str:
    tail = f"-{partition}.{unique}{suffix}"
    return topic[: _NAME_LIMIT - len(tail)] + tail


def is_deleted_name(name: str) -> bool:
    return name.endswith(_DELETED_SUFFIX) and "." in name


def future_name(topic: str, partition: int, *, unique: str) -> str | None:
    """Returns the directory name of a copy that will replace the log; None if it is too long for a file name."""
    name = f"{topic}-{partition}.{unique}-future"
    return name if len(name) <= _NAME_LIMIT else None


def split_future_name(name: str) -> tuple[str, int] | None:
    found = _FUTURE_NAME.fullmatch(name)
    return split_partition_name(found[1]) if found else None


def check_format(filesystem: FileSystem, path: str) -> None:
    """Raises UserError if a newer kbroker has written the directory, in a format that this one may misread."""
    try:
        content = filesystem.read(f"{path}/{FORMAT_FILE}")
    except FileNotFoundError:
        filesystem.replace(f"{path}/{FORMAT_FILE}", f"{FORMAT_VERSION}\n".encode())
        return
    text = content.decode("ascii", "replace").strip()
    if not text.isdigit() or int(text) > FORMAT_VERSION:
        raise UserError(
            f"Data directory {path} has format {text!r}, but this kbroker supports only up to {FORMAT_VERSION}. "
            "Use the kbroker version that wrote it, or a newer one."
        )


def read_meta_properties(filesystem: FileSystem, path: str) -> dict[str, str]:
    try:
        lines = filesystem.read(f"{path}/{META_PROPERTIES}").decode().splitlines()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise UserError(
            f"{path}/{META_PROPERTIES} is damaged. Restore it, or delete it so that the broker creates it again."
        ) from None
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {key.strip(): value.strip() for key, _equals, value in pairs}


def write_meta_properties(filesystem: FileSystem, path: str, *, broker_id: int, cluster_id: str | None) -> None:
    """Writes broker and cluster id as Kafka 3.9 does with ZooKeeper (version 0). Raises UserError if they differ."""
    found = read_meta_properties(filesystem, path)
    wanted = {"broker.id": str(broker_id), "version": "0"}
    if cluster_id is not None:
        wanted["cluster.id"] = cluster_id
    for key, value in wanted.items():
        if key in found and found[key] != value:
            raise UserError(
                f"Data directory {path} belongs to {key}={found[key]}, not {value}. "
                "Use another --data-dir, or the settings that the directory was created with."
            )
    merged = found | wanted
    if merged != found:
        lines = ["#", *(f"{key}={value}" for key, value in sorted(merged.items())), ""]
        filesystem.replace(f"{path}/{META_PROPERTIES}", "\n".join(lines).encode())


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(topic_id).rstrip(b"=") + b"\n"


def decode_partition_metadata(content: bytes) -> bytes | None:
    """Returns the topic id; None if the file is damaged, as after a crash."""
    found = re.fullmatch(rb"version: 0\s+topic_id: ([A-Za-z0-9_-]{22})\s*", content)
    return base64.urlsafe_b64decode(found[1] + b"==") if found else None
