"""Creates the logins of all SASL listeners of a broker. A broker without such a listener never imports this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kbroker.server.authentication.mechanisms import MechanismBuilder
from kbroker.server.authentication.sasl_listener import SaslListener

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.dispatch import Dispatch
    from kbroker.server.wire.network import Network

__all__ = ["open_sasl_listeners"]


async def open_sasl_listeners(
    context: Context, dispatch: Dispatch, network: Network, background: trio.Nursery
) -> dict[str, SaslListener]:
    """Returns the logins by listener. Loads the keys of token issuers, and keeps them fresh in `background`.

    Raises UserError if a listener has configs that cannot work.
    """
    config, clock = context.config, context.clock
    builder = MechanismBuilder(config, lambda: context.controller.image, context.tokens, clock)
    listeners = {
        endpoint.name: SaslListener(
            config.listener_config(endpoint.name),
            builder.build(endpoint.name),
            dispatch=dispatch,
            network=network,
            deadlines=context.deadlines,
            clock=clock,
        )
        for endpoint in config.endpoints
        if endpoint.security_protocol.startswith("SASL_")
    }
    for keys in builder.key_sets:
        await keys.load()
        background.start_soon(keys.run)
    return listeners
