"""APIs that only the controller serves. Other brokers answer NOT_CONTROLLER; clients find the controller in Metadata.

As in Kafka with ZooKeeper, configs, quotas and ACLs are not among them: any broker may write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Handler, Request

__all__ = ["CONTROLLER_APIS", "only_on_controller"]

CONTROLLER_APIS: Final = frozenset(
    {
        7,  # ControlledShutdown
        19,  # CreateTopics
        20,  # DeleteTopics
        37,  # CreatePartitions
        43,  # ElectLeaders
        45,  # AlterPartitionReassignments
        46,  # ListPartitionReassignments
        51,  # AlterUserScramCredentials
        56,  # AlterPartition
        57,  # UpdateFeatures
        58,  # Envelope
        67,  # AllocateProducerIds
    }
)


def only_on_controller(handler: Handler) -> Handler:
    def handle(context: Context, request: Request) -> Any:
        context.controller.store.check_active()
        return handler(context, request)

    return handle
