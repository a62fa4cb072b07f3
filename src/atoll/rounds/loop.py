"""The loop around rounds: records, measures, checkpoints, the best model, and what ends a run: stop rules and callbacks. It does not know what a round does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, nearest
from atoll.core.federation.scope import StopRun
from atoll.core.persistence.packed_rows import PackedRows
from atoll.core.requests.results import is_instant
from atoll.core.validation import Checked

from .by_device import by_device
from .history import History, lower_is_better

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties

    from .by_device import ByDevice

__all__ = [
    "Course",
    "Ended",
    "Heard",
    "Hooks",
    "Losses",
    "MaxTime",
    "Measures",
    "Patience",
    "Repeated",
    "StopRule",
    "Target",
    "WrappedCourse",
    "kept_best",
    "report_row",
    "require_watched",
    "rounds_done",
    "run_rounds",
    "stop_reason",
]


class Repeated(Protocol):
    """What the loop needs from a job."""

    @property
    def rounds(self) -> int:
        """Maximum number of rounds."""
        ...

    @property
    def stop(self) -> Sequence[StopRule]:
        """Further stop rules."""
        ...

    @property
    def keep_best(self) -> str | None:
        """Name of a metric; the result is then the model of its best round."""
        ...

    @property
    def callbacks(self) -> Sequence[Callable[[dict[str, Any]], None]]:
        """Functions called with each round's record; one may raise ``StopRun``."""
        ...

    @property
    def checkpoint_every(self) -> int:
        """Rounds between checkpoints when a run folder is given."""
        ...


