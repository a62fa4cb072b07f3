"""Rounds of one server: invite, the phases, the server's last move; and the course of a training in a star at a synchronous pace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.aggregate import Aggregate, Sum
from atoll.core.errors import CompositionError, PolicyError, QuorumError
from atoll.core.task import task
from atoll.core.tree import Tree
from atoll.privacy import Tally

from .algorithm import RoundInfo
from .checks import require_finite
from .course import Course
from .downlink import held_by, lowered
from .fates import fates, require_feasible
from .invitation import Inviter, own_reports, reply_bytes, reports_of, seen_of
from .selection import Seen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation import Federation
    from atoll.core.island import Island
    from atoll.core.party import Parties
    from atoll.core.results import Combined

    from .learner import Learner
    from .training import Training

__all__ = [
    "ServerRounds",
    "account",
    "client_examples",
    "count_examples",
    "folded",
    "global_model",
    "initial",
    "outgoing",
    "population_examples",
    "round_info",
    "server_round",
]


class ServerRounds(Course):
    """One server's rounds.

    Args:
        job: the training.
        learner: its learner.
        data: the federated data set.
    """

    def __init__(self, job: Training, learner: Learner, data: Any) -> None:
        self.job, self.learner, self.data = job, learner, data
        self._tally: Tally | None = None

    def initial(self, fed: Federation) -> Tree:
        """The server's state before the first round."""
        return initial(fed, self.job, self.learner)

    def barred(self, fed: Federation, state: Tree, number: int) -> str | None:
        """Why the coming round may not be held, from what the ledger says and what its cohort would release.

        Raises:
            PolicyError: not even the first one.
        """
        if self.job.budget is None:
            return None
        self._tally = self._tally or Tally(fed.world.ledger)
        over = self._over_budget(fed, state, self._tally)
        if over is not None and number == 1:
            raise PolicyError(over, where="Training.budget", remedy="raise the budget, or add noise")
        return over

    def _over_budget(self, fed: Federation, state: Tree, tally: Tally) -> str | None:
        job, phases = self.job, self.job.algorithm.plan(state["server"])
        if job.budget is None or not phases:
            return None
        coming = {**state, "contacts": state["contacts"] + 1}
        parties = Inviter(fed, job, self.learner, self.data, coming).invite()
        sizes = getattr(self.data, "sizes", None)
        if sizes is None:
            raise CompositionError(
                "a privacy budget, and the clients' numbers of examples are not known beforehand",
                where="Training.budget",
                remedy="give the federated data set `sizes`, which say what each client would release",
            )
        names = [party.name for party in parties]
        counts = [int(sizes[fed.world.roster.position(name)]) for name in names]
        planned = {name: job.algorithm.events(n) * len(phases) for name, n in zip(names, counts, strict=True)}
        return job.budget.exceeded(tally, names, planned)

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """One round of the server."""
        if self.job.aggregation.weighs_population and state["weight"] is None:
            state = {**state, "weight": await population_examples(fed, self.data)}
        return await server_round(fed, self.job, self.learner, self.data, state, number)

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """The server's."""
        del watch, number
        return global_model(state), {}


def initial(fed: Federation, job: Training, learner: Learner) -> Tree:
    """The state of a training before its first round."""
    params = learner.init(fed.rng.child("init"))
    job.aggregation.check(job.algorithm, params)
    return {
        "server": job.algorithm.init(params),
        "aggregation": job.aggregation.init(params),
        "weight": None,
        "selection": job.selection.init(fed.parties),
        "contacts": 0,
        "buffers": learner.buffers(),
        "down": {},
    }


def global_model(state: Tree) -> Tree:
    """The global model: its parameters, and the running statistics that clients average."""
    params = state["server"]["params"]
    return {**params, **state["buffers"]} if state["buffers"] else params


async def population_examples(fed: Federation, data: Any) -> float:
    """Examples of the population: known beforehand in a simulation, else every client is asked once."""
    sizes = getattr(data, "sizes", None)
    if sizes is not None:
        return float(np.sum(sizes))
    return float((await fed.sum(fed.parties, count_examples, at="count"))["examples"])


async def client_examples(fed: Federation, data: Any) -> NDArray[np.float64]:
    """Examples of every client: known beforehand in a simulation, else each is asked once. A client that does not answer has none.

    Raises:
        QuorumError: nobody has any.
    """
    sizes = getattr(data, "sizes", None)
    if sizes is not None:
        return np.asarray(sizes, dtype=np.float64)
    told = await fed.ask_all(fed.parties, own_examples, at="examples", quorum=0)
    found = np.zeros(len(fed.parties))
    found[np.searchsorted(fed.parties.positions, told.senders.positions)] = told.values
    if not found.sum() > 0:
        raise QuorumError(
            "no client told that it has examples", where="the count of examples", remedy="look at the islands' data"
        )
    return found


