"""Courses: what a training does in its rounds; and the one loop around them: records, evaluation, stop rules, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.core.tree import Tree

from .ending import kept_best, report_row, require_watched, stop_reason, trained
from .fates import Losses
from .history import History

if TYPE_CHECKING:
    from atoll.core.federation import Federation

    from .learner import Learner
    from .training import Trained, Training

__all__ = ["Course", "run_course"]


class Course:
    """What a topology or a pacing does in its rounds. Its state is a tree that checkpoints carry."""

    def initial(self, fed: Federation) -> Tree:
        """The state before the first round."""
        raise NotImplementedError

    def turns(self, rounds: int) -> int | None:
        """The last turn that so many rounds reach, as devices number them; ``None`` where nobody can tell beforehand."""
        del rounds
        return None

    def barred(self, fed: Federation, state: Tree, number: int) -> str | None:
        """Why the coming round may not be held; training then ends before it."""
        del fed, state, number
        return None

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """One round: the new state, and its row (``selected``, ``replied`` and measures)."""
        raise NotImplementedError

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """The global model, and what was measured in finding it. What it asks through ``watch`` is metered apart."""
        raise NotImplementedError


async def run_course(fed: Federation, job: Training, learner: Learner, data: Any, course: Course) -> Trained:
    """Train until a stop rule holds.

    The global model is found in rounds that are evaluated only. That is an observer's work: its messages go through a scope of their own,
    ``observer``; a round's ``bytes_up`` and ``bytes_down`` leave them out, and devices have no part in it: nobody crashes, and no time passes.
    """
    _require_turns(fed, job, course)
    state = await fed.restore({"course": course.initial(fed), "best": None, "model": None})
    reason = stop_reason(job, History(fed.records))
    while reason is None:
        number = len(fed.records) + 1
        reason = course.barred(fed, state["course"], number)
        if reason is not None:
            break
        state, row = await _round(fed, job, learner, data, state, (course, number))
        # A callback's wish to stop is not part of the state: a resumed run goes on.
        reason = report_row(fed, job, row) or stop_reason(job, History(fed.records))
        if reason is not None and state["model"] is None:  # a callback stopped between two evaluations
            state = {**state, "model": (await course.model(_watch(fed), state["course"], number))[0]}
        if fed.durable and (reason is not None or number % job.checkpoint_every == 0):
            await fed.checkpoint(state)
    if state["model"] is None:
        state = {**state, "model": (await course.model(_watch(fed), state["course"], len(fed.records)))[0]}
    return trained(fed, job, state["best"], state["model"], str(reason))


def _require_turns(fed: Federation, job: Training, course: Course) -> None:
    """Refuse devices that know too few turns, before anyone is contacted; a run that may end sooner is refused when it comes to that.

    Raises:
        ConfigError: the trace is shorter than the run.
    """
    require = getattr(fed.world.cost, "require_turns", None)
    last = None if job.stop or job.callbacks or job.budget is not None else course.turns(job.rounds)
    if require is not None and last is not None:
        require(fed.parties, last)


def _watch(fed: Federation) -> Federation:
    """The observer's scope: it sees the private state of this one, and has a meter of its own."""
    watch = fed.scope("observer")
    watch.settle_at(fed.parties, fed.hub, fed.home)
    watch.observe()
    return watch


async def _round(
    fed: Federation, job: Training, learner: Learner, data: Any, state: Tree, at: tuple[Course, int]
) -> tuple[Tree, dict[str, Any]]:
    course, number = at
    start, before, losses = fed.clock.now(), _bytes(fed), Losses.of(fed)
    kept, row = await course.round(fed, state["course"], number)
    if "bytes_up" not in row:  # it did not count by itself
        after = _bytes(fed)
        row = {**{name: after[name] - before[name] for name in ("bytes_up", "bytes_down")}, **row}
    row = {**losses.since(fed), **row}
    row = {"round": number, "t_start": start, "t_end": fed.clock.now(), **row, **job.evaluation.timed(row)}
    last = stop_reason(job, History([*fed.records, row])) is not None
    at_server, at_clients = job.evaluation.due(number, last), job.evaluation.clients_due(number, last)
    model = None
    if at_server or at_clients:
        watch = _watch(fed)
        model, measured = await course.model(watch, kept, number)
        row.update(measured)
        if at_server:
            row.update(job.evaluation.at_server(learner, model, getattr(data, "test", None)))
        if at_clients:
            row.update(await job.evaluation.at_clients(watch, learner, model, number, job.reducer))
        if at_server and at_clients >= (job.evaluation.clients != 0) and "failed" not in row:
            require_watched(job, History([*fed.records, row]))
        last = last or stop_reason(job, History([*fed.records, row])) is not None  # it may be what was measured
    best = state["best"] if model is None else kept_best(job, state["best"], row, model, number)
    return {"course": kept, "best": best, "model": model if last else None}, row


def _bytes(fed: Federation) -> dict[str, int]:
    """Bytes so far, without the observer's."""
    totals = fed.bytes()
    watched = fed.family.get(f"{fed.slot}/observer")
    seen = {} if watched is None else watched.bytes()
    return {name: value - seen.get(name, 0) for name, value in totals.items()}
