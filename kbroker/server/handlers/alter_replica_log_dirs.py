"""AlterReplicaLogDirs (34), v0-2: partitions that shall move to another data directory of this broker.

The answer says that the move has begun; DescribeLogDirs tells how far it is. For a partition that is not here the wish
is remembered until it comes, and still refused, as Kafka does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kbroker.log.directory import DataDirectory
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_replica_log_dirs as messages
from kbroker.server.authorization import Operation
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    if not allows_cluster(context, request, Operation.ALTER):
        return refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    directories = {os.path.abspath(each.path): each for each in context.partitions.directories}
    codes = {
        (topic, index): _move(context, topic, index, path, directories.get(path))
        for (topic, index), path in _wishes(request).items()
    }
    return _response(codes)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return _response(dict.fromkeys(_wishes(request), code))


def _wishes(request: Request) -> dict[tuple[str, int], str]:
    return {
        (topic.name, index): each.path
        for each in request.body.dirs
        for topic in each.topics
        for index in topic.partitions
    }


def _move(context: Context, topic: str, index: int, path: str, directory: DataDirectory | None) -> int:
    table = context.partitions
    if any(gate.is_offline and os.path.abspath(gate.path) == path for gate in table.gates.values()):
        return ErrorCode.KAFKA_STORAGE_ERROR
    if directory is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if table.is_offline(topic, index):
        return ErrorCode.KAFKA_STORAGE_ERROR
    partition = table.replica(topic, index)
    if partition is not None:
        if table.gates[table.directory_of(partition).path].is_offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return table.moves.begin(partition, directory)
    table.moves.prefer(topic, index, directory)
    if context.controller.image.partition(topic, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.REPLICA_NOT_AVAILABLE


def _response(codes: dict[tuple[str, int], int]) -> Any:
    topics: dict[str, list[Any]] = {}
    for (topic, index), code in codes.items():
        result = messages.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
        topics.setdefault(topic, []).append(result)
    results = [
        messages.AlterReplicaLogDirTopicResult(topic_name=name, partitions=each) for name, each in topics.items()
    ]
    return messages.RESPONSE(results=results)
