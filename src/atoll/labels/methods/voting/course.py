"""The rounds of PATE: public rows from their party, votes from clients, answers into the ledger, and the student."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Parts, Sum
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import DataError, QuorumError
from atoll.core.requests.task import Task
from atoll.data.missing import labelled_rows
from atoll.learn.checks import require_finite
from atoll.learn.selection import Candidates, Seen
from atoll.learn.topology.base import NodeCourse
from atoll.learn.topology.node import Node
from atoll.privacy import LossTally

from .soft_targets import SoftTargets
from .votes import NOBODY, VoteOutcome, check_votes, fingerprint, votes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined
    from atoll.learn.context import Context

__all__ = ["VotingRounds"]


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
        invited = self._invited(fed, state, number)
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
            counts, who = self._counted(fed, made, (len(x), self._classes(state, x)), row)
            found = self._outcome(fed, number, counts, who)
            told = found.labels != NOBODY
            row |= {"replied": len(who), "asked": len(x), "answered": int(told.sum())}
            state = _joined(state, x[told], found.labels[told])
        row |= self._cost(fed)
        state = self._taught(fed, state, number)
        seen = Seen(number, invited, who, np.zeros(len(who)), row={"round": number, **row})
        row.update(self.context.evaluation.told(invited, who))
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

    def _counted(
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
            return VoteOutcome(rule.rule.heard(counts), ())
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
        return {"epsilon": max((self.rule.counted(loss) for loss in losses), default=0.0)}

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

    def _invited(self, fed: Federation, state: Tree, number: int) -> Parties:
        selection, sizes = self.context.selection, self.context.clients.sizes
        count = selection.cohort_size(len(fed.parties))
        candidates = Candidates(fed.parties, number, fed.rng.child("selection", number), lambda: sizes)
        chosen = selection.invite(candidates, self.context.pacing.invited(count), state["selection"])
        invited: Parties = fed.parties[chosen]
        return invited

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the student."""
        del watch, number
        return state["params"], {}


def _joined(state: Tree, x: NDArray[Any], y: NDArray[np.int64]) -> Tree:
    """Return the state with further answers."""
    if not len(y):
        return state
    return {**state, "x": np.concatenate([state["x"], x]) if len(state["y"]) else x, "y": np.append(state["y"], y)}
