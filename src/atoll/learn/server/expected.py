"""What the server expects of the replies to a phase, from contacts without a step: names, shapes, metrics and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Parts
from atoll.core.requests.request import ReplyForm

from ..local.leaving import BUFFERS, arrays_leaving
from ..local.reports import key_of
from ..wrapped import dry_reply

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree

    from ..context import Context

__all__ = ["reply_form"]


def reply_form(context: Context, state: Tree, phase: str, reports: Mapping[str, Any] | None = None) -> ReplyForm:
    """Return the form of a client's reply in a phase.

    Args:
        context: the training's context.
        state: a server's state, with ``"server"`` and ``"buffers"``; only the form of its model matters.
        phase: the phase.
        reports: the reports that were asked for: name -> options.
    """
    algorithm, params, buffers = context.local_algorithm, state["server"]["params"], state.get("buffers")
    one, three = (dry_reply(algorithm, params, phase, examples) for examples in (1.0, 3.0))
    later = dry_reply(algorithm, params, phase, 3.0, steps=2.0)
    optional: dict[str, Aggregate | None] = {
        key_of(name): _report(name, told) for name, told in (reports or {}).items()
    }
    if buffers:
        optional[BUFFERS] = arrays_leaving(algorithm, params, buffers, phase)[BUFFERS]
    weights = {
        name: (float(one[name].weight), float(three[name].weight))
        for name in one
        if float(three[name].weight) == float(later[name].weight)  # those that depend on the steps have no bound
    }
    heaviest = (max((w for w, _ in weights.values()), default=1.0), max((w for _, w in weights.values()), default=3.0))
    # A client of an algorithm with several models gives weight to the one that it chooses.
    weights = {name: heaviest if pair == (0.0, 0.0) else pair for name, pair in weights.items()}
    examples = dict.fromkeys((*optional, "loss"), (1.0, 3.0))
    return ReplyForm(one, optional, context.learner_metrics, {**examples, **weights})


def _report(name: str, options: Any) -> Aggregate | None:
    """Return an example of a report whose form is known; ``None`` for others."""
    if name == "loss":
        return Parts(np.float64(0.0), role="report")
    if name == "sketch":
        return Parts(np.zeros(int(options["size"])), role="report")
    return None
