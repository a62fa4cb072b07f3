"""A server's state, as courses and nodes that are their own servers keep it: its start, its model, and further broadcast entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.core.algebra.tree import Tree

from ..offered import wants_round

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from ..context import Context

__all__ = ["broadcast_extras", "global_model", "initial"]


def initial(fed: Federation, context: Context) -> Tree:
    """Return the state of a training before its first round."""
    params = context.learner.init(fed.rng.child("init"))
    context.aggregation.check(context.algorithm, params)
    return {
        "server": context.algorithm.init(params),
        "aggregation": context.aggregation.init(params),
        "weight": None,
        "selection": context.selection.init(fed.parties),
        "contacts": 0,
        "buffers": context.learner.buffers(),
        "down": {},
        "fitted": {},
    }


def global_model(state: Tree) -> Tree:
    """Return the global model: its parameters, and the running statistics that clients average."""
    params = state["server"]["params"]
    return {**params, **state["buffers"]} if state["buffers"] else params


def broadcast_extras(state: Tree, learner: Any, number: int) -> Tree:
    """Return broadcast entries besides the algorithm's: running statistics, if there are any, and the contact's number if the loss needs it.

    Args:
        state: a state with ``"buffers"``.
        learner: its ``wants_round`` says whether the loss needs the number.
        number: the contact's number.
    """
    statistics = {"buffers": state["buffers"]} if state["buffers"] else {}
    return {**statistics, "round": number} if wants_round(learner) else statistics