@dataclass(frozen=True)
class StopRule(Checked):
    """Base class: a pure function of the history, so that a resumed run stops where the first run would have."""

    def reason(self, history: History) -> str | None:
        """Return why the run should stop now, or ``None``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Target(StopRule):
    """Stop when a metric reaches a value.

    Attributes:
        metric: such as ``"test/accuracy"`` or ``"test/loss"``.
        value: at least this (at most, for losses and errors).
    """

    metric: str
    value: float

    def reason(self, history: History) -> str | None:
        """Return a reason once the target is reached."""
        value = history[-1].get(self.metric) if len(history) else None
        if value is None:
            return None
        reached = value <= self.value if lower_is_better(self.metric) else value >= self.value
        return f"{self.metric} = {value:.4g} reached the target {self.value:g}" if reached else None


@dataclass(frozen=True)
class MaxTime(StopRule):
    """Stop when the clock passes a budget of seconds."""

    seconds: float

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ConfigError(f"seconds={self.seconds}", remedy="use a positive number")

    def reason(self, history: History) -> str | None:
        """Return a reason once the budget is spent."""
        if not len(history) or history[-1]["t_end"] < self.seconds:
            return None
        return f"{history[-1]['t_end']:.1f} s passed the budget of {self.seconds:g} s"


@dataclass(frozen=True)
class Patience(StopRule):
    """Stop when a metric has not improved for some evaluations.

    Attributes:
        metric: the metric to watch.
        evaluations: number of evaluations in a row without a new best.
        margin: smallest change that counts.
    """

    metric: str
    evaluations: int = 10
    margin: float = 0.0

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise ConfigError(f"evaluations={self.evaluations}", remedy="use at least 1")

    def reason(self, history: History) -> str | None:
        """Return a reason if there was no improvement for too long."""
        values = [row[self.metric] for row in history if row.get(self.metric) is not None]
        sign = -1.0 if lower_is_better(self.metric) else 1.0
        best, since = float("-inf"), 0
        for value in values:
            if sign * value > best + self.margin:
                best, since = sign * value, 0
            else:
                since += 1
        return f"{self.metric} has not improved for {since} evaluations" if since >= self.evaluations else None


# ---------------------------------------------------------------------- the end of a run


def stop_reason(stop: Sequence[StopRule], rounds: int | None, history: History) -> str | None:
    """Return why a run ends after these rounds; ``None`` if it goes on.

    Args:
        stop: the job's stop rules; the first that holds gives the reason.
        rounds: maximum number of rounds; ``None`` sets no limit.
        history: the rounds so far.
    """
    for rule in stop:
        reason = rule.reason(history)
        if reason is not None:
            return reason
    return rounds_done(rounds, len(history))


def rounds_done(rounds: int | None, done: int) -> str | None:
    """Return why a run ends after as many rounds; ``None`` if it goes on."""
    return f"all {rounds} rounds are done" if rounds is not None and done >= rounds else None


def require_watched(job: Repeated, history: History) -> None:
    """Refuse a stop rule or ``keep_best`` on a metric that is never measured. Called once every metric has been measured.

    Raises:
            ConfigError: no round so far has the metric.
    """
    kind = type(job).__name__
    rules = [(f"{kind}.stop, {type(rule).__name__}", getattr(rule, "metric", None)) for rule in job.stop]
    for where, name in [*rules, (f"{kind}.keep_best", job.keep_best)]:
        if name is None or name in history[-1] or name in history.names:  # usually the last row is enough
            continue
        if name not in dict(history[-1].get("undefined_metrics") or {}):  # else it is measured, and NaN so far
            known = [one for one in history.names if isinstance(history[-1].get(one), float)]
            untested = name.startswith("test/") and not any(one.startswith("test/") for one in known)
            what = f"metric {name!r} is not measured in this training"
            raise ConfigError(
                f"{what}: there are no test rows, or they are not evaluated"
                if untested
                else f"{what}.{nearest(name, known)}",
                where=where,
                remedy="give the islands test rows: islands.with_test(rows)"
                if untested
                else f"use one of {', '.join(known)}",
            )


def report_row(fed: Federation, job: Repeated, row: dict[str, Any]) -> str | None:
    """Record a round and call the callbacks; return the reason if a callback or a reader of the records asks to stop."""
    fed.record(row)
    fed.announce("round_ends", row=row)
    try:
        for callback in job.callbacks:
            callback(row)
    except StopRun as stop:
        return str(stop) or "a callback asked to stop"
    return fed.ending


def kept_best(metric: str | None, best: Any, row: dict[str, Any], model: Tree, number: int) -> Any:
    """Return the best round so far by a metric, with its model; ``best`` is the previous one."""
    value = row.get(metric or "")
    if value is None:
        return best
    sign = -1.0 if lower_is_better(metric or "") else 1.0
    if best is not None and sign * best["value"] >= sign * value:
        return best
    return {"value": float(value), "round": number, "params": model}


@dataclass(frozen=True)
class Losses:
    """What the meters of a scope and its child scopes have counted of devices so far.

    Attributes:
        crashed: requests during which a device was lost.
        joules: energy spent; ``None`` if devices do not count it.
    """

    crashed: int
    joules: float | None

    @classmethod
    def of(cls, fed: Federation) -> Losses:
        """The losses so far."""
        meters = [fed.meter, *(member.meter for member in fed.below())]
        joules = [meter.joules for meter in meters if meter.joules is not None]
        return cls(sum(meter.crashed for meter in meters), sum(joules) if joules else None)

    def since(self, fed: Federation) -> dict[str, Any]:
        """``crashed`` and ``energy_wh`` of a round that began then, over all its requests; empty in a world without devices.

        A request is charged when it is sent. Work that is called off is credited in the round that calls it off, which may be a later one.
        """
        if is_instant(fed.world.cost):
            return {}
        now = Losses.of(fed)
        lost = {"crashed": now.crashed - self.crashed}
        return lost if now.joules is None else {**lost, "energy_wh": (now.joules - (self.joules or 0.0)) / 3600.0}


# ---------------------------------------------------------------------- hooks


logger = logging.getLogger(__name__)


class Hooks:
    """Base class of callbacks that hear every step of a run: override the methods that you need, and give an object as a callback.

    ====================  ==================================================  =============================================
    method                when                                                what NVIDIA FLARE calls it
    ====================  ==================================================  =============================================
    ``run_begins``        before the first round, or the first after a resume  ``START_RUN``
    ``round_begins``      before a round                                      ``ROUND_STARTED``
    ``before_training``   clients are about to be asked                       ``BEFORE_TASK_DATA_FILTER``
    ``after_training``    their replies are in                                ``AFTER_TASK_RESULT_FILTER``
    ``before_aggregation``  the algorithm is about to fold them               ``BEFORE_AGGREGATION``
    ``after_aggregation``  there is a new model                               ``END_AGGREGATION``
    ``evaluated``         the model was measured                              ``GLOBAL_MODEL_EVALUATED``
    ``best_found``        it is the best so far, by ``keep_best``             ``GLOBAL_BEST_MODEL_AVAILABLE``
    ``round_ends``        the round is recorded                               ``ROUND_DONE``
    ``saved``             a checkpoint is on disk                             ``AFTER_CHECKPOINT``
    ``run_ends``          after the last round                                ``END_RUN``
    ====================  ==================================================  =============================================

    A program announces steps of its own with ``fed.announce(name, **facts)``; ``heard`` gets those. Raise ``StopRun`` to end the run after the
    round. Any other exception of a hook is logged with the hook's name and step, is in the round's row (``hook_errors``), and ends nothing.
    Training and aggregation are steps of rounds with a server. Topologies without one have neither, and asynchronous pacings number aggregations by the
    model's version and have no training steps.
    """

    def run_begins(self, done: int) -> None:
        """Hear that the run begins; ``done`` rounds were done before, by the run that it resumes."""

    def round_begins(self, number: int) -> None:
        """Hear that a round begins."""

    def before_training(self, number: int, phase: str, clients: Parties) -> None:
        """Hear who is asked: ``clients.names``."""

    def after_training(self, number: int, phase: str, clients: Parties, silent: Parties) -> None:
        """Hear whose replies are in, and who did not reply."""

    def before_aggregation(self, number: int, phase: str, params: Any) -> None:
        """Hear the model before the replies are folded."""

    def after_aggregation(self, number: int, phase: str, params: Any) -> None:
        """Hear the model after the replies are folded."""

    def evaluated(self, number: int, row: Mapping[str, Any]) -> None:
        """Hear what was measured after a round."""

    def best_found(self, number: int, metric: str, value: float) -> None:
        """Hear that the model of this round is the best so far."""

    def round_ends(self, row: Mapping[str, Any]) -> None:
        """Hear the row of a round."""

    def saved(self, number: int) -> None:
        """Hear that the state after a round is on disk."""

    def run_ends(self, reason: str) -> None:
        """Hear why the run ended."""

    def heard(self, step: str, facts: Mapping[str, Any]) -> None:
        """Hear a step that a program announced under a name of its own."""

    def __call__(self, row: dict[str, Any]) -> None:
        """Do nothing: ``round_ends`` is called in its place."""


class Heard:
    """The hooks of a run, which hear what its program announces.

    Args:
        callbacks: a job's callbacks; those that are no ``Hooks`` are left out.
        fed: the program's federation.
    """

    def __init__(self, callbacks: Sequence[Callable[[dict[str, Any]], None]], fed: Federation) -> None:
        self.hooks = [one for one in callbacks if isinstance(one, Hooks)]
        self.running = fed.running
        self.errors: dict[str, str] = {}
        self.running.hear = self.tell if self.hooks else None

    def tell(self, step: str, facts: dict[str, Any]) -> None:
        """Tell every hook of a step."""
        known = step in vars(Hooks) and not step.startswith("_")
        for hook in self.hooks:
            try:
                if known:
                    getattr(hook, step)(**facts)
                else:
                    hook.heard(step, facts)
            except StopRun as stop:
                self.running.asked = str(stop) or f"{type(hook).__name__}.{step} asked to stop"
            except Exception as error:
                name = f"{type(hook).__name__}.{step}"
                self.errors[name] = f"{type(error).__name__}: {error}"
                logger.warning("the hook %s failed: %s", name, self.errors[name], exc_info=error)

    def taken(self) -> dict[str, Any]:
        """Return the errors since the last call, for a row."""
        errors, self.errors = self.errors, {}
        return {"hook_errors": errors} if errors else {}


# ---------------------------------------------------------------------- the loop


class Course:
    """What happens in the rounds of a job. Its state is a tree that goes into checkpoints."""

    def initial(self, fed: Federation) -> Tree:
        """The state before the first round."""
        raise NotImplementedError

    def turns(self, rounds: int) -> int | None:
        """The last turn that this many rounds reach, as devices number them; ``None`` if it cannot be known beforehand."""
        del rounds
        return None

    def find_objection(self, fed: Federation, state: Tree, number: int) -> str | None:
        """Return why the next round may not start; the run then ends before it."""
        del fed, state, number
        return None

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run one round; return the new state and the row (``selected``, ``replied`` and measures)."""
        raise NotImplementedError

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the model so far, and what was measured to find it. Requests through ``watch`` are metered separately."""
        raise NotImplementedError


class WrappedCourse(Course):
    """A course around another one: everything is the other's but what a subclass says.

    Args:
        course: the other.
    """

    def __init__(self, course: Course) -> None:
        self._course = course

    def initial(self, fed: Federation) -> Tree:
        """Start with the course's state."""
        return self._course.initial(fed)

    def turns(self, rounds: int) -> int | None:
        """Return the course's number of turns."""
        return self._course.turns(rounds)

    def find_objection(self, fed: Federation, state: Tree, number: int) -> str | None:
        """Return the course's reason against the next round."""
        return self._course.find_objection(fed, state, number)

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run the course's round."""
        return await self._course.round(fed, state, number)

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the course's model."""
        return await self._course.model(watch, state, number)


class Measures(Protocol):
    """What is measured of the model between rounds."""

    def time_round(self, row: dict[str, Any]) -> dict[str, float]:
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
        reason = course.find_objection(fed, state["course"], number)
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
    return _end_run(fed, job, state, str(reason))


def _end_run(fed: Federation, job: Repeated, state: Tree, reason: str) -> Ended:
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
    row = {"round": number, "t_start": start, "t_end": fed.clock.now(), **row, **measures.time_round(row)}
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
