"""DescribeCluster (60), v0-2: returns the cluster id, the controller and the brokers of a listener (KIP-700).

v1: the endpoint type; only brokers are supported, because kbroker has no controller listeners (KIP-919). v2: fenced
brokers; kbroker has none (KIP-1073).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_cluster as messages
from kbroker.server.access.authorized_operations import cluster_operations

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

BROKERS: Final = 1
CONTROLLERS: Final = 2


def handle(context: Context, request: Request) -> Any:
    _check_endpoint_type(request.body.endpoint_type)
    image = context.controller.image
    endpoints = ((broker, broker.endpoint(request.listener_name)) for broker in image.brokers.values())
    response = messages.RESPONSE(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            messages.DescribeClusterBroker(
                broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker, endpoint in endpoints
            if endpoint is not None
        ],
    )
    if request.body.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(context, request)
    return response


def _check_endpoint_type(endpoint_type: int) -> None:
    if endpoint_type == CONTROLLERS:
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        raise Refusal(ErrorCode.MISMATCHED_ENDPOINT_TYPE, message)
    if endpoint_type != BROKERS:
        raise Refusal(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {endpoint_type}")
