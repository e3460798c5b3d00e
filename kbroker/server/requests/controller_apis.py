"""APIs that only the controller serves. Other brokers answer NOT_CONTROLLER; clients find the controller in Metadata.

As in Kafka with ZooKeeper, configs, quotas and ACLs are not among them: any broker may write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kbroker.protocol.acl_codes import AclOperation
from kbroker.server.access.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Handler, Request

__all__ = ["CONTROLLER_APIS", "only_on_controller"]

CONTROLLER_APIS: Final[Mapping[int, AclOperation | None]] = {
    7: AclOperation.CLUSTER_ACTION,  # ControlledShutdown
    19: None,  # CreateTopics
    20: None,  # DeleteTopics
    37: None,  # CreatePartitions
    43: AclOperation.ALTER,  # ElectLeaders
    45: AclOperation.ALTER,  # AlterPartitionReassignments
    46: AclOperation.DESCRIBE,  # ListPartitionReassignments
    51: None,  # AlterUserScramCredentials
    56: AclOperation.CLUSTER_ACTION,  # AlterPartition
    57: AclOperation.ALTER,  # UpdateFeatures
    67: AclOperation.CLUSTER_ACTION,  # AllocateProducerIds
}
"""API -> operation on the cluster that comes first: a client without it gets the refusal of the handler.

None: as in Kafka, all clients get NOT_CONTROLLER. Envelope (58) checks by itself, because its listener comes first.
"""


def only_on_controller(handler: Handler, operation: AclOperation | None) -> Handler:
    def handle(context: Context, request: Request) -> Any:
        if operation is None or allows_cluster(context, request, operation, quiet=True):
            context.controller.store.check_active()
        return handler(context, request)

    return handle
