"""The contract of a selection rule: whom a round invites, from what the server saw and may ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from atoll.core.algebra.rng import Rng
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
from atoll.core.requests.island import Secret
from atoll.core.requests.party import Parties
from atoll.core.validation import Checked

from ..capabilities import DRAW_ODDS, MEAN_UPDATE, ONE_MODEL, REPORTS, ROUNDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.task import Task

    from ..learner import Learner

__all__ = [
    "Candidates",
    "Inquired",
    "Inquiry",
    "Seen",
    "Selection",
    "candidates_of",
    "draw",
    "members",
    "places_among",
    "places_found",
    "places_of",
    "top",
]


@dataclass(frozen=True)
class Candidates:
    """Clients that a rule may invite.

    Attributes:
        parties: clients that are available now, in the order of their names.
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


def candidates_of(fed: Federation, parties: Parties, number: int, sizes: Any) -> Candidates:
    """Return some parties as a round's candidates, in the order of their names, so that a draw does not depend on the order in which they are listed.

    Args:
        fed: the federation.
        parties: the parties.
        number: 1-based number of the round.
        sizes: examples of each party of the federation, or ``None``.
    """
    there = parties.by_name()
    known = None if sizes is None else np.asarray(sizes)[places_of(fed.parties.positions, there.positions)]
    return Candidates(there, number, fed.rng.child("selection", number), lambda: known)


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


# ---------------------------------------------------------------- a conversation between a selection rule and clients


@dataclass(frozen=True)
class Inquired:
    """Parties to ask, and the model to ask about.

    Attributes:
        parties: the parties, each once.
        model: parameters, and buffers if they travel, by name.
        known: whether the parties have the model already, because the round sent it.
        round: 1-based number of the contact.
        deadline: seconds for each answer; ``None`` for no limit.
    """

    parties: Parties
    model: Tree
    known: bool
    round: int
    deadline: float | None


class Inquiry(Protocol):
    """A conversation that replaces a rule's ``reports``: with the clients of its ``survey``, and with those that replied in a round."""

    @property
    def others(self) -> Mapping[str, str]:
        """Parties that the conversation needs in addition to the clients, name -> role."""
        ...

    def check(self, learner: Learner) -> None:
        """Refuse a learner that cannot take part, before any client is contacted."""
        ...

    def tasks(self, learner: Learner) -> tuple[Task, ...]:
        """Return the tasks that the world must know by name."""
        ...

    async def hold(
        self, fed: Federation, learner: Learner, rows: Any, asked: Inquired, memory: Tree
    ) -> tuple[Seen, Tree]:
        """Hold the conversation. Return its result, for ``heard`` or ``accept``, and the rule's memory with what the conversation keeps.

        Args:
            fed: the federation.
            learner: the training's learner.
            rows: the server's own rows.
            asked: the parties and the model.
            memory: the rule's memory.
        """
        ...


# ---------------------------------------------------------------- weighted draws that work with tiny weights


def draw(rng: Rng, logits: NDArray[np.float64], count: int, *, replace: bool = False) -> NDArray[np.int64]:
    """Draw ``count`` indices, each with probability proportional to ``exp(logits)`` among the remaining ones.

    Without replacement, it takes the ``count`` largest of ``logits + Gumbel noise``, which has the distribution of successive draws (Yellott 1977)
    and needs no normalised probability, so that scores far below the smallest float still have an order.

    Args:
        rng: the random stream of this draw.
        logits: logarithms of the weights, ``(n,)``; ``-inf`` is never drawn.
        count: number of draws; without replacement, limited to the indices that can be drawn.
        replace: whether an index may be drawn again.

    Returns:
        Indices in the order of the draw; empty if nothing can be drawn.
    """
    able = int(np.isfinite(logits).sum())
    if able == 0 or count == 0:
        return np.zeros(0, dtype=np.int64)
    numbers = rng.generator()
    if replace:
        weights = np.exp(logits - logits.max())
        return np.asarray(numbers.choice(len(logits), size=count, p=weights / weights.sum()), dtype=np.int64)
    noisy = logits + numbers.gumbel(size=len(logits))
    return np.argsort(-noisy, kind="stable")[: min(count, able)].astype(np.int64)


def top(rng: Rng, values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return indices of the ``count`` largest values, the largest first; ties in random order; ``-inf`` never."""
    able = int((values > -np.inf).sum())
    order = np.lexsort((rng.generator().random(len(values)), -values))
    return order[: min(count, able)].astype(np.int64)


# ---------------------------------------------------------------- the rows of clients in columns


def members(parties: Parties) -> NDArray[np.int64]:
    """Return the positions of the clients that a rule started with, ascending: its columns have one entry for each, in this order."""
    return np.sort(np.asarray(parties.positions, dtype=np.int64))


def places_of(who: Any, positions: Any) -> NDArray[np.int64]:
    """Return the rows of some clients in the columns.

    Args:
        who: from `members`.
        positions: positions in the roster.
    """
    return np.searchsorted(who, np.asarray(positions, dtype=np.int64))


def places_among(who: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of some clients in columns of any order; each client must occur once."""
    order = np.argsort(who, kind="stable")
    return np.asarray(order[np.searchsorted(who, positions, sorter=order)])


def places_found(who: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `places_among` of the clients that are in ``who``; the others are left out."""
    if not len(who) or not len(positions):
        return np.zeros(0, dtype=np.int64)
    place = np.full(max(int(who.max()), int(positions.max())) + 1, -1, dtype=np.int64)
    place[who] = np.arange(len(who))
    found = place[positions]
    return found[found >= 0]


# ---------------------------------------------------------------- the contract of a selection rule


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

    @property
    def most_asked(self) -> int | None:
        """How many clients a round shall invite, if the rule names a number: if there are fewer, the result says so."""
        count = getattr(self, "count", None)
        return count if isinstance(count, int) else None

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
        """Return which replies a round takes, if the rule ``picks``; see `atoll.core.requests.results.AcceptRule`.

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
