"""What a selection rule is told: whom it may invite, and what a round showed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.requests.party import Parties

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Candidates", "Seen"]


@dataclass(frozen=True)
class Candidates:
    """Whom a rule may invite.

    Attributes:
        parties: those who can be asked now.
        round: 1-based number of the round.
        rng: the stream of this round's selection.
        sizes: called for the number of examples of each candidate, shape ``(candidates,)``, when the rule wants it; ``None`` when unknown.
        seconds: called for how long each is expected to take if nothing goes wrong, shape ``(candidates,)``; ``None`` when nobody knows.
    """

    parties: Parties
    round: int
    rng: Rng
    sizes: Callable[[], Any] = lambda: None
    seconds: Callable[[], NDArray[np.float64] | None] = lambda: None


def _nothing(name: str) -> Tree:
    raise KeyError(name)


@dataclass(frozen=True)
class Seen:
    """What a round, or a survey before it, showed.

    Attributes:
        round: 1-based number of the round.
        asked: who was invited.
        replied: whose replies were taken, in cohort order.
        seconds: from sending to arrival, of each in ``replied``; zeros in a world without devices.
        reports: name -> one value a client of ``replied``; see ``Selection.reports``.
        examples: rows behind the reports of each in ``replied``; empty without reports. A client with none told nothing: its values are zeros.
        versions: of which round each in ``replied`` had the model that it reports on, 1-based; ``None`` is this round, as everywhere but at an
            asynchronous pace.
        pending: rounds whose models somebody still has, and may report on later; ``None`` where reports are of their round.
        row: the round's record so far.
        model: what those in ``replied`` were sent last; ``None`` where nobody was, and at asynchronous paces.
        own: called with a report's name: the same report by the server, about its own data and the model that it sent.
    """

    round: int
    asked: Parties
    replied: Parties
    seconds: NDArray[np.float64]
    reports: Mapping[str, list[Tree]] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)
    own: Callable[[str], Tree] = _nothing
    examples: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    versions: NDArray[np.int64] | None = None
    model: Tree = None
    pending: NDArray[np.int64] | None = None
