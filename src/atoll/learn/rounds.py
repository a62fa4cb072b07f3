"""The round loop of a synchronous training."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.aggregate import Aggregate, Sum
from atoll.core.errors import CompositionError, PolicyError, QuorumError
from atoll.core.task import task
from atoll.core.tree import Tree
from atoll.privacy import Tally

from .algorithm import RoundInfo
from .checks import require_finite
from .downlink import held_by, lowered
from .ending import kept_best, report_row, stop_reason, trained
from .history import History
from .selection import Candidates

if TYPE_CHECKING:
    from atoll.core.federation import Federation
    from atoll.core.island import Island
    from atoll.core.party import Parties
    from atoll.core.results import Combined

    from .learner import Learner
    from .training import Trained, Training

__all__ = ["initial", "learned", "server_round", "train"]


async def train(fed: Federation, job: Training, learner: Learner, data: Any) -> Trained:
    """Train until a stop rule holds; a checkpoint after every ``checkpoint_every`` rounds."""
    state = await fed.restore(initial(fed, job, learner))
    if job.aggregation.weighs_population and state["weight"] is None:
        state = {**state, "weight": await _count(fed, data)}
    reason = stop_reason(job, History(fed.records))
    tally = Tally(fed.world.ledger)
    while reason is None:
        number = len(fed.records) + 1
        over = _over_budget(fed, job, data, state, tally)
        if over is not None:
            reason = _spent(over, number)
            break
        state, row = await _round(fed, job, learner, data, state, number)
        # A callback's wish to stop is not part of the state: a resumed run goes on.
        reason = report_row(fed, job, row) or stop_reason(job, History(fed.records))
        if fed.durable and (reason is not None or number % job.checkpoint_every == 0):
            await fed.checkpoint(state)
    return trained(fed, job, state["best"], _model(state), str(reason))


def _over_budget(fed: Federation, job: Training, data: Any, state: Tree, tally: Tally) -> str | None:
    """Why the coming round may not be held, from what the ledger says and what its cohort would release."""
    phases = job.algorithm.plan(state["server"])
    if job.budget is None or not phases:
        return None
    parties, _ = _invite(fed, job, data, {**state, "contacts": state["contacts"] + 1})
    sizes = getattr(data, "sizes", None)
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


def _spent(over: str, number: int) -> str:
    if number == 1:
        raise PolicyError(over, where="Training.budget", remedy="raise the budget, or add noise")
    return over


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
        "best": None,
        "buffers": learner.buffers(),
        "down": {},
    }


def _model(state: Tree) -> Tree:
    """The global model: its parameters, and the running statistics that clients average."""
    params = state["server"]["params"]
    return {**params, **state["buffers"]} if state["buffers"] else params


async def _count(fed: Federation, data: Any) -> float:
    """Examples of the population: known beforehand in a simulation, else every client is asked once."""
    sizes = getattr(data, "sizes", None)
    if sizes is not None:
        return float(np.sum(sizes))
    return float((await fed.sum(fed.parties, count_examples, at="count"))["examples"])


@task
def count_examples(island: Island, message: Tree) -> dict[str, Aggregate]:
    """How many examples a client has."""
    del message
    return {"examples": Sum(np.float64(len(island.data)), metric=True)}


async def _round(
    fed: Federation, job: Training, learner: Learner, data: Any, state: Tree, number: int
) -> tuple[Tree, dict[str, Any]]:
    start = fed.clock.now()
    state, row, replied, invited = await server_round(fed, job, learner, data, state, number)
    model = _model(state)
    row = {"round": number, "t_start": start, "t_end": fed.clock.now(), **row, **job.evaluation.timed(row)}
    last = stop_reason(job, History([*fed.records, row])) is not None
    if job.evaluation.due(number, last):
        row.update(job.evaluation.at_server(learner, model, getattr(data, "test", None)))
    if job.evaluation.clients_due(number, last):
        row.update(await job.evaluation.at_clients(fed, learner, model, number, job.reducer))
    state = learned(job, state, invited, replied, row)
    return {**state, "best": kept_best(job, state["best"], row, model, number)}, row


async def server_round(
    fed: Federation, job: Training, learner: Learner, data: Any, state: Tree, number: int
) -> tuple[Tree, dict[str, Any], Parties, Parties | None]:
    """What one server does in a round: invite, the phases, its last move.

    Returns:
        The new state, the round's row, who replied, and who was invited (``None`` when nobody was to be contacted).
    """
    phases = job.algorithm.plan(state["server"])
    invited = replied = fed.parties[:0]
    row: dict[str, Any] = {"selected": 0, "bytes_up": 0, "bytes_down": 0, "replied": 0}
    if phases:
        # Contacts are counted by themselves: rounds of the server alone leave cohorts and random numbers as they were.
        state = {**state, "contacts": state["contacts"] + 1}
        invited, size = _invite(fed, job, data, state)
        state, row, replied = await _phases(fed, job, learner, state, invited, (phases, size, number))
    if "failed" not in row:
        info = _info(fed, state, (number, bool(phases)), len(invited), len(replied))
        state = {**state, "server": job.algorithm.advance(state["server"], info)}
        require_finite(state["server"]["params"], number)
    return state, row, replied, invited if phases else None


def learned(job: Training, state: Tree, invited: Parties | None, replied: Parties, row: dict[str, Any]) -> Tree:
    """The state after the selection rule has seen the round."""
    if invited is None:
        return state
    return {**state, "selection": job.selection.accept(invited, replied, row, state["selection"])}


def _invite(fed: Federation, job: Training, data: Any, state: Tree) -> tuple[Parties, int]:
    """The cohort, and how many of it are wanted."""
    turn = state["contacts"]
    size = job.selection.cohort_size(len(fed.parties))
    stream = fed.rng.child("selection", turn)
    candidates = Candidates(fed.parties, turn, stream, lambda: getattr(data, "sizes", None))
    invited = fed.parties[job.selection.invite(candidates, job.pacing.invited(size), state["selection"])]
    return invited, min(size, len(invited))


def _info(fed: Federation, state: Tree, at: tuple[int, bool], selected: int, replied: int) -> RoundInfo:
    # The server's numbers follow the contacts too; alone it has others.
    number, met = at
    stream = fed.rng.child("server", state["contacts"] if met else f"alone-{number}")
    return RoundInfo(number, selected, replied, len(fed.parties), state["weight"], stream)


async def _phases(
    fed: Federation,
    job: Training,
    learner: Learner,
    state: Tree,
    invited: Parties,
    plan: tuple[tuple[str, ...], int, int],
) -> tuple[Tree, dict[str, Any], Parties]:
    phases, size, number = plan
    row: dict[str, Any] = {"selected": len(invited), "bytes_up": 0, "bytes_down": 0}
    replied = invited
    server, memory = state["server"], state["aggregation"]
    for phase in phases:
        if not job.algorithm.needs(server, phase):
            continue
        broadcast = job.algorithm.broadcast(server, phase)
        rest = {"buffers": state["buffers"]} if state["buffers"] else {}
        broadcast, down, sizes = lowered(
            fed, job.down(), state["down"], broadcast, rest, invited, (state["contacts"], phase)
        )
        state = {**state, "down": down}
        message = {"broadcast": {**broadcast, **rest}, "phase": phase}
        try:
            combined = await fed.sum(
                invited,
                learner.train,
                message,
                uplink=job.up(phase),
                reducer=job.reducer,
                at=(state["contacts"], phase),
                down=sizes,
                **job.pacing.terms(size),
            )
        except QuorumError as error:
            if job.pacing.on_failure == "stop" or job.algorithm.card.everyone:
                raise type(error)(error.what, where=f"round {number}, {error.where}", remedy=error.remedy) from error
            # Clients already keep what the phases before gave them, and so does the server: both end at the same phase.
            kept = {**state, "server": server, "aggregation": memory}
            return kept, {**row, "replied": 0, "failed": str(error.what)}, invited[:0]
        _account(row, combined)
        _require_everyone(job, combined.n, len(fed.parties), number)
        replied = combined.senders
        state = {**state, "down": held_by(state["down"], replied.positions)}
        row.update({k.removeprefix("metric/"): float(v) for k, v in combined.value.items() if k.startswith("metric/")})
        info = _info(fed, state, (number, True), len(invited), combined.n)
        # Operators and algorithms see updates; running statistics are averaged as they are.
        state = {**state, "buffers": combined.value.get("buffers", state["buffers"])}
        updates = {k: v for k, v in combined.value.items() if k != "buffers" and not k.startswith("metric/")}
        sums, memory = job.aggregation.combine(replace(combined, value=updates), server["params"], memory, info)
        server = job.algorithm.fold(server, sums, info, phase)
        require_finite(server["params"], number)
    return {**state, "server": server, "aggregation": memory}, row, replied


def _require_everyone(job: Training, replied: int, population: int, number: int) -> None:
    """Stop where somebody is missing whom the algorithm cannot do without: it would go on, to somewhere else."""
    if job.algorithm.card.everyone and replied < population:
        name = type(job.algorithm).__name__
        raise QuorumError(
            f"{replied} of {population} clients replied, and {name} needs every client in every round",
            where=f"round {number}",
            remedy="wait for everyone (deadline=None), or use an algorithm that does with some (atoll.learn.algorithms.Scaffold)",
        )


def _account(row: dict[str, Any], combined: Combined) -> None:
    row["bytes_up"] += combined.bytes_up
    row["bytes_down"] += combined.bytes_down
    row["replied"] = combined.n
    row["silent"] = len(combined.silent)
    row["rejected"] = len(combined.rejected)
    if combined.rejected:
        row["rejected_clients"] = {**row.get("rejected_clients", {}), **combined.rejected}
    if combined.errors:
        row["errors"] = {name: str(error) for name, error in combined.errors.items()}
