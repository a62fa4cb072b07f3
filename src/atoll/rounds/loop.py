"""The loop around rounds: records, measures, stop rules, checkpoints. It does not know what a round does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from atoll.core.algebra.tree import Tree
from atoll.core.persistence.packed_rows import PackedRows

from .by_device import by_device
from .ending import kept_best, report_row, require_watched, rounds_done, stop_reason
from .history import History
from .hooks import Heard
from .losses import Losses
from .repeated import Repeated

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from .by_device import ByDevice

__all__ = ["Course", "Ended", "Measures", "run_rounds"]


class Course:
    """What happens in the rounds of a job. Its state is a tree that goes into checkpoints."""

    def initial(self, fed: Federation) -> Tree:
        """The state before the first round."""
        raise NotImplementedError

    def turns(self, rounds: int) -> int | None:
        """The last turn that this many rounds reach, as devices number them; ``None`` if it cannot be known beforehand."""
        del rounds
        return None

    def barred(self, fed: Federation, state: Tree, number: int) -> str | None:
        """Return why the next round may not start; the run then ends before it."""
        del fed, state, number
        return None

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run one round; return the new state and the row (``selected``, ``replied`` and measures)."""
        raise NotImplementedError

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the model so far, and what was measured to find it. Requests through ``watch`` are metered separately."""
        raise NotImplementedError


class Measures(Protocol):
    """What is measured of the model between rounds."""

    def timed(self, row: dict[str, Any]) -> dict[str, float]:
        """Measures that follow from a round's row."""
        ...

    def due(self, number: int, last: bool) -> bool:
        """Whether to measure after this round."""
        ...

    async def take(self, watch: Federation, model: Tree, number: int, last: bool) -> tuple[dict[str, Any], bool]:
        """Measure the model after this round; also return whether every metric has been measured by now."""
        ...


@dataclass(frozen=True)
class Ended:
    """The result of a run of rounds.

    Attributes:
        model: the last model, or the one of the best round with ``keep_best``.
        history: one row a round.
        reason: why the rounds ended.
        round: the round of the model.
        devices: what each device was asked, did and spent.
        last: the last model.
        best: the best round with ``keep_best``: its ``value``, ``round`` and ``params``; ``None`` without one.
    """

    model: Tree
    history: History
    reason: str
    round: int
    devices: ByDevice
    last: Tree = None
    best: Tree = None


async def run_rounds(
    fed: Federation, job: Repeated, course: Course, measures: Measures, *, certain: bool = True
) -> Ended:
    """Run rounds until a stop rule holds.

    The loop asks for the model only in rounds that are measured. This is an observer's work: its messages go through a scope of their own,
    ``observer``. A round's ``bytes_up`` and ``bytes_down`` leave them out. Devices play no part in it: no client crashes, and no time passes.

    Args:
        fed: the federation.
        job: the number of rounds, and what ends them.
        course: what happens in the rounds.
        measures: what is measured of the model.
        certain: whether all rounds will run, unless a stop rule or a callback ends them.
    """
    _require_turns(fed, job, course, certain)
    state = await fed.restore({"course": course.initial(fed), "best": None, "model": None})
    reason = _over(job, fed.records)
    heard = Heard(job.callbacks, fed)
    fed.announce("run_begins", done=len(fed.records))
    while reason is None:
        number = len(fed.records) + 1
        reason = course.barred(fed, state["course"], number)
        if reason is not None:
            break
        fed.announce("round_begins", number=number)
        state, row = await _round(fed, job, state, (course, measures, number))
        row.update(heard.taken())
        # A request to stop is not part of the state: a resumed run continues.
        reason = report_row(fed, job, row) or _over(job, fed.records)
        if reason is not None and state["model"] is None:  # the run was stopped between two evaluations
            state = {**state, "model": (await course.model(_watch(fed), state["course"], number))[0]}
        if fed.durable and (reason is not None or number % job.checkpoint_every == 0):
            await fed.checkpoint(state)
            fed.announce("saved", number=number)
    fed.announce("run_ends", reason=str(reason))
    if state["model"] is None:
        state = {**state, "model": (await course.model(_watch(fed), state["course"], len(fed.records)))[0]}
    return _ended(fed, job, state, str(reason))


def _ended(fed: Federation, job: Repeated, state: Tree, reason: str) -> Ended:
    """Return the best round's model with ``keep_best``, else the last one."""
    history = History(fed.records)
    chosen = state["best"] if job.keep_best else None
    model, number = (chosen["params"], chosen["round"]) if chosen else (state["model"], len(history))
    return Ended(model, history, reason, number, by_device(fed), state["model"], chosen)


def _over(job: Repeated, rows: PackedRows, row: dict[str, Any] | None = None) -> str | None:
    """Return why a run ends after these rounds (and one more, if given); ``None`` if it goes on."""
    more = [] if row is None else [row]
    if not job.stop:  # the common case: no copy of all rows in every round
        return rounds_done(job.rounds, len(rows) + len(more))
    return stop_reason(job.stop, job.rounds, History(rows.copy(*more)))


def _require_turns(fed: Federation, job: Repeated, course: Course, certain: bool) -> None:
    """Refuse a trace of devices with too few turns before the first request; a run that may end sooner fails when it gets there.

    Raises:
        ConfigError: the trace is shorter than the run.
    """
    require = getattr(fed.world.cost, "require_turns", None)
    last = course.turns(job.rounds) if certain and not job.stop and not job.callbacks else None
    if require is not None and last is not None:
        require(fed.parties, last)


def _watch(fed: Federation) -> Federation:
    """The observer's scope: it sees the private state of this scope and has a meter of its own."""
    watch = fed.scope("observer")
    watch.settle_at(fed.parties, fed.hub, fed.home)
    watch.observe()
    return watch


async def _round(
    fed: Federation, job: Repeated, state: Tree, at: tuple[Course, Measures, int]
) -> tuple[Tree, dict[str, Any]]:
    course, measures, number = at
    start, before, losses = fed.clock.now(), _bytes(fed), Losses.of(fed)
    kept, row = await course.round(fed, state["course"], number)
    if "bytes_up" not in row:  # the round did not count them itself
        after = _bytes(fed)
        row = {**{name: after[name] - before[name] for name in ("bytes_up", "bytes_down")}, **row}
    row = {**losses.since(fed), **row}
    row = {"round": number, "t_start": start, "t_end": fed.clock.now(), **row, **measures.timed(row)}
    last = _over(job, fed.records, row) is not None
    model = None
    if measures.due(number, last):
        watch = _watch(fed)
        model, found = await course.model(watch, kept, number)
        row.update(found)
        found, everything = await measures.take(watch, model, number, last)
        row.update(found)
        fed.announce("evaluated", number=number, row=row)
        if everything and "failed" not in row:
            require_watched(job, History(fed.records.copy(row)))
        last = last or _over(job, fed.records, row) is not None  # a stop rule may watch what was just measured
    best = state["best"] if model is None else kept_best(job.keep_best, state["best"], row, model, number)
    if best is not state["best"]:
        fed.announce("best_found", number=number, metric=job.keep_best, value=best["value"])
    return {"course": kept, "best": best, "model": model if last else None}, row


def _bytes(fed: Federation) -> dict[str, int]:
    """Bytes so far, without those of the observer."""
    totals = fed.bytes()
    watched = fed.family.get(f"{fed.slot}/observer")
    seen = {} if watched is None else watched.bytes()
    return {name: value - seen.get(name, 0) for name, value in totals.items()}