@task
def own_examples(island: Island, message: Tree) -> float:
    """How many examples a client has."""
    del message
    return float(len(island.data))


@task
def count_examples(island: Island, message: Tree) -> dict[str, Aggregate]:
    """How many examples a client has."""
    del message
    return {"examples": Sum(np.float64(len(island.data)), metric=True)}


async def server_round(
    fed: Federation, job: Training, learner: Learner, data: Any, state: Tree, number: int, among: Parties | None = None
) -> tuple[Tree, dict[str, Any]]:
    """What one server does in a round: invite (``among`` some, if given), the phases, its last move, and what the selection rule learns of it.

    Returns:
        The new state and the round's row.
    """
    phases = job.algorithm.plan(state["server"])
    row: dict[str, Any] = {"selected": 0, "bytes_up": 0, "bytes_down": 0, "replied": 0}
    seen: Seen | None = None
    if phases:
        # Contacts are counted by themselves: rounds of the server alone leave cohorts and random numbers as they were.
        state = {**state, "contacts": state["contacts"] + 1}
        inviter = Inviter(fed, job, learner, data, state, among)
        if number == 1:
            require_feasible(inviter)
        heard, spent = await inviter.surveyed()
        state = {**state, "selection": heard}
        inviter = replace(inviter, state=state)
        invited = inviter.invite()
        odds = inviter.odds(invited)
        state, row, seen = await _Phases(fed, job, learner, data, invited, number, odds).all(state, phases, spent)
    if "failed" not in row:
        info = round_info(fed, state, (number, bool(phases)), row["selected"], row["replied"])
        state = {**state, "server": job.algorithm.advance(state["server"], info)}
        require_finite(state["server"]["params"], number)
    if seen is not None:
        rule = job.selection
        row.update(job.evaluation.told(seen.asked, seen.replied))
        state = {**state, "selection": rule.accept(replace(seen, row={"round": number, **row}), state["selection"])}
    return state, row


def round_info(fed: Federation, state: Tree, at: tuple[int, bool], selected: int, replied: int) -> RoundInfo:
    """What a fold may know.

    Args:
        fed: for the server's random stream.
        state: of the server.
        at: number of the round, and whether clients are contacted in it.
        selected: how many.
        replied: how many of them answered.
    """
    # The server's numbers follow the contacts too; alone it has others.
    number, met = at
    stream = fed.rng.child("server", state["contacts"] if met else f"alone-{number}")
    return RoundInfo(number, selected, replied, len(fed.parties), state["weight"], stream)


