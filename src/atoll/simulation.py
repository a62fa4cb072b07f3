"""Simulation: run a job or a program on this machine, in virtual time."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

import numpy as np

from atoll.core.calls import checked_call, level_outside
from atoll.core.federation.federation import Federation, Program, run_program
from atoll.core.requests.party import Roster
from atoll.core.requests.policy import AllowAll, admit_job
from atoll.core.requests.results import Free
from atoll.core.requests.task import register_tasks
from atoll.core.time.clock import Clock, run

from .core.errors import ConfigError, nearest
from .core.job import Job, Prepared
from .core.job import prepared as prepared_job
from .core.lazy import UnknownName
from .core.world import World

if TYPE_CHECKING:
    from atoll.core.requests.policy import Policies
    from atoll.core.requests.task import Task

    from .learn.prepared import Trained
    from .learn.training import Training
    from .rounds.by_device import ByDevice
    from .rounds.history import History
    from .runs.from_python import PythonRun

__all__ = ["Result", "make_engine", "result_of_run", "run_in", "simulate", "simulated"]

Listener = Callable[[dict[str, Any]], None]
Value = TypeVar("Value")


@dataclass(frozen=True, repr=False)
class Result:
    """The result of running a job.

    The result also has the attributes of ``outcome``, the job's own result: a training has ``result.model``, ``result.params`` and
    ``result.round`` (see `atoll.learn.Trained`).

    Attributes:
        outcome: the job's own result.
        metrics: the records, one row a round.
        reason: why the job ended.
        seconds: wall-clock seconds of the whole run.
        bytes: bytes and messages by direction.
        engine: name and choices of the engine.
        devices: what each device was asked, did and spent, including before a resume.
        job: the job.
        data: the federated data set.
        prepared: the job, prepared for the data.
        folder: the run folder, if there is one.
        notices: what you should know of the result, a sentence each: settings without effect, replies that did not count, numbers that were cut off.
    """

    outcome: Any
    metrics: History
    reason: str
    seconds: float
    bytes: dict[str, int]
    engine: dict[str, Any]
    devices: ByDevice
    job: Job = field(repr=False)
    data: Any = field(repr=False)
    prepared: Prepared = field(repr=False)
    folder: Path | None = None
    notices: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "outcome":
            raise AttributeError(name)
        if not hasattr(self.outcome, name):
            has = [*vars(self), *(one for one in dir(self.outcome) if not one.startswith("_"))]
            raise UnknownName(
                f"the result of a {type(self.job).__name__} has no {name!r}.{nearest(name, has)}",
                where="Result",
                remedy='print(result) shows what there is; a measure is result.metrics.last("test/accuracy")',
            )
        return getattr(self.outcome, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self.outcome) if not name.startswith("_"))})

    def __repr__(self) -> str:
        from atoll.report.progress import of_result

        return str(of_result(self))

    def _repr_html_(self) -> str:
        from atoll.report.progress import of_result

        return of_result(self).html()

    def to_pandas(self) -> Any:
        """The records as a ``pandas.DataFrame``, a row a round."""
        return self.metrics.to_pandas()

    def plot(self, *names: str, axes: Any = None) -> Any:
        """Draw measures by round with matplotlib, and return the axes.

        Args:
            names: columns of the records; by default those that the job's tables show.
            axes: matplotlib axes to draw into.
        """
        from atoll.report.progress import plot_history

        return plot_history(self.metrics, self.job, names, axes)

    def report(self, path: str | Path | None = None) -> Path:
        """Write a self-contained HTML report; return its path."""
        from .report import write_report

        return write_report(self, path)


def make_engine(engine: Any, workers: int | None = None) -> Any:
    """Return an engine by name: inline, batched, processes or socket. An engine object is returned unchanged."""
    from . import engines

    known = engines.ENGINES
    if not isinstance(engine, str) and hasattr(engine, "choices") and not inspect.isclass(engine):
        return engine
    if not isinstance(engine, str):
        raise ConfigError(
            f"engine={engine!r}", where="simulate", remedy=f"use an engine object, or one of {', '.join(sorted(known))}"
        )
    if engine not in known:
        raise ConfigError(
            f"engine={engine!r}.{nearest(engine, known)}",
            where="simulate",
            remedy=f"use one of {', '.join(sorted(known))}",
        )
    return known[engine](workers)


def run_in(world: World, program: Program) -> tuple[Any, Federation]:
    """Run a program in a world, on its clock. This also works inside a notebook."""
    return run(run_program(world, program), virtual=world.clock.virtual)


def result_of_run(job: Job, data: Any, prepared: Prepared, value: Any, fed: Federation, seconds: float) -> Result:
    """Return the result of a job whose program has ended in any world."""
    from .rounds.by_device import by_device
    from .rounds.history import History

    engine = fed.world.engine
    outcome = prepared.outcome(value)  # some notices follow from it
    notices = (*prepared.notices(list(fed.records)), *_cut_off(fed.world))
    return Result(
        outcome,
        History(fed.records),
        prepared.reason(value, fed),
        seconds,
        fed.bytes(),
        {"name": engine.name, **engine.choices},
        by_device(fed),
        job,
        data,
        prepared,
        fed.world.folder,
        notices,
    )


def _cut_off(world: World) -> list[str]:
    """Say which sums have cut off numbers, where no record does."""
    return [
        f"{clamped} of {coded} numbers did not fit the range of a secure sum and were cut off, so its totals are wrong ({slot}): use a larger "
        "value_range in FixedPoint, or leave it out"
        for slot, (clamped, coded) in world.clamped.items()
    ]


if TYPE_CHECKING:  # for editors and type checkers alone: what `simulate` takes, and what comes of each kind of job

    class TrainingResult(Result, Trained):
        """The result of a training: a ``Result`` that also has what a training has."""

    class Options(TypedDict, total=False):
        """The keywords of `simulate`."""

        engine: Any
        devices: Any
        seed: int
        workers: int | None
        folder: str | Path | None
        resume: bool
        errors: Literal["raise", "drop"]
        secret_seed: int | None
        sealing: Literal["virtual", "real"]
        policy: Policies | None
        state_memory: int | None
        results: str | Path | None
        ledger: str | Path | None
        tasks: Sequence[Task]
        on_record: Listener | None
        on_restore: Callable[[Sequence[dict[str, Any]]], None] | None
        progress: bool | None


@overload
def simulate(job: Training, islands: Any, **options: Unpack[Options]) -> TrainingResult: ...


@overload
def simulate(job: Job, islands: Any, **options: Unpack[Options]) -> Result: ...


@overload
def simulate(job: Callable[[Federation], Awaitable[Value]], islands: Any, **options: Unpack[Options]) -> Value: ...


@checked_call
def simulate(
    job: Job | Program,
    islands: Any,
    *,
    engine: Any = "batched",
    devices: Any = None,
    seed: int = 0,
    workers: int | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    errors: Literal["raise", "drop"] = "raise",
    secret_seed: int | None = None,
    sealing: Literal["virtual", "real"] = "virtual",
    policy: Policies | None = None,
    state_memory: int | None = None,
    results: str | Path | None = None,
    ledger: str | Path | None = None,
    tasks: Sequence[Task] = (),
    on_record: Callable[[dict[str, Any]], None] | None = None,
    on_restore: Callable[[Sequence[dict[str, Any]]], None] | None = None,
    progress: bool | None = None,
) -> Any:
    """Run a job on this machine.

    Args:
        job: a job such as ``Training``, or an async program over a federation.
        islands: the federated data set: the result of a partitioner, or a list or dict of data sets, one a client. A program also takes a dict
            that maps names to data of any kind, and its tasks find these objects themselves. A training makes a data set of a dict of arrays.
        engine: ``"batched"`` (fast), ``"inline"`` (debug), ``"processes"``, ``"socket"``, or an engine object.
        devices: a cost model of devices and links; by default nothing takes time and no client fails.
        seed: the seed of everything reproducible.
        workers: number of processes; by default the engine chooses.
        folder: the run folder, as the command line writes it: settings, records, model, checkpoints. ``atoll runs``, ``report`` and ``compare``
            take it. A run with a folder survives a crash.
        resume: continue the run in the folder.
        errors: whether a task that raises stops the run (``"raise"``) or its party counts as silent (``"drop"``).
        secret_seed: makes the islands' secrets reproducible and every privacy guarantee void.
        sealing: ``"real"`` encrypts the letters between parties and needs the extra ``net``; ``"virtual"`` only hides them from the program
            behind its API, and counts the same bytes.
        policy: what the islands require: one policy for all, or a dict of policies by party name, see ``atoll.core.requests.policy.SitePolicy``.
        state_memory: bytes of memory for the state that clients keep between rounds. The rest goes to memory-mapped files, with the same results.
            ``None`` is a quarter of this machine's memory.
        results: folder of the named results that stay at parties (``island.leave``); by default ``results`` in the run folder. Runs that share a
            folder can read each other's results with ``island.left(name)``.
        ledger: file of a privacy ledger that outlives this run: all runs that name it (trainings, statistics, runs of a sweep) spend from it, and budgets
            count them together. It also records what leaves without differential privacy. By default each run has a ledger of its own.
        tasks: a program's tasks that cannot be found as ``module:name``, such as those of a learner. A job, or a program with an attribute
            ``tasks``, includes its own. A program's attribute ``others`` maps the names of further parties to their roles, and ``jobs`` maps scopes to
            the jobs that it runs there (``fed.run``).
        on_record: called with each record of metrics; raise ``StopRun`` in it to end the run.
        on_restore: called with the records of the checkpoint that a resumed run continues from.
        progress: show the rounds as they end, on stderr. By default Atoll shows them on a terminal and in a notebook.

    Ctrl-C ends the run after the current round, with a checkpoint if there is a folder; a second Ctrl-C raises ``KeyboardInterrupt`` at once. If the
    caller handles SIGINT itself, its handler stays in place.

    Returns:
        The ``Result`` of a job, or what the program returns.

    Raises:
        DataError: the data are not divided among clients, or cannot be used.
        AtollError: settings do not fit together, or an error ended the run.
    """
    from .data.federated import as_population
    from .rounds.program import ProgramJob
    from .runs.spending import spending_of

    if inspect.isclass(job):
        raise ConfigError(
            f"{job.__name__} is a class", where="simulate", remedy=f"make a job of it: {job.__name__}(...)"
        )
    if not isinstance(seed, int | np.integer):
        raise ConfigError(f"seed={seed!r}", where="simulate", remedy="use a whole number, such as seed=0")
    whole = job if isinstance(job, Job) else ProgramJob.of(job)
    islands = as_population(islands, one_form=whole.one_form, tables=whole.reads == "table")
    world: dict[str, Any] = {
        "engine": make_engine(engine, workers), "seed": seed, "cost": devices or Free(), "resume": resume, "errors": errors,
        "secret_seed": secret_seed, "sealing": sealing, "policy": policy or AllowAll(), "state_memory": state_memory,
        "results": None if results is None else Path(results),
    }  # fmt: skip
    shared = None if ledger is None else Path(ledger)
    if folder is None:
        world["spends"] = spending_of(whole.title, shared, None, resume=resume)
        made, value = simulated(whole, islands, tasks, progress, on_record=on_record, on_restore=on_restore, **world)
    else:
        run = describe_run(whole, islands, Path(folder), engine, workers, errors, seed)
        world["ledger"] = shared
        made, value = _in_folder(run, whole, islands, tasks, progress, Path(folder), on_record, on_restore, world)
    return made if whole is job else value


def describe_run(
    job: Job, islands: Any, folder: Path, engine: Any, workers: int | None, errors: str, seed: int
) -> PythonRun:
    """Return the settings of a run as text."""
    from .runs.from_python import PythonRun, settings_of

    name = folder.resolve().name
    named = engine if isinstance(engine, str) else type(engine).__name__
    how = {"name": name, "seed": seed, "engine": named, "workers": workers, "errors": errors}
    return PythonRun(name, seed, settings_of(job, islands, **how))


def _in_folder(
    run: PythonRun,
    job: Job,
    islands: Any,
    tasks: Sequence[Task],
    progress: bool | None,
    folder: Path,
    on_record: Listener | None,
    on_restore: Callable[[Sequence[dict[str, Any]]], None] | None,
    world: dict[str, Any],
) -> tuple[Result, Any]:
    """Run a job and keep its files in a run folder."""
    from .runs.folder import RunFolder
    from .runs.kept import keeping
    from .runs.spending import spending_of

    place = RunFolder(folder)
    place.path.mkdir(parents=True, exist_ok=True)
    with keeping(run, place, resume=world["resume"]) as kept:
        kept.begin(job, islands)

        def record(row: dict[str, Any]) -> None:
            kept.record(row)
            if on_record is not None:
                on_record(row)

        def restore(rows: Sequence[dict[str, Any]]) -> None:
            kept.restore(rows)
            if on_restore is not None:
                on_restore(rows)

        inside = {**world, "folder": place.checkpoints, "results": world["results"] or place.results}
        inside["spends"] = spending_of(run.name, inside.pop("ledger"), place.checkpoints, resume=world["resume"])
        made, value = simulated(
            job, islands, tasks, progress, on_record=record, on_restore=restore, shown=folder, **inside
        )
        kept.finish(made)
    return made, value


def simulated(
    job: Job,
    islands: Any,
    tasks: Sequence[Task] = (),
    progress: bool | None = None,
    *,
    on_record: Listener | None = None,
    on_restore: Callable[[Sequence[dict[str, Any]]], None] | None = None,
    shown: Path | None = None,
    **world: Any,
) -> tuple[Result, Any]:
    """Run a job in a world of its own; see `simulate`.

    Args:
        job: the job.
        islands: the federated data set.
        tasks: further tasks.
        progress: see `simulate`.
        on_record: called with each record.
        on_restore: called with the records that a resumed run continues from.
        shown: the run folder, to name it to the user and in the result.
        world: arguments of ``World``.

    Returns:
        The result, and what the program returned.
    """
    from .data.codings import name_other_codings
    from .data.repeats import name_repeated_rows
    from .data.units import name_other_units
    from .runs.policy_names import require_known_policies
    from .runs.spending import admitted, close_spending
    from .runs.stopping import watching

    begin = time.perf_counter()
    others = job.others(len(islands))
    known: dict[str, Any] = {"roster": Roster(islands.names, others=others)} if others else {}
    with watching(job, on_record, on_restore, progress) as watch:
        made = World(islands, clock=Clock(), on_record=watch.record, on_restore=watch.restore, **known, **world)
        require_known_policies(made.policy)
        admit_job(made.policy, job.names())
        prepared = prepared_job(job, islands)
        register_tasks(made.registry, tasks)
        made.install(prepared)
        value, fed = run_in(made, admitted(prepared, job.title))
        close_spending(made)
    watch.explain(fed, shown)
    for line in _cut_off(made):  # a program returns what it likes, and nobody may look at the result's notices
        warnings.warn(line, RuntimeWarning, stacklevel=level_outside())
    result = result_of_run(job, islands, prepared, value, fed, time.perf_counter() - begin)
    if job.one_form or job.reads == "table":  # a program of one's own may have clients of any kind
        told = [*name_other_units(islands), *name_other_codings(islands)]
        told += _name_order(job, islands)
        told += [] if job.key_columns else name_repeated_rows(islands)  # parties that match keys shall have the same
        result = replace(result, notices=(*result.notices, *told))
    return (result if shown is None else replace(result, folder=shown)), value


def _name_order(job: Job, islands: Any) -> list[str]:
    """Say in which order a network of the user's own, which may tell columns by their places, read them, where tables have several orders."""
    model, about = getattr(job, "model", None), getattr(islands, "about", None)
    given = getattr(model, "model", model)  # what a `CustomLoop` trains
    theirs = hasattr(given, "named_parameters") or (callable(given) and not hasattr(given, "for_columns"))
    if not theirs or about is None or not getattr(about, "reordered", False):
        return []
    names = about.features
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return [
        f"The clients' tables have their columns in different orders, and the model reads them in alphabetical order: {shown}. If it tells columns by their places, name them in its order: features=[...]"
    ]
