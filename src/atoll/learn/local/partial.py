"""How a client goes through its rows if not as its algorithm says: other amounts of work, and mini-batches with labelled rows.

A train message may contain ``"epochs": k``. The unit of ``k`` is the algorithm's: epochs, or local steps if it has ``steps``. It
replaces the algorithm's own number in every pass that is a local training of the algorithm's kind. Other passes and phases, such
as an anchor gradient, stay unchanged. Mini-batches come from the client's key as usual, so ``k`` epochs are the first ``k`` of more.
Stragglers do part of what a request asks for: ``1 .. k-1`` of ``k``. With ``"done": d`` in addition, the first ``d`` of the ``k`` were done before:
they are computed with the others, and take no time again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from atoll.core.algebra.rng import Rng, shuffles
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet

from ..algorithm import Labelled
from ..wrapped import innermost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..algorithm import Algorithm, Stragglers

__all__ = [
    "Counted",
    "PartialWork",
    "asked_epochs",
    "coming_epochs",
    "epochs_of_pass",
    "labelled_batches",
    "own_epochs",
    "quota",
    "require_partial",
    "share_of",
    "topped_up",
    "whole_times",
]


@dataclass(frozen=True)
class PartialWork:
    """How an algorithm goes through a client's rows, with a different number of epochs (or steps) than its own.

    Attributes:
        algorithm: the algorithm, with its mini-batches and stragglers.
        count: epochs, or steps if the algorithm counts them.
    """

    algorithm: Algorithm
    count: int

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return self.count

    @property
    def steps(self) -> int | None:
        """Local steps, if the algorithm counts them."""
        return None if self.algorithm.steps is None else self.count

    @property
    def batch_size(self) -> int | None:
        """The algorithm's batch size."""
        return self.algorithm.batch_size

    @property
    def cyclic(self) -> bool:
        """Whether the algorithm's batches are cyclic."""
        return self.algorithm.cyclic

    @property
    def stragglers(self) -> Stragglers | None:
        """The algorithm's stragglers."""
        return self.algorithm.stragglers

    def batch_of(self, n: Any) -> Any:
        """Return the algorithm's batch size for ``n`` examples."""
        return self.algorithm.batch_of(n)


Counted: TypeAlias = "Algorithm | PartialWork"
"""Determines how a client goes through its rows: an algorithm, or a `PartialWork` of one."""


def quota(algorithm: Algorithm, epochs: int | None) -> Counted:
    """Return the algorithm's own work for ``None``, otherwise ``epochs`` epochs (or steps)."""
    return algorithm if epochs is None else PartialWork(algorithm, epochs)


def own_epochs(algorithm: Algorithm) -> int:
    """Return the algorithm's own number: its steps if it counts them, otherwise its epochs."""
    return algorithm.epochs if algorithm.steps is None else algorithm.steps


def require_partial(algorithm: Algorithm, where: str = "Training.algorithm") -> None:
    """Refuse an algorithm that does not support a different amount of local work.

    Raises:
        CompositionError: ``Algorithm.partial`` is false.
    """
    if not algorithm.partial:
        raise CompositionError(
            f"the request asks for another amount of local work, but {type(algorithm).__name__} requires its own",
            where=where,
            remedy="use an algorithm of local steps such as FedAvg, FedProx or Scaffold",
        )


def asked_epochs(algorithm: Algorithm, message: Tree) -> int | None:
    """Return the epochs that a train message asks for; ``None`` for the algorithm's own number.

    Raises:
        ConfigError: ``"epochs"`` is not a whole number of at least 1.
        CompositionError: the algorithm does not support another number than its own.
    """
    asked = message.get("epochs") if isinstance(message, Mapping) else None
    if asked is None:
        return None
    if isinstance(asked, bool) or not isinstance(asked, Integral) or int(asked) < 1:
        raise ConfigError(f"epochs={asked!r}", where="the train message", remedy="use a whole number, at least 1")
    if int(asked) == own_epochs(algorithm):
        return None
    require_partial(algorithm, "the train message")
    return int(asked)


