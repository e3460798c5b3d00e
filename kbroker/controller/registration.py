"""Registration of brokers and of the controller: ephemeral nodes in the tree, which disappear with their session."""

from __future__ import annotations

import logging
from typing import NamedTuple

import trio

from kbroker.controller.image import NO_LEADER, BrokerRegistration
from kbroker.controller.metadata_loader import ensure_layout
from kbroker.controller.trees import znodes
from kbroker.controller.trees.retries import retry_until_connected
from kbroker.controller.trees.tree import BadVersion, Create, NodeExists, NoNode, SetData, Tree
from kbroker.errors import UserError

__all__ = ["ControllerRegistration", "generate_broker_id", "read_controller", "register_broker", "register_controller"]

logger = logging.getLogger(__name__)


class ControllerRegistration(NamedTuple):
    broker_id: int
    """NO_LEADER if there is no controller."""
    epoch: int
    epoch_version: int
    """Version of the epoch's node, which every write of this controller checks."""
    is_mine: bool


async def register_broker(
    tree: Tree, broker: BrokerRegistration, *, timestamp_ms: int, wait_s: float = 0.0
) -> BrokerRegistration:
    """Registers the broker and returns it with its epoch. Raises UserError if another broker has this id.

    A node with the same addresses was left by an earlier run of this broker, whose session has not ended yet: waits
    up to `wait_s` for it to disappear.
    """
    path = znodes.broker_path(broker.id)
    data = znodes.encode_broker(broker, timestamp_ms=timestamp_ms)
    while True:
        try:
            await tree.create(path, data, ephemeral=True)
        except NodeExists:
            if await _is_registered(tree, broker, wait_s):
                break
        else:
            break
    stat = (await tree.get(path)).stat
    return BrokerRegistration(broker.id, stat.czxid, broker.endpoints, broker.rack)


async def _is_registered(tree: Tree, broker: BrokerRegistration, wait_s: float) -> bool:
    """Whether the node belongs to this session, because only the answer to its creation was lost.

    False if the node has disappeared and the caller should try again. Raises UserError if another broker has the id.
    """
    path = znodes.broker_path(broker.id)
    changed = trio.Event()
    # The watch is set before the node is read: a change in between is not missed.
    await tree.exists(path, lambda _event: changed.set())
    (node,) = await tree.get_many([path])
    if node is None:
        return False
    if node.stat.ephemeral_owner == tree.session_id:
        return True
    registered = znodes.decode_broker(broker.id, node.data, epoch=node.stat.czxid)
    if registered.endpoints == broker.endpoints and wait_s > 0:
        logger.info("Waiting for the ZooKeeper session of an earlier run of broker %d to expire", broker.id)
        with trio.move_on_after(wait_s):
            await changed.wait()
            return False
        # A lost connection drops the watch: look once more whether the same node is still there.
        (later,) = await tree.get_many([path])
        if later is None or later.stat.czxid != node.stat.czxid:
            return False
    raise UserError(f"broker.id={broker.id} is in use by another broker of this cluster. Give each broker its own id.")


async def register_controller(tree: Tree, broker_id: int, *, timestamp_ms: int) -> ControllerRegistration | None:
    """Makes this broker the controller, with a new controller epoch. Returns None if another broker was quicker.

    Node and epoch are written in one multi: there is never a controller with the epoch of the previous one.
    """
    (node,) = await tree.get_many([znodes.CONTROLLER_EPOCH])
    create = Create(znodes.CONTROLLER, znodes.encode_controller(broker_id, timestamp_ms=timestamp_ms), ephemeral=True)
    try:
        if node is None:
            await tree.multi([create, Create(znodes.CONTROLLER_EPOCH, znodes.encode_epoch(1))])
            return ControllerRegistration(broker_id, 1, 0, is_mine=True)
        epoch, version = znodes.decode_epoch(node.data) + 1, node.stat.version
        await tree.multi([create, SetData(znodes.CONTROLLER_EPOCH, znodes.encode_epoch(epoch), version)])
    except (NodeExists, BadVersion, NoNode):
        return None
    return ControllerRegistration(broker_id, epoch, version + 1, is_mine=True)


async def read_controller(tree: Tree) -> ControllerRegistration:
    """Returns the current controller. It is `is_mine` if this session created the node, even if the answer was lost."""
    node, epoch = await tree.get_many([znodes.CONTROLLER, znodes.CONTROLLER_EPOCH])
    number, version = (0, 0) if epoch is None else (znodes.decode_epoch(epoch.data), epoch.stat.version)
    if node is None:
        return ControllerRegistration(NO_LEADER, number, version, is_mine=False)
    is_mine = node.stat.ephemeral_owner == tree.session_id
    return ControllerRegistration(znodes.decode_controller(node.data), number, version, is_mine)


async def generate_broker_id(tree: Tree, *, reserved_max_id: int) -> int:
    """Returns an id that no broker has, above the ids that operators choose: the version of a node that all write."""
    await retry_until_connected(lambda: ensure_layout(tree))
    stat = await retry_until_connected(lambda: tree.set(znodes.BROKER_SEQUENCE, b""))
    return reserved_max_id + stat.version
