"""The contract of a selection rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.kinds import Checked
from atoll.core.party import Parties
from atoll.core.rng import Rng
from atoll.core.tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .inquiry import Inquiry

__all__ = ["Candidates", "Seen", "Selection"]


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


@dataclass(frozen=True)
class Selection(Checked):
    """Base of selection rules: pure, with its memory in ``state`` (a tree that checkpoints carry).

    ``survey`` and ``invite`` run before the round, ``take`` while replies arrive, ``heard`` and ``accept`` when they are in.
    """

    picks: ClassVar[bool] = False
    """Whether ``take`` chooses among the replies of a round."""
    surveys_only: ClassVar[bool] = False
    """Whether ``reports`` are wanted of surveys alone, and not of every reply."""

    @property
    def repeats(self) -> bool:
        """Whether a client may be drawn twice in a round; its reply then counts twice."""
        return False

    @property
    def tells_odds(self) -> bool:
        """Whether a round's draws are independent, with the probabilities of ``odds``."""
        return False

    def odds(self, candidates: Candidates, state: Tree) -> NDArray[np.float64]:
        """Probability with which each draw of this round is this candidate, ``(candidates,)``; where the rule ``tells_odds``."""
        raise NotImplementedError

    @property
    def reports(self) -> Mapping[str, Any]:
        """What surveys ask, and every reply carries besides, name -> options: ``{"loss": None}``, ``{"profile": {"layer": "auto"}}``; see ``Learner``."""
        return {}

    @property
    def inquiry(self) -> Inquiry | None:
        """The conversation in which clients tell what the rule wants to know, where that takes more than ``reports``, which are then none."""
        return None

    @property
    def listens(self) -> bool:
        """Whether it looks at what single clients tell."""
        return bool(self.reports) or self.inquiry is not None

    def init(self, parties: Parties) -> Tree:
        """The rule's memory at the start."""
        del parties
        return None

    def check(self, groups: Sequence[NDArray[np.int64]]) -> None:
        """Refuse settings that do not fit these clients, before anyone is contacted.

        Args:
            groups: positions of those among whom each server of the topology invites.
        """

    def cohort_size(self, population: int) -> int:
        """Replies wanted in a round."""
        return population

    def survey(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any] | None:
        """Indices of candidates who are asked for their ``reports`` before anyone is invited; ``None`` asks nobody."""
        del candidates, count, state
        return None

    def heard(self, seen: Seen, state: Tree) -> Tree:
        """Learn from a survey; return the new memory."""
        del seen
        return state

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Indices into ``candidates.parties`` of ``count`` clients to ask, without repetition unless ``repeats``."""
        raise NotImplementedError

    def take(self, arrived: NDArray[np.int64], count: int, state: Tree) -> tuple[NDArray[np.int64], int | None]:
        """Which replies a round takes, where the rule ``picks``; see `atoll.core.results.Taker`.

        Args:
            arrived: positions of those whose reply comes in time, in order of arrival.
            count: replies wanted.
            state: the rule's memory.

        Returns:
            Places in ``arrived``, and the place at which the round closes, ``None`` if it waits on. By default the first ``count``.
        """
        del state
        full = len(arrived) >= count
        return np.arange(min(count, len(arrived)), dtype=np.int64), count - 1 if full else None

    def missing(self, arrived: NDArray[np.int64], count: int, state: Tree) -> int:
        """At least so many more replies must come before a round can be full; see ``take``."""
        del state
        return count - len(arrived)

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Learn from a round; return the new memory."""
        del seen
        return state
