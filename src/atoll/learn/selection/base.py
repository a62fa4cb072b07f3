"""The contract of a selection rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.capability import (
    CENTRAL_SERVER,
    DISTINCT_CLIENTS,
    REPLIES_ONLY,
    SERVER,
    SINGLE_REPLIES,
    Capability,
    Need,
)
from atoll.core.requests.party import Parties
from atoll.core.validation import Checked

from ..capabilities import DRAW_ODDS, MEAN_UPDATE, ONE_MODEL, REPORTS, ROUNDS
from .seen import Candidates, Seen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .inquiry import Inquiry

__all__ = ["Selection"]


_LISTENING = (
    Need(SERVER, "compares what clients report", "Uniform()"),
    Need(SINGLE_REPLIES, "looks at what single clients report", "Uniform()"),
    Need(ROUNDS, "compares clients' reports about one model", "Uniform() or another rule that invites"),
)
_INQUIRING = (
    Need(CENTRAL_SERVER, "asks a round's cohort about the model of one server", 'matching="clear"'),
    Need(ONE_MODEL, "asks a round's cohort about one model", 'matching="clear"'),
    Need(REPORTS, "asks for profiles, in part encrypted", "Uniform()"),
)


@dataclass(frozen=True)
class Selection(Checked):
    """Base class of selection rules: pure, with its memory in ``state`` (a tree that checkpoints carry).

    ``survey`` and ``invite`` run before the round, ``take`` while replies arrive, ``heard`` and ``accept`` when they are in.
    """

    picks: ClassVar[bool] = False
    """Whether ``take`` chooses among the replies of a round."""
    random_size: ClassVar[bool] = False
    """Whether the size of a cohort is random, so that a round may invite no client."""
    surveys_only: ClassVar[bool] = False
    """Whether only surveys ask for ``reports``, not every reply."""

    @property
    def repeats(self) -> bool:
        """Whether a round may draw a client twice; its reply then counts twice."""
        return False

    @property
    def tells_odds(self) -> bool:
        """Whether a round's draws are independent, with probabilities ``odds``."""
        return False

    def odds(self, candidates: Candidates, state: Tree) -> NDArray[np.float64]:
        """Return the probability that a draw of this round picks each candidate, ``(candidates,)``, if the rule ``tells_odds``."""
        raise NotImplementedError

    @property
    def reports(self) -> Mapping[str, Any]:
        """Reports that surveys ask for and every reply adds, name -> options: ``{"loss": None}``, ``{"profile": {"layer": "auto"}}``; see ``Learner``."""
        return {}

    @property
    def inquiry(self) -> Inquiry | None:
        """The conversation in which clients report to the rule, if ``reports`` are not enough; ``reports`` are then empty."""
        return None

    @property
    def listens(self) -> bool:
        """Whether the rule looks at reports of single clients."""
        return bool(self.reports) or self.inquiry is not None

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer, from the properties above; add your own rows to ``super().needs``."""
        made: list[Need] = []
        if self.listens:
            made += _LISTENING
        elif self.picks:
            made.append(Need(ROUNDS, "chooses among the replies of a round", "Uniform() or another rule that invites"))
        if self.reports:
            made.append(Need(REPORTS, f"needs clients to report {', '.join(self.reports)}", "Uniform()"))
        if "sketch" in self.reports:
            made.append(Need(MEAN_UPDATE, "compares clients' updates", "a rule that does not look at updates"))
        return (*made, *(_INQUIRING if self.inquiry is not None else ()))

    @property
    def offers(self) -> frozenset[Capability]:
        """What the rule offers to the other parts of a training."""
        told = {DISTINCT_CLIENTS: not self.repeats, DRAW_ODDS: self.tells_odds, REPLIES_ONLY: not self.listens}
        return frozenset(capability for capability, there in told.items() if there)

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the rule does not offer, if the capability's own text says too little."""
        told = ", ".join(self.reports) or "profiles, in part encrypted"
        return {REPLIES_ONLY: f"needs reports ({told}), which would leave the clients without noise"}

    def distinct(self, population: int) -> int | None:
        """Return how many different clients every round invites if all are available; ``None`` if unknown beforehand."""
        del population
        return None

    def init(self, parties: Parties) -> Tree:
        """Return the rule's initial memory."""
        del parties
        return None

    def check(self, groups: Sequence[NDArray[np.int64]]) -> None:
        """Refuse settings that do not fit these clients, before any client is contacted.

        Args:
            groups: for each server of the topology, the positions of the clients that it may invite.
        """

    def cohort_size(self, population: int) -> int:
        """Return the number of replies wanted in a round."""
        return population

    def turns(self, population: int, rounds: int) -> tuple[int, int]:
        """Return in how many rounds one client is invited at most, and how many rounds lie from one of them to the next, at least.

        Args:
            population: number of clients.
            rounds: number of rounds.
        """
        del population
        return rounds, 1

    def wanted(self, population: int, invited: int) -> int:
        """Return the number of replies wanted of a round's invited clients; a rule with cohorts of random size wants all."""
        return invited if self.random_size else min(self.cohort_size(population), invited)

    def drawn(self, population: int) -> tuple[float, str] | None:
        """Return rate and scheme (``"poisson"`` or ``"fixed"``) of a sample that is drawn from the server's secret; ``None`` for other rules."""
        del population
        return None

    def survey(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any] | None:
        """Return indices of the candidates to ask for their ``reports`` before the invitations; ``None`` asks no client."""
        del candidates, count, state
        return None

    def heard(self, seen: Seen, state: Tree) -> Tree:
        """Learn from a survey; return the new memory."""
        del seen
        return state

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return indices into ``candidates.parties`` of ``count`` clients to invite, without repetition unless ``repeats``."""
        raise NotImplementedError

    def take(self, arrived: NDArray[np.int64], count: int, state: Tree) -> tuple[NDArray[np.int64], int | None]:
        """Return which replies a round takes, if the rule ``picks``; see `atoll.core.requests.results.Taker`.

        Args:
            arrived: positions of clients with a reply in time, in order of arrival.
            count: replies wanted.
            state: the rule's memory.

        Returns:
            Indices into ``arrived``, and the index at which the round closes, ``None`` if it keeps waiting. By default the first ``count``.
        """
        del state
        full = len(arrived) >= count
        return np.arange(min(count, len(arrived)), dtype=np.int64), count - 1 if full else None

    def missing(self, arrived: NDArray[np.int64], count: int, state: Tree) -> int:
        """Return how many more replies at least must arrive before a round can be full; see ``take``."""
        del state
        return count - len(arrived)

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Learn from a round; return the new memory."""
        del seen
        return state