@dataclass(frozen=True)
class _Phases:
    """The phases of a round with one cohort."""

    fed: Federation
    job: Training
    learner: Learner
    data: Any
    invited: Parties
    number: int
    odds: dict[int, float] | None = None

    async def all(
        self, state: Tree, phases: tuple[str, ...], spent: dict[str, Any]
    ) -> tuple[Tree, dict[str, Any], Seen]:
        """Run them; ``spent`` are bytes that the round cost before. Returns the state, the row and what was seen."""
        row: dict[str, Any] = {"selected": len(self.invited), "bytes_up": 0, "bytes_down": 0, **spent}
        before = state
        seen = Seen(state["contacts"], self.invited, self.invited, np.zeros(len(self.invited)))
        for phase in phases:
            if not self.job.algorithm.needs(state["server"], phase):
                continue
            sent = global_model(state)
            state, message, sizes = outgoing(self.fed, self.job, state, self.invited, phase)
            try:
                combined = await self._ask(state, phase, message, sizes)
            except QuorumError as error:
                if self.job.pacing.on_failure == "stop" or self.job.algorithm.card.everyone:
                    where = f"round {self.number}, {error.where}"
                    raise type(error)(error.what, where=where, remedy=error.remedy) from error
                # Clients already keep what the phases before gave them, and so does the server: both end at the same phase.
                if error.combined is not None:
                    account(row, error.combined)
                    row.update(fates(self.fed, error.combined))
                return state, {**row, "replied": 0, "failed": str(error.what)}, self._nobody(seen)
            account(row, combined)
            row.update(fates(self.fed, combined))
            self._require_everyone(combined.n)
            if combined.n == 0:  # a quorum of none is content, and there is nothing to fold
                return state, {**row, "failed": "nobody replied"}, self._nobody(seen)
            info = round_info(self.fed, before, (self.number, True), len(self.invited), combined.n)
            info = replace(info, odds=self.odds)
            seen = seen_of(
                info.round, combined, reports_of(combined), own_reports(self.job, self.learner, sent, self.data)
            )
            state = {**state, "down": held_by(state["down"], combined.senders.positions)}
            state = folded(self.job, state, combined, info, phase)
        return state, row, replace(seen, round=before["contacts"])

    def _nobody(self, seen: Seen) -> Seen:
        return replace(seen, replied=self.invited[:0], seconds=np.zeros(0), reports={})

    async def _ask(self, state: Tree, phase: str, message: Tree, sizes: NDArray[np.int64] | None) -> Combined:
        job = self.job
        if not len(self.invited):
            raise QuorumError(
                f"{type(job.selection).__name__} invites nobody",
                where=f"contact {state['contacts']}",
                remedy="let it choose among more clients, or a longer deadline",
            )
        size = min(job.selection.cohort_size(len(self.fed.parties)), len(self.invited))
        terms = job.pacing.terms(size)
        if job.selection.picks:
            terms["accept"] = lambda arrived: job.selection.take(arrived, size, state["selection"])
        return await self.fed.sum(
            self.invited,
            self.learner.train,
            message,
            uplink=job.up(phase),
            reducer=job.reducer,
            at=(state["contacts"], phase),
            down=sizes,
            up=lambda: reply_bytes(job, state["server"]["params"], phase),
            **terms,
        )

    def _require_everyone(self, replied: int) -> None:
        """Stop where somebody is missing whom the algorithm cannot do without: it would go on, to somewhere else."""
        population = len(self.fed.parties)
        if self.job.algorithm.card.everyone and replied < population:
            name = type(self.job.algorithm).__name__
            raise QuorumError(
                f"{replied} of {population} clients replied, and {name} needs every client in every round",
                where=f"round {self.number}",
                remedy="wait for everyone (deadline=None), or use an algorithm that does with some (atoll.learn.algorithms.Scaffold)",
            )


def outgoing(
    fed: Federation, job: Training, state: Tree, invited: Parties, phase: str
) -> tuple[Tree, Tree, NDArray[np.int64] | None]:
    """What a cohort is sent in a phase: the state with what they then hold, the message, and bytes a party (``None``: the message's own)."""
    broadcast = job.algorithm.broadcast(state["server"], phase)
    rest = {"buffers": state["buffers"]} if state["buffers"] else {}
    broadcast, down, sizes = lowered(
        fed, job.down(), state["down"], broadcast, rest, invited, (state["contacts"], phase)
    )
    told = job.selection.reports if phase == job.algorithm.phases[-1] and not job.selection.surveys_only else {}
    reports = {"reports": dict(told)} if told else {}
    return {**state, "down": down}, {"broadcast": {**broadcast, **rest}, "phase": phase, **reports}, sizes


def folded(job: Training, state: Tree, combined: Combined, info: RoundInfo, phase: str) -> Tree:
    """The server's state after a phase: the aggregation operator, then the algorithm's fold."""
    server = state["server"]
    # Operators and algorithms see updates; running statistics are averaged as they are.
    state = {**state, "buffers": combined.value.get("buffers", state["buffers"])}
    updates = {k: v for k, v in combined.value.items() if k != "buffers" and not k.startswith(("metric/", "report/"))}
    sums, memory = job.aggregation.combine(
        replace(combined, value=updates), server["params"], state["aggregation"], info
    )
    server = job.algorithm.fold(server, sums, info, phase)
    require_finite(server["params"], info.round)
    return {**state, "server": server, "aggregation": memory}


def account(row: dict[str, Any], combined: Combined) -> None:
    """Write what a request moved and measured into the round's row."""
    row["bytes_up"] += combined.bytes_up
    row["bytes_down"] += combined.bytes_down
    row["replied"] = combined.n
    row["silent"] = len(combined.silent)
    row["rejected"] = len(combined.rejected)
    if combined.rejected:
        row["rejected_clients"] = {**row.get("rejected_clients", {}), **combined.rejected}
    if combined.errors:
        row["errors"] = {name: str(error) for name, error in combined.errors.items()}
    row.update({k.removeprefix("metric/"): float(v) for k, v in combined.value.items() if k.startswith("metric/")})