def coming_epochs(algorithm: Algorithm, message: Tree) -> int | None:
    """Return the rest of ``asked_epochs``: a client that continues from its own model has done the message's ``"done"`` epochs before."""
    asked = asked_epochs(algorithm, message)
    done = int(message.get("done", 0)) if isinstance(message, Mapping) else 0
    if not done:
        return asked
    own = own_epochs(algorithm)
    whole = own if asked is None else asked
    if not 0 <= done < whole:
        raise ConfigError(
            f"done={done} of epochs={whole}", where="the train message", remedy="use fewer than the epochs"
        )
    return None if whole - done == own else whole - done


def whole_times(algorithm: Algorithm, asked: int | None) -> int:
    """Return how often to run a local training that cannot be divided: once per the algorithm's own epochs (or steps).

    Raises:
        CompositionError: the requested number is not a multiple of the algorithm's own.
    """
    own = own_epochs(algorithm)
    if asked is not None and asked % own:
        raise CompositionError(
            f"epochs={asked}, but this model runs its own training, {own} at a time",
            where="the train message",
            remedy=f"ask for a multiple of {own}, set epochs=1 in the algorithm, or use a model with gradients for Atoll (atoll.models, PyTorch)",
        )
    return 1 if asked is None else asked // own


def epochs_of_pass(algorithm: Algorithm, part: Algorithm, asked: int | None) -> int | None:
    """Return the epochs requested of one of the algorithm's passes; ``None`` for a pass that is not a local training of its kind."""
    return asked if type(innermost(part)) is type(innermost(algorithm)) else None


# ---------------------------------------------------------------- mini-batches with enough labelled rows


def share_of(algorithm: Algorithm) -> float:
    """Return the share of labelled rows that mini-batches need; 0 for those that are drawn for privacy's sake, or are the same in every round."""
    return 0.0 if algorithm.cyclic or algorithm.example_steps is not None else facet(algorithm, Labelled).labelled_share


def topped_up(orders: NDArray[Any], labelled: NDArray[np.bool_], share: float, key: int) -> NDArray[Any]:
    """Replace unlabelled rows of one client's mini-batches by labelled ones where these are too few.

    A mini-batch of ``m`` rows then holds at least ``min(ceil(share m), L)`` of the client's ``L`` labelled rows, none of them twice. Its size stays, and the
    rows that leave are its last unlabelled ones. Labelled rows take turns, in an order of the client's key.

    Args:
        orders: row numbers, ``(steps, size)``; -1 fills a partial batch.
        labelled: which of the client's rows have a label, ``(rows,)``.
        share: between 0 and 1.
        key: the client's random key.
    """
    known = np.flatnonzero(labelled)
    if not len(known) or len(known) == len(labelled) or share <= 0.0:
        return orders
    real = orders >= 0
    marked = labelled[orders] & real
    # The small number keeps a product such as .1 * 30 from a row too many.
    wanted = np.minimum(np.ceil(share * real.sum(1) - 1e-9), len(known)).astype(np.int64)
    missing = wanted - marked.sum(1)
    if (missing <= 0).all():
        return orders
    made = np.array(orders)
    turns = known[shuffles(np.array([Rng(int(key)).child("labelled").key], np.uint64), 1, len(known))[0, 0]]
    most = int(np.ceil(share * orders.shape[1] - 1e-9))
    for step in np.flatnonzero(missing > 0).tolist():
        own = np.roll(turns, -step * most)
        own = own[~np.isin(own, orders[step])][: missing[step]]
        made[step, np.flatnonzero(real[step] & ~marked[step])[-len(own) :]] = own
    return made


def labelled_batches(
    batches: Sequence[NDArray[Any]], labelled: NDArray[np.bool_], share: float, key: int
) -> list[NDArray[Any]]:
    """Do as `topped_up` with a list of one client's mini-batches; the first is the largest."""
    if not len(batches) or len(batches[0]) == len(labelled):
        return list(batches)
    orders = np.full((len(batches), len(batches[0])), -1, dtype=np.int64)
    for step, rows in enumerate(batches):
        orders[step, : len(rows)] = rows
    return [rows[rows >= 0] for rows in topped_up(orders, labelled, share, key)]
