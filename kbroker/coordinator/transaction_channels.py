"""Requests about transactions to other brokers: markers to leaders of partitions, admissions to coordinators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from kbroker.controller.changes import Change
from kbroker.controller.image import Image
from kbroker.coordinator.admission_requests import PendingAdmission, fail_admission, send_admissions
from kbroker.coordinator.broker_channels import BrokerChannels, Connect
from kbroker.coordinator.marker_requests import OutgoingMarker, fail_marker, send_markers

__all__ = ["TransactionChannels"]


class TransactionChannels:
    """Two connections to each broker: an admission never waits for a marker that is not committed yet."""

    def __init__(self, *, broker_id: int, listener_name: str, timeout_s: float, connect: Connect | None = None) -> None:
        self.markers: BrokerChannels[OutgoingMarker] = BrokerChannels(
            partial(send_markers, timeout_s=timeout_s),
            fail_marker,
            broker_id=broker_id,
            listener_name=listener_name,
            connect=connect,
        )
        self.admissions: BrokerChannels[PendingAdmission] = BrokerChannels(
            partial(send_admissions, timeout_s=timeout_s),
            fail_admission,
            broker_id=broker_id,
            listener_name=listener_name,
            connect=connect,
        )

    def on_image(self, image: Image, changes: Sequence[Change] = ()) -> None:
        self.markers.on_image(image, changes)
        self.admissions.on_image(image, changes)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.markers.run)
            nursery.start_soon(self.admissions.run)
