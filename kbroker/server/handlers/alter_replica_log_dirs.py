"""AlterReplicaLogDirs (34), v0-2: moves partitions to another data directory of this broker (KIP-113).

Responds when the moves have begun; DescribeLogDirs shows their progress. For a partition that this broker does not
host, the directory is remembered for the partition's creation and the response is an error, as in Apache Kafka.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kbroker.log.directory import DataDirectory
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_replica_log_dirs as messages
from kbroker.server.access.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, AclOperation.ALTER):
        return refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    directories = {os.path.abspath(directory.path): directory for directory in context.log_dirs.directories}
    codes = {
        (topic, index): _move(context, topic, index, path, directories.get(path))
        for (topic, index), path in _target_paths(request).items()
    }
    return _response(codes)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return _response(dict.fromkeys(_target_paths(request), code))


def _target_paths(request: Request) -> dict[tuple[str, int], str]:
    return {
        (topic.name, index): directory.path
        for directory in request.body.dirs
        for topic in directory.topics
        for index in topic.partitions
    }


def _move(context: Context, topic: str, index: int, path: str, directory: DataDirectory | None) -> int:
    if any(gate.is_offline and os.path.abspath(gate.path) == path for gate in context.log_dirs.gates.values()):
        return ErrorCode.KAFKA_STORAGE_ERROR
    if directory is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if context.log_dirs.is_offline(topic, index):
        return ErrorCode.KAFKA_STORAGE_ERROR
    partition = context.partitions.replica(topic, index)
    if partition is not None:
        if context.log_dirs.gate_of(partition).is_offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return context.moves.begin(partition, directory)
    context.log_dirs.prefer(topic, index, directory)
    if context.controller.image.partition(topic, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.REPLICA_NOT_AVAILABLE


def _response(codes: dict[tuple[str, int], int]) -> Any:
    topics: dict[str, list[Any]] = {}
    for (topic, index), code in codes.items():
        result = messages.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
        topics.setdefault(topic, []).append(result)
    results = [
        messages.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
        for name, partitions in topics.items()
    ]
    return messages.RESPONSE(results=results)
