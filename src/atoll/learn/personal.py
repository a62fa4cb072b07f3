"""Personal models: what a client itself uses, and how it is measured where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.aggregate import Aggregate, Parts
from atoll.core.errors import CompositionError
from atoll.core.tree import Tree

from .algorithm import Algorithm
from .evaluation import as_parts
from .wrapped import overrides

if TYPE_CHECKING:
    from atoll.core.island import Island

__all__ = ["Personal", "measured", "own_model", "require_personal"]


class Personal(Protocol):
    """A learner that knows its clients' own models."""

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Sums over a data set."""
        ...

    def personal(self, params: Tree, state: Tree) -> Tree:
        """The model of a client with this private state (``None``: it has not trained), beside the global one."""
        ...


def own_model(algorithm: Algorithm, params: Tree, client: Tree) -> Tree:
    """``algorithm.personal``, with what travels beside the parameters (running statistics) as it is in the global model."""
    return {**params, **algorithm.personal(params, client)}


def require_personal(algorithm: Algorithm, learner: Any, local_buffers: bool) -> None:
    """Refuse to measure personal models where there are none.

    Raises:
        CompositionError: the algorithm keeps none, or the learner cannot say what they are.
    """
    if not overrides(algorithm, "personal") and not local_buffers:
        raise CompositionError(
            f"{type(algorithm).__name__} keeps no personal models",
            where="Evaluation.personal",
            remedy="use personal=False, or an algorithm such as atoll.learn.algorithms.Ditto or PFedMe",
        )
    if not hasattr(learner, "personal"):
        raise CompositionError(
            f"{type(learner).__name__} has no `personal(params, state)`",
            where="Evaluation.personal",
            remedy="give it one, or use personal=False",
        )


def measured(learner: Personal, island: Island, message: Tree) -> dict[str, Aggregate]:
    """A client's reply to ``measure``: the global model on its rows and, if the message says ``"personal"``, its own model too."""
    reply: dict[str, Aggregate] = {**as_parts(learner.evaluate(message["params"], island.data))}
    if message.get("personal"):
        sums = learner.evaluate(learner.personal(message["params"], island.state), island.data)
        value = {name: np.float64(v) for name, v in sums.items()}
        reply["personal"] = Parts(value, examples=float(sums["n"]), metric=True)
    return reply
