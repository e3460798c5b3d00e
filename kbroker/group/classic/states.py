"""The states of a classic group, and the states that each may be entered from.

Empty                no members, perhaps offsets      from PreparingRebalance
PreparingRebalance   waits for members to (re)join    from Empty, CompletingRebalance, Stable
CompletingRebalance  waits for the leader to assign   from PreparingRebalance
Stable               every member has its assignment  from CompletingRebalance
Dead                 deleted; only in responses       from any
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["MAY_FOLLOW", "GroupState"]


class GroupState(Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


MAY_FOLLOW: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE},
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
"""State -> the states that it may be entered from."""
