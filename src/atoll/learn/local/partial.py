"""Partial work: a request may ask clients for another number of local epochs than the algorithm's own.

A train message may hold ``"epochs": k``. ``k`` is in the unit that the algorithm counts in: epochs, or local steps where it has ``steps``. It
takes the place of the algorithm's own number in every pass that is a local training of the algorithm's kind; passes and phases beside it, such
as an anchor gradient, stay as they are. Mini-batches are those of the client's key as ever, so ``k`` epochs are the first ``k`` of more.
Stragglers do a part of what they are asked for: ``1 .. k-1`` of ``k``. With ``"done": d`` besides, the first ``d`` of the ``k`` were done before:
they are worked out with the others, and take no time again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError

from ..wrapped import innermost

if TYPE_CHECKING:
    from ..algorithm import Algorithm
    from .stragglers import Stragglers

__all__ = [
    "Counted",
    "PartialWork",
    "asked_epochs",
    "coming_epochs",
    "epochs_of_pass",
    "own_epochs",
    "quota",
    "require_partial",
    "whole_times",
]


@dataclass(frozen=True)
class PartialWork:
    """How an algorithm goes through a client's rows, with another number of epochs (or steps) than its own.

    Attributes:
        algorithm: whose mini-batches and stragglers.
        count: epochs, or steps where the algorithm counts them.
    """

    algorithm: Algorithm
    count: int

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return self.count

    @property
    def steps(self) -> int | None:
        """Local steps, where they are counted."""
        return None if self.algorithm.steps is None else self.count

    @property
    def batch_size(self) -> int | None:
        """The algorithm's."""
        return self.algorithm.batch_size

    @property
    def cyclic(self) -> bool:
        """The algorithm's."""
        return self.algorithm.cyclic

    @property
    def stragglers(self) -> Stragglers | None:
        """The algorithm's."""
        return self.algorithm.stragglers

    def batch_of(self, n: Any) -> Any:
        """The algorithm's."""
        return self.algorithm.batch_of(n)


Counted: TypeAlias = "Algorithm | PartialWork"
"""What says how a client goes through its rows: an algorithm, or a `PartialWork` of one."""


def quota(algorithm: Algorithm, epochs: int | None) -> Counted:
    """The algorithm's own work for ``None``, else so many epochs (or steps)."""
    return algorithm if epochs is None else PartialWork(algorithm, epochs)


def own_epochs(algorithm: Algorithm) -> int:
    """The algorithm's own number: its steps where it counts them, else its epochs."""
    return algorithm.epochs if algorithm.steps is None else algorithm.steps


def require_partial(algorithm: Algorithm, where: str = "Training.algorithm") -> None:
    """Refuse an algorithm that cannot do with another amount of local work than its own.

    Raises:
        CompositionError: it says so, see ``Algorithm.partial``.
    """
    if not algorithm.partial:
        raise CompositionError(
            f"clients are asked for another amount of local work, and {type(algorithm).__name__} rests on its own",
            where=where,
            remedy="use an algorithm of local steps such as FedAvg, FedProx or Scaffold",
        )


def asked_epochs(algorithm: Algorithm, message: Tree) -> int | None:
    """What a train message asks for; ``None`` where it leaves the algorithm its own number.

    Raises:
        ConfigError: ``"epochs"`` is no whole number of at least 1.
        CompositionError: the algorithm cannot do with another number than its own.
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
    """What is still to be done of ``asked_epochs``: a client that goes on from its own model has done the message's ``"done"`` before."""
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
    """How often a local training that cannot be divided is to be run: once for the algorithm's own epochs (or steps).

    Raises:
        CompositionError: what is asked for is no whole multiple of the algorithm's own.
    """
    own = own_epochs(algorithm)
    if asked is not None and asked % own:
        raise CompositionError(
            f"epochs={asked}, and this model runs its own training, {own} at a time",
            where="the train message",
            remedy=f"ask for a multiple of {own}, set epochs=1 in the algorithm, or use a model whose gradients Atoll takes",
        )
    return 1 if asked is None else asked // own


def epochs_of_pass(algorithm: Algorithm, part: Algorithm, asked: int | None) -> int | None:
    """What is asked of one of the algorithm's passes; ``None`` for one that is not a local training of its kind."""
    return asked if type(innermost(part)) is type(innermost(algorithm)) else None
