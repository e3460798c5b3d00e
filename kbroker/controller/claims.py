"""What a broker claims in the tree by ephemeral nodes: its id, and the place of the controller."""

from __future__ import annotations

import logging
from typing import NamedTuple

import trio

from kbroker.controller import znodes
from kbroker.controller.image import NO_LEADER, Broker
from kbroker.controller.tree import BadVersion, Create, NodeExists, NoNode, SetData, Tree
from kbroker.errors import UserError

__all__ = ["ControllerSeat", "claim_broker_id", "claim_controller", "read_controller"]

logger = logging.getLogger(__name__)


class ControllerSeat(NamedTuple):
    broker_id: int
    """NO_LEADER while the place is free."""
    epoch: int
    epoch_version: int
    """Of the epoch's node: what every write of that controller checks."""
    is_mine: bool


async def claim_broker_id(tree: Tree, broker: Broker, *, timestamp_ms: int, patience_s: float = 0.0) -> Broker:
    """The broker with its epoch. UserError: another one has this id.

    A node with our own addresses is our own earlier life, whose session has not ended yet: that is waited for.
    """
    path = znodes.broker_path(broker.id)
    data = znodes.encode_broker(broker, timestamp_ms=timestamp_ms)
    while True:
        try:
            await tree.create(path, data, ephemeral=True)
        except NodeExists:
            if await _is_ours_soon(tree, broker, patience_s):
                break
        else:
            break
    stat = (await tree.get(path)).stat
    return Broker(broker.id, stat.czxid, broker.endpoints, broker.rack)


async def _is_ours_soon(tree: Tree, broker: Broker, patience_s: float) -> bool:
    """True: the answer to our own claim was lost. False: it is to be tried again."""
    path = znodes.broker_path(broker.id)
    gone = trio.Event()
    await tree.exists(path, lambda _event: gone.set())
    (node,) = await tree.get_many([path])
    if node is None:
        return False
    if node.stat.ephemeral_owner == tree.session_id:
        return True
    holder = znodes.decode_broker(broker.id, node.data, epoch=node.stat.czxid)
    if holder.endpoints == broker.endpoints and patience_s > 0:
        logger.info("waiting for the session of an earlier run of broker %d to end", broker.id)
        with trio.move_on_after(patience_s):
            await gone.wait()
            return False
    raise _taken(broker.id)


def _taken(broker_id: int) -> UserError:
    return UserError(f"broker.id={broker_id} is in use by another broker of this cluster")


async def claim_controller(tree: Tree, broker_id: int, *, timestamp_ms: int) -> ControllerSeat | None:
    """The seat, if it was free and this broker was the first; else None. Node and epoch are one multi."""
    (node,) = await tree.get_many([znodes.CONTROLLER_EPOCH])
    claim = Create(znodes.CONTROLLER, znodes.encode_controller(broker_id, timestamp_ms=timestamp_ms), ephemeral=True)
    try:
        if node is None:
            await tree.multi([claim, Create(znodes.CONTROLLER_EPOCH, znodes.encode_epoch(1))])
            return ControllerSeat(broker_id, 1, 0, is_mine=True)
        epoch, version = znodes.decode_epoch(node.data) + 1, node.stat.version
        await tree.multi([claim, SetData(znodes.CONTROLLER_EPOCH, znodes.encode_epoch(epoch), version)])
    except (NodeExists, BadVersion, NoNode):
        return None
    return ControllerSeat(broker_id, epoch, version + 1, is_mine=True)


async def read_controller(tree: Tree) -> ControllerSeat:
    """Who has the seat now. Mine: by this session, so a claim whose answer was lost counts."""
    seat, epoch = await tree.get_many([znodes.CONTROLLER, znodes.CONTROLLER_EPOCH])
    number, version = (0, 0) if epoch is None else (znodes.decode_epoch(epoch.data), epoch.stat.version)
    if seat is None:
        return ControllerSeat(NO_LEADER, number, version, is_mine=False)
    is_mine = seat.stat.ephemeral_owner == tree.session_id
    return ControllerSeat(znodes.decode_controller(seat.data), number, version, is_mine)
