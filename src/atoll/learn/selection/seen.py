"""The input of a selection rule: candidates to invite, and the results of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.requests.island import Secret
from atoll.core.requests.party import Parties

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Candidates", "Seen"]


@dataclass(frozen=True)
class Candidates:
    """Clients that a rule may invite.

    Attributes:
        parties: clients that are available now.
        round: 1-based number of the round.
        rng: the stream of this round's selection.
        secret: gives the server's own secret stream of this round's selection, the same at every call.
        sizes: returns the number of examples of each candidate, shape ``(candidates,)``, or ``None`` if unknown.
        seconds: returns the expected duration of each candidate if nothing goes wrong, shape ``(candidates,)``, or ``None`` if unknown.
    """

    parties: Parties
    round: int
    rng: Rng
    sizes: Callable[[], Any] = lambda: None
    seconds: Callable[[], NDArray[np.float64] | None] = lambda: None
    secret: Callable[[], Secret] = Secret


def _nothing(name: str) -> Tree:
    raise KeyError(name)


@dataclass(frozen=True)
class Seen:
    """The results of a round, or of a survey before it.

    Attributes:
        round: 1-based number of the round.
        asked: the invited clients.
        replied: clients whose replies were taken, in cohort order.
        seconds: time from sending to arrival for each client in ``replied``; zeros in a world without devices.
        reports: name -> one value per client in ``replied``; see ``Selection.reports``.
        examples: rows behind the reports of each in ``replied``; empty without reports. A client with 0 rows reported nothing: its values are zeros.
        versions: for each client in ``replied``, the 1-based round of the model that it reports on; ``None`` means this round, as in every
            synchronous pacing.
        pending: rounds with models that some client still has, and may report on later; ``None`` if reports are about their own round.
        row: the round's record so far.
        model: the model last sent to the clients in ``replied``; ``None`` if none was sent, and with asynchronous pacings.
        own: called with a report's name; returns the server's own report, about its own data and the model that it sent.
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
