"""PATE over clients (Papernot et al. 2017, 2018): clients' own models vote on public rows, and a student learns the winners."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Parts, Sum
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import NO_BUFFERS, RELEASED_ONLY, SERVER, Capability, Need
from atoll.core.errors import CompositionError, ConfigError, DataError, QuorumError
from atoll.core.event import Event, Gaussian
from atoll.core.requests.task import Task
from atoll.data.missing import labelled_rows
from atoll.learn.capabilities import CLASS_SCORES
from atoll.learn.checks import require_finite
from atoll.learn.selection.base import Seen, candidates_of
from atoll.learn.topology.base import Decentralised, NodeCourse, refuse
from atoll.learn.topology.node import Node
from atoll.privacy import LossTally, PrivacyLoss
from atoll.privacy.discrete import GaussianLattice, words_of
from atoll.privacy.events import Skellam
from atoll.privacy.renyi import NoisyVote, log_odds_of_answer, log_odds_of_winner
from atoll.secure.noise import SkellamNoise

from .dsfl import SoftTargets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island, Secret
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined
    from atoll.learn.context import Context
    from atoll.privacy.discrete import Source

__all__ = ["PATE", "PUBLIC", "VoteNoise", "VoteOutcome", "VoteRule", "VotingRounds", "check_votes", "votes_of"]

# Votes on rows, one a row, the noise that clients add to them, and what a server may hear of their counts.


NOBODY = -1
"""The class of a row that the vote does not answer."""


def votes_of(scores: Any) -> NDArray[np.float64]:
    """Return one vote for the class with the largest score of each row, ``(rows, classes)``: the first of equals."""
    found = np.zeros(np.shape(scores))
    found[np.arange(len(found)), np.argmax(scores, axis=1)] = 1.0
    return found


def check_votes(votes: Any, shape: tuple[int, int]) -> None:
    """Refuse what is not one vote a row, or none at all.

    Raises:
        DataError: names what it is.
    """
    sent = np.asarray(votes)
    if sent.shape != shape:
        raise DataError(f"votes of the shape {sent.shape}, not {shape}", where="PATE", remedy="send one vote a row")
    wrong = ~np.isin(sent, (0.0, 1.0)).all(axis=1) | (sent.sum(axis=1) > 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"the vote on row {row} is {sent[row].tolist()}", where="PATE", remedy="send one 1 a row")


@dataclass(frozen=True, kw_only=True)
class VoteNoise(SkellamNoise):
    """Skellam noise on votes, before they leave a client: whole numbers in words that add up, so that nothing is rounded and nothing lost.

    A client moves each row's counts by one vote, ``sqrt(rows)`` in all, or from one class to another, ``sqrt(2 rows)``. Make it with `among`.

    Attributes:
        rows: rows that are voted on.
    """

    rows: int

    @classmethod
    def among(cls, rows: int, sigma: float, least: int, *, replaced: bool, bits: int = 24) -> VoteNoise:
        """Return the noise for counts of ``rows`` rows with deviation ``sigma`` once ``least`` clients have voted."""
        apart = math.sqrt((2 if replaced else 1) * rows)
        settings: dict[str, Any] = {"multiplier": sigma / apart, "clip": math.sqrt(rows), "step": 1.0}
        return cls(rows=rows, least=least, replaced=replaced, bits=bits, **settings)

    @property
    def apart(self) -> float:
        """How far one client moves the counts."""
        return math.sqrt((2 if self.replaced else 1) * self.rows)

    def _round_vector(self, vector: NDArray[np.float64], source: Source) -> NDArray[np.int64]:
        del source
        check_votes(vector.reshape(self.rows, -1), (self.rows, len(vector) // self.rows))
        return vector.astype(np.int64)


@dataclass(frozen=True)
class VoteOutcome:
    """What is told of a vote.

    Attributes:
        labels: the winners, ``(rows,)``; `NOBODY` for rows without an answer.
        events: what it releases of every client that voted.
    """

    labels: NDArray[np.int64]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class VoteRule:
    """Which rows get an answer and which class wins: GNMax, or with a threshold Confident-GNMax (Papernot et al. 2018, algorithm 1).

    Answered are rows with ``max_j n_j + N(0, threshold_sigma^2) >= threshold``; the answer is ``argmax_j n_j + N(0, sigma^2)``.

    Attributes:
        sigma: deviation of the noise on each count.
        threshold: votes that the largest count needs; ``None`` answers every row.
        threshold_sigma: deviation of the noise of that check.
        replaced: whether neighbours change a vote, or add or remove one.
        dependent: whether events say how sure the outcomes were.
    """

    sigma: float
    threshold: float | None
    threshold_sigma: float
    replaced: bool = True
    dependent: bool = False

    def __post_init__(self) -> None:
        numbers = (self.sigma, self.threshold_sigma)
        if not all(n > 0 and math.isfinite(n) for n in numbers) or not (self.threshold is None or self.threshold > 0):
            raise ConfigError(
                f"sigma={self.sigma}, threshold={self.threshold}, threshold_sigma={self.threshold_sigma}",
                where="PATE",
                remedy="use finite deviations above 0, and a positive number of votes or None",
            )

    @property
    def multiplier(self) -> float:
        """Deviation of the noise on counts divided by how far one client moves those of a row."""
        return self.sigma / math.sqrt(2.0 if self.replaced else 1.0)

    def most(self, rows: int) -> tuple[Event, ...]:
        """Return what the outcome of ``rows`` rows releases at most, whatever the votes are."""
        answers = Gaussian(noise_multiplier=self.multiplier, count=rows)
        return (
            (answers,)
            if self.threshold is None
            else (Gaussian(noise_multiplier=self.threshold_sigma, count=rows), answers)
        )

    def outcome(self, counts: NDArray[Any], secret: Secret) -> VoteOutcome:
        """Return the outcome of exact counts ``(rows, classes)``, with noise of the server's own: whole numbers are on its lattices, so that nothing is rounded."""
        draw = words_of(secret.stream())
        counts = np.asarray(counts, np.float64)
        checked = np.ones(len(counts), bool)
        events: list[Event] = []
        if self.threshold is not None:
            largest = counts.max(axis=1)
            checked = GaussianLattice(self.threshold_sigma).add(largest, draw) >= self.threshold
            events += self._events([self._odds_of_check(row) for row in counts], self.threshold_sigma)
        noisy = GaussianLattice(self.sigma).add(counts, draw)
        asked = counts[checked]
        events += self._events([self._odds_of_winner(row) for row in asked], self.multiplier)
        return VoteOutcome(np.where(checked, noisy.argmax(axis=1), NOBODY), tuple(events))

    def find_winners(self, noisy: NDArray[Any]) -> NDArray[np.int64]:
        """Return the winners of counts that have their noise already: what is read off them releases nothing more."""
        winners = np.asarray(noisy).argmax(axis=1)
        return winners if self.threshold is None else np.where(np.max(noisy, axis=1) >= self.threshold, winners, NOBODY)

    def _odds_of_check(self, row: NDArray[Any]) -> float:
        return 0.0 if self.threshold is None else log_odds_of_answer(row, self.threshold_sigma, self.threshold)

    def _odds_of_winner(self, row: NDArray[Any]) -> float:
        return log_odds_of_winner(row, self.sigma)

    def _events(self, odds: Sequence[float], multiplier: float) -> list[Event]:
        """Return one event for all rows, or one for each if how sure they were counts."""
        if not odds:
            return []
        if not self.dependent:
            return [Gaussian(noise_multiplier=multiplier, count=len(odds))]
        rounded = [math.ceil(1e6 * value) / 1e6 for value in odds]
        return [
            NoisyVote(noise_multiplier=multiplier, log_other=min(0.0, value), count=rounded.count(value))
            for value in dict.fromkeys(rounded)
        ]


