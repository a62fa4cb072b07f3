"""Personal models: the model that a client uses itself, measured at the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Parts
from atoll.core.algebra.tree import Tree
from atoll.core.facets import facet

from ..algorithm import Algorithm, Stateful
from ..offered import SupportsPersonal
from .row_sums import as_parts

if TYPE_CHECKING:
    from atoll.core.requests.island import Island

__all__ = ["Personal", "measured", "own_model"]


class Personal(SupportsPersonal, Protocol):
    """A learner that knows its clients' own models and can evaluate any model."""

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums over a data set."""
        ...


def own_model(algorithm: Algorithm, params: Tree, client: Tree) -> Tree:
    """Return ``algorithm.personal``, with running statistics, which travel with the parameters, from the global model."""
    return {**params, **facet(algorithm, Stateful).personal(params, client)}


def measured(learner: Personal, island: Island, message: Tree) -> dict[str, Aggregate]:
    """Return a client's reply to ``measure``: the global model on its rows and, if the message says ``"personal"``, its own model too."""
    reply: dict[str, Aggregate] = {**as_parts(learner.evaluate(message["params"], island.data))}
    if message.get("personal"):
        sums = learner.evaluate(learner.personal(message["params"], island.state), island.data)
        value = {name: np.float64(v) for name, v in sums.items()}
        reply["personal"] = Parts(value, examples=float(sums["n"]), role="metric")
    return reply
