"""Simulation: run a job or a program on this machine, in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .core.clock import Clock, Free, run
from .core.errors import ConfigError, nearest
from .core.federation import Federation, Program, run_program
from .core.party import Roster
from .core.world import World

if TYPE_CHECKING:
    from .core.task import Task
    from .learn.by_device import ByDevice
    from .learn.history import History
    from .learn.training import Trained, Training

__all__ = ["Result", "make_engine", "result_of_training", "run_in", "simulate"]


@dataclass(frozen=True)
class Result:
    """What a simulated training gives.

    Attributes:
        model: the user's own kind of model with the trained parameters.
        params: the parameters as a dict of arrays.
        metrics: a row a round, with the efficiency metrics.
        reason: why the training stopped.
        round: the round that the model comes from.
        seconds: wall-clock seconds of the whole simulation.
        bytes: bytes and messages by direction.
        engine: name and choices of the engine.
        devices: what every device was asked, did and spent, also before a resume.
        job: the job.
        data: the federated data set.
        folder: the run folder, if there is one.
    """

    model: Any
    params: Any
    metrics: History
    reason: str
    round: int
    seconds: float
    bytes: dict[str, int]
    engine: dict[str, Any]
    devices: ByDevice
    job: Any = field(repr=False, default=None)
    data: Any = field(repr=False, default=None)
    folder: Path | None = None

    def report(self, path: str | Path | None = None) -> Path:
        """Write a self-contained HTML report; return its path."""
        from .report import write_report

        return write_report(self, path)


def make_engine(engine: Any, workers: int | None = None) -> Any:
    """An engine by name: inline, batched, processes or socket; an engine object is returned as it is."""
    from . import engines

    if not isinstance(engine, str):
        return engine
    known = engines.ENGINES
    if engine not in known:
        raise ConfigError(
            f"engine={engine!r}.{nearest(engine, known)}", remedy=f"use one of {', '.join(sorted(known))}"
        )
    return known[engine](workers)


def run_in(world: World, program: Program) -> tuple[Any, Federation]:
    """Run a program in a world, on its clock; also inside a notebook."""
    return run(run_program(world, program), virtual=world.clock.virtual)


def result_of_training(
    job: Training, data: Any, learner: Any, trained: Trained, fed: Federation, seconds: float
) -> Result:
    """The result of a training whose program has ended, in whatever world it ran."""
    engine = fed.world.engine
    return Result(
        learner.export(trained.params),
        trained.params,
        trained.history,
        trained.reason,
        trained.round,
        seconds,
        fed.bytes(),
        {"name": engine.name, **engine.choices},
        trained.devices,
        job,
        data,
        fed.world.folder,
    )


def simulate(
    job: Training | Program,
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
    state_memory: int | None = None,
    tasks: Sequence[Task] = (),
    on_record: Callable[[dict[str, Any]], None] | None = None,
    on_restore: Callable[[list[dict[str, Any]]], None] | None = None,
) -> Any:
    """Run a job on this machine.

    Args:
        job: a ``Training`` (gives a ``Result``), or an async program over a federation (gives what it returns).
        islands: the federated data set: what a partitioner gives, or a list or dict of data sets, one a client. A program also takes a dict
            name -> data of your own kind.
        engine: ``"batched"`` (fast), ``"inline"`` (debug), ``"processes"``, ``"socket"``, or an engine object.
        devices: a cost model of devices and links; by default nothing takes time and nobody fails.
        seed: of everything reproducible.
        workers: processes to use; by default the engine chooses.
        folder: the run folder, for checkpoints; a run with a folder survives a crash.
        resume: continue the run in the folder.
        errors: a task that raises stops the run (``"raise"``) or counts as a silent party (``"drop"``).
        secret_seed: makes the islands' secrets reproducible and every privacy guarantee void.
        state_memory: bytes of memory for what clients keep between rounds; the rest goes to memory-mapped files, with the same results.
            ``None`` is a quarter of this machine's memory.
        tasks: tasks of a program that cannot be found as ``module:name``, such as a learner's; a ``Training`` brings its own, and so does a
            program with an attribute ``tasks``. Its attribute ``others`` names further parties, name -> role.
        on_record: called with every record of metrics.
        on_restore: called with the records of the checkpoint that a resumed run continues from.

    Raises:
        DataError: the data are not divided among clients, or cannot be used.
        AtollError: settings that do not go together, and whatever ends the run.
    """
    from .data.federated import as_population
    from .learn.training import Training

    begin = time.perf_counter()
    islands = as_population(islands)
    chosen = make_engine(engine, workers)
    where = None if folder is None else Path(folder)
    servers = job.others(len(islands)) if isinstance(job, Training) else dict(getattr(job, "others", {}))
    known: dict[str, Any] = {"roster": Roster(islands.names, others=servers)} if servers else {}
    world = World(
        islands, chosen, seed=seed, **known, clock=Clock(), cost=devices or Free(), folder=where, resume=resume,
        errors=errors, secret_seed=secret_seed, state_memory=state_memory, on_record=on_record, on_restore=on_restore,
    )  # fmt: skip
    world.registry.update({task.name: task for task in (*tasks, *getattr(job, "tasks", ()))})
    if not isinstance(job, Training):
        return run_in(world, job)[0]
    if len(islands) == 0:
        raise ConfigError("the federation has no clients", where="islands", remedy="partition the data first")
    learner = job.learner(islands)
    world.registry.update({task.name: task for task in job.named_tasks(learner, islands)})
    trained, fed = run_in(world, job.program(islands, learner))
    return result_of_training(job, islands, learner, trained, fed, time.perf_counter() - begin)