def fingerprint(counts: NDArray[Any], key: bytes) -> str:
    """Return a keyed hash of counts, which says nothing of them: equal counts get equal noise, and are recorded once."""
    plain = np.ascontiguousarray(counts, np.float64)
    return hashlib.blake2b(repr(plain.shape).encode() + plain.tobytes(), key=key, digest_size=16).hexdigest()


# The rounds of PATE: public rows from their party, votes from clients, answers into the ledger, and the student.


class VotingRounds(NodeCourse):
    """Fetch rows, let clients vote, tell the winners, train the student.

    Args:
        rule: the settings, a `PATE`.
        context: the training's.
    """

    def __init__(self, rule: Any, context: Context) -> None:
        self.rule = rule
        self.context = context
        self.node = Node(context.algorithm, context.learner)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Both tasks."""
        return (self.fetch, self.vote)

    @property
    def fetch(self) -> Task:
        """Send some public rows."""
        return Task("atoll.labels:public_rows", self._fetch)

    @property
    def vote(self) -> Task:
        """Train before the first vote, and vote."""
        return Task("atoll.labels:vote", self._vote, work=self.node.work)

    # ---------------------------------------------------------------- at the party with public rows, and at clients

    def _fetch(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        x = np.asarray(island.data["x"])
        order = Rng(int(message["order"])).generator().permutation(len(x))
        first = self.rule.rows * (int(message["round"]) - 1)
        return {"x": Parts(x[np.sort(order[first : first + self.rule.rows])], role="side")}

    async def _vote(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        if island.state is None:
            node = self.node.begin(message["init"])
            for turn in range(self.rule.teaching):
                node, _ = await self.node.round(island, node, turn + 1, label=f"teaching-{turn}")
            island.state = node
        x, learner = np.asarray(message["x"]), self.context.learner
        votes = votes_of(learner.scores(island.state["server"]["params"], x))  # type: ignore[attr-defined]
        if not labelled_rows(island.data).any():
            votes = np.zeros_like(votes)
        single = not self.context.reducer.secure and self.rule.noise_at == "server"
        return {"votes": Parts(votes) if single else Sum(votes)}

    # ---------------------------------------------------------------- the server

    def initial(self, fed: Federation) -> Tree:
        """Start with the model that every teacher starts with, and no answer."""
        key = fed.rng.child("init").key >> 1
        return {
            "params": self.node.begin(key)["server"]["params"],
            "init": key,
            "x": np.zeros(0, np.float32),
            "y": np.zeros(0, np.int64),
            "selection": self.context.selection.init(fed.parties),
        }

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Ask for rows and votes, and train the student on all answers so far."""
        invited = self._invite_parties(fed, state, number)
        row: dict[str, Any] = {"selected": len(invited), "replied": 0, "asked": 0, "answered": 0}
        try:
            x = await self._rows(fed, number)
            made = await self._votes(fed, state, number, invited, x) if len(x) else None
        except QuorumError as error:
            if self.context.pacing.on_failure == "stop":
                raise type(error)(error.what, where=f"round {number}, {error.where}", remedy=error.remedy) from error
            return state, {**row, "failed": str(error.what)}
        who = fed.parties[:0]
        if made is not None:
            counts, who = self._count_votes(fed, made, (len(x), self._classes(state, x)), row)
            found = self._outcome(fed, number, counts, who)
            told = found.labels != NOBODY
            row |= {"replied": len(who), "asked": len(x), "answered": int(told.sum())}
            state = _join_answers(state, x[told], found.labels[told])
        row |= self._cost(fed)
        state = self._taught(fed, state, number)
        seen = Seen(number, invited, who, np.zeros(len(who)), row={"round": number, **row})
        row.update(self.context.evaluation.list_participants(invited, who))
        return {**state, "selection": self.context.selection.accept(seen, state["selection"])}, row

    async def _rows(self, fed: Federation, number: int) -> NDArray[Any]:
        message = {"order": fed.rng.child("public rows").key >> 1, "round": number}
        whose = fed.parties.named(*self.rule.helpers)
        made = await fed.sum(whose, self.fetch, message, quorum=1, at=(number, "rows"))
        return np.asarray(made["x"][0].value)

    async def _votes(self, fed: Federation, state: Tree, number: int, invited: Parties, x: NDArray[Any]) -> Combined:
        rule, terms = self.rule, self.context.pacing.terms(len(invited))
        shared = rule.noise_at == "clients"
        if shared:
            terms = {**terms, "quorum": max(rule.least, int(terms.get("quorum", 1)))}
        return await fed.sum(
            invited,
            self.vote,
            {"init": state["init"], "x": x},
            uplink=(rule.noise(len(x)),) if shared else (),
            reducer=self.context.reducer,
            at=(number, "votes"),
            **terms,
        )

    def _count_votes(
        self, fed: Federation, made: Combined, shape: tuple[int, int], row: dict[str, Any]
    ) -> tuple[NDArray[Any], Parties]:
        """Return the counts ``(rows, classes)`` and who voted, without clients whose votes are none, which the row names."""
        rejected, who = dict(made.rejected), made.senders
        found = made["votes"]
        if isinstance(found, list):
            kept = []
            for part in found:
                try:
                    check_votes(part.value, shape)
                except DataError as error:
                    rejected[fed.world.roster.name(part.sender)] = error.what
                else:
                    kept.append(part)
            who = fed.parties[np.array(sorted(part.sender for part in kept), dtype=np.int64)]
            found = sum((np.asarray(part.value) for part in kept), np.zeros(shape))
        row |= {"silent": len(made.silent), "rejected": len(rejected)}
        if rejected:
            row["rejected_clients"] = rejected
        if made.errors:
            row["errors"] = {name: str(error) for name, error in made.errors.items()}
        return np.rint(np.asarray(found, np.float64)), who

    def _outcome(self, fed: Federation, number: int, counts: NDArray[Any], who: Parties) -> VoteOutcome:
        """Return the outcome, once it is in the ledger. Equal counts of a round that is repeated have the same outcome, which is recorded once."""
        rule = self.rule
        if rule.noise_at == "clients":
            return VoteOutcome(rule.rule.find_winners(counts), ())
        mark = fingerprint(counts, fed.secret("votes", "mark").bytes(32))
        found: VoteOutcome = rule.rule.outcome(counts, fed.secret("votes", number, mark))
        for place, event in enumerate(found.events):
            if len(who):
                fed.world.ledger.append(event, list(who.names), f"{fed.slot}/votes/@{number}#{mark}/{place}")
        return found

    def _cost(self, fed: Federation) -> dict[str, float]:
        """Return what the votes have cost the client that paid most so far, whatever they were."""
        tally = LossTally(fed.world.ledger, within=fed.running.slot).update()
        losses = {tally.of(name) for name in fed.parties.names}
        return {"epsilon": max((self.rule.measure_epsilon(loss) for loss in losses), default=0.0)}

    def _taught(self, fed: Federation, state: Tree, number: int) -> Tree:
        if not len(state["y"]):
            return state
        rule, learner = self.rule, self.context.learner
        target = np.eye(self._classes(state, state["x"]))[state["y"]]
        steps = SoftTargets(rule.lr or self.context.algorithm.lr, rule.epochs, rule.batch_size)
        params = steps.taught(learner, state["params"], state["x"], target, fed.rng.child("student", number))
        require_finite(params, number)
        return {**state, "params": params}

    def _classes(self, state: Tree, x: NDArray[Any]) -> int:
        return int(self.context.learner.scores(state["params"], x[:1]).shape[1])  # type: ignore[attr-defined]

    def _invite_parties(self, fed: Federation, state: Tree, number: int) -> Parties:
        selection, sizes = self.context.selection, self.context.clients.sizes
        count = selection.cohort_size(len(fed.parties))
        candidates = candidates_of(fed, fed.parties, number, sizes)
        chosen = selection.invite(candidates, self.context.pacing.invited(count), state["selection"])
        invited: Parties = candidates.parties[chosen]
        return invited

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the student."""
        del watch, number
        return state["params"], {}


def _join_answers(state: Tree, x: NDArray[Any], y: NDArray[np.int64]) -> Tree:
    """Return the state with further answers."""
    if not len(y):
        return state
    return {**state, "x": np.concatenate([state["x"], x]) if len(state["y"]) else x, "y": np.append(state["y"], y)}


PUBLIC = "public"
"""Name and role of the party with public rows."""


@dataclass(frozen=True, kw_only=True)
class PATE(Decentralised):
    """Each client trains a model on its own rows alone, a teacher. Teachers vote on public rows, and the student, the global model, learns the winners.

    The rows belong to a helper party, ``"public"``: ``islands.with_others({"public": rows})`` in a simulation, its site's rows between organisations. Their labels, if
    there are any, stay there. A round asks for ``rows`` further ones, each once. No model and no gradient leaves a client. With ``noise_at``:

    * ``"server"``: the server adds up the votes and adds noise from its secret. With a secure reducer it sees their sums only. It protects clients from
      everybody else, who see the student.
    * ``"clients"``: each client adds a share of Skellam noise before its votes leave, so that any sum of ``least`` replies has all of it, and the server
      need not be trusted. That takes a secure reducer; with ``least=1`` each client adds all of the noise itself.

    What an answer costs is in the ledger before the student sees it: a Gaussian release of noise multiplier ``sigma / sqrt(2)``, as one client, or one row of it,
    changes one vote. Reading winners off noisy counts is free. With a ``threshold``, rows whose teachers disagree stay without an answer, and each check costs a
    release of multiplier ``threshold_sigma`` (Confident-GNMax); with noise at clients the check reads the same noisy counts and is free.

    With ``bound="dependent"``, the ledger also says how sure each outcome was, and accountant ``"rdp"`` uses it: where nearly all agree, an answer costs
    little. **Such an epsilon depends on the votes**; it is for those who may see them, and promises nothing in advance.

    Use it as a topology, with the algorithm that teachers train by:
    ``Training(model=net, algorithm=FedAvg(lr=0.1, epochs=50), topology=PATE(rows=100, sigma=10, threshold=30), rounds=3)``.

    We deviate from the paper: its teachers divide one data set; ours are the clients, as they are. A client without a labelled row does not vote.

    Attributes:
        rows: public rows of a round.
        sigma: deviation of the noise on each count, in votes.
        threshold: votes that the largest count needs for an answer; ``None`` answers every row.
        threshold_sigma: deviation of the noise on the largest count when it is checked, in votes.
        noise_at: ``"server"`` or ``"clients"``.
        least: with noise at clients, replies that share the noise.
        neighbours: ``"replace-one"``: a client's vote changes; ``"add-remove"``: a client votes or does not. A row of a client changes its vote.
        bound: ``"independent"`` of the votes, or ``"dependent"``.
        delta: at which the rounds' rows show epsilon.
        teaching: rounds of the algorithm with which a teacher trains, before its first vote.
        lr: learning rate of the student; ``None`` is the algorithm's.
        epochs: the student's passes, each round, over all rows that have an answer.
        batch_size: rows of its mini-batches.

    Raises:
        ConfigError: a setting makes no sense.
    """

    citation: ClassVar[str] = (
        "Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson. Scalable Private Learning with PATE. ICLR 2018."
    )

    rows: int = 100
    sigma: float = 10.0
    threshold: float | None = None
    threshold_sigma: float = 20.0
    noise_at: Literal["server", "clients"] = "server"
    least: int = 2
    neighbours: Literal["replace-one", "add-remove"] = "replace-one"
    bound: Literal["independent", "dependent"] = "independent"
    delta: float = 1e-5
    teaching: int = 1
    lr: float | None = None
    epochs: int = 20
    batch_size: int = 50

    def __post_init__(self) -> None:
        counts = min(self.rows, self.least, self.teaching, self.epochs, self.batch_size) >= 1
        if not counts or not (self.lr is None or self.lr > 0) or not 0 < self.delta < 1:
            raise ConfigError(
                f"rows={self.rows}, least={self.least}, teaching={self.teaching}, epochs={self.epochs}, batch_size={self.batch_size}, "
                f"lr={self.lr}, delta={self.delta}",
                where="PATE",
                remedy="use 1 or more of each, a positive rate, and a delta in (0, 1)",
            )
        known = {
            "noise_at": ("server", "clients"),
            "neighbours": ("replace-one", "add-remove"),
            "bound": ("independent", "dependent"),
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}", where="PATE", remedy=f"use {' or '.join(map(repr, values))}"
                )
        if self.bound == "dependent" and self.noise_at == "clients":
            raise ConfigError(
                "bound='dependent' with noise_at='clients': the server hears noisy counts, not winners alone",
                where="PATE",
                remedy="use bound='independent', or noise_at='server'",
            )
        self.rule  # noqa: B018 - refuses what makes no sense

    @property
    def rule(self) -> VoteRule:
        """Which rows get an answer."""
        replaced = self.neighbours == "replace-one"
        return VoteRule(self.sigma, self.threshold, self.threshold_sigma, replaced, self.bound == "dependent")

    def noise(self, rows: int) -> VoteNoise:
        """Return the stage that adds noise to the votes on ``rows`` rows at clients."""
        return VoteNoise.among(rows, self.sigma, self.least, replaced=self.neighbours == "replace-one")

    @property
    def against(self) -> str:
        """Whom the noise keeps in the dark: the server too, if clients add it; else everybody but the server."""
        return "server" if self.noise_at == "clients" else "clients"

    def released(self, rounds: int) -> tuple[Event, ...]:
        """Return what the votes of all rounds release of a client at most."""
        once = self.rule.most(self.rows) if self.noise_at == "server" else (self.noise(self.rows).released(),)
        return tuple(replace(event, count=event.count * rounds) for event in once)

    def epsilon(self, rounds: int) -> float:
        """Return what ``rounds`` full rounds cost a client at most, whatever the votes are."""
        return self.measure_epsilon(sum((PrivacyLoss.of(event) for event in self.released(rounds)), PrivacyLoss()))

    def measure_epsilon(self, loss: PrivacyLoss) -> float:
        """Return the epsilon of a loss, whatever the votes were."""
        method = "rdp" if any(isinstance(event, Skellam) for event, _ in loss.releases) else "exact"
        return loss.epsilon(self.delta, method, self.against, self.neighbours)

    @property
    def helpers(self) -> Mapping[str, str]:
        """The party with public rows."""
        return {PUBLIC: PUBLIC}

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and a model with class scores."""
        why = "lets models vote on classes"
        return (*super().needs, Need(CLASS_SCORES, why, "Star()"), Need(NO_BUFFERS, why, "Star()"))

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and a server that adds up the votes of all clients."""
        return super().offers | {SERVER}

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the topology does not offer."""
        return {
            **super().lacks,
            RELEASED_ONLY: "sends votes of models that a mechanism would protect; they have noise of their own",
        }

    def check(self, context: Context) -> None:
        """Refuse data without classes, stages for updates, which nobody sends, and shared noise without secure sums."""
        if context.clients.task != "classification":
            why = "lets models vote on classes, but these data have no classes"
            refuse(self, why, "model", "use a classifier: a PyTorch module or atoll.models.linear")
        if any(context.uplink(phase).stages for phase in context.algorithm.phases):
            refuse(self, "clients send votes, not updates", "uplink", "leave the uplink stages out")
        if self.noise_at == "clients" and self.least > 1 and not context.reducer.secure:
            raise CompositionError(
                f"PATE shares the noise among {self.least} clients, and {type(context.reducer).__name__} shows the server single votes, with too little noise each",
                where="Training.reducer",
                remedy="use reducer=SecureAggregation(), PATE(least=1) for noise that single votes have, or noise_at='server'",
            )

    def course(self, context: Context) -> VotingRounds:
        """Return the rounds of votes."""
        return VotingRounds(self, context)
