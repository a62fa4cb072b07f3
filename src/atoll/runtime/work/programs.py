"""Programs of a job: ``program: module:name`` with plain arguments, in place of a training."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError
from atoll.runs.registries import imported

if TYPE_CHECKING:
    from atoll.core.federation import Federation
    from atoll.core.task import Task
    from atoll.learn import Training

    from ..jobs.spec import JobConfig

__all__ = ["NamedProgram", "program_of", "training_of"]


@dataclass(frozen=True)
class NamedProgram:
    """A program with what a world must know of it.

    Attributes:
        run: ``async (fed) -> result``.
        tasks: those that cannot be found as ``module:name``.
        others: further parties, name -> role.
    """

    run: Callable[[Federation], Awaitable[Any]]
    tasks: tuple[Task, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)


def training_of(job: JobConfig) -> Training:
    """The training of a job that has no program of its own.

    Raises:
        ConfigError: it names no model.
        AtollError: the settings do not go together.
    """
    if job.model is None:
        raise ConfigError("model is missing", where=job.name, remedy="name a model, or a program as module:name")
    return job.training(job.model.build("model"))


def program_of(job: JobConfig) -> NamedProgram:
    """Import the program of a job.

    A coroutine function takes the federation and the job's arguments. Anything else is called with the arguments and makes the program: a
    class with ``async def __call__(self, fed)``, or a function. Its attributes ``tasks`` and ``others`` are what ``simulate`` takes them for.

    Raises:
        ConfigError: it cannot be imported, does not take the arguments, or makes no program.
    """
    name = str(job.program)
    found = imported(name, "program")
    arguments = dict(job.arguments)
    if inspect.iscoroutinefunction(found):
        _require_arguments(name, found, arguments, None)
        return _named(functools.partial(found, **arguments), found)
    _require_arguments(name, found, arguments)
    made = found(**arguments)
    if not callable(made):
        raise ConfigError(
            f"{name} made a {type(made).__name__}, which is no program",
            where="program",
            remedy="name an `async def program(fed, **arguments)`, or something that makes one",
        )
    return _named(made, made)


def _require_arguments(name: str, found: Callable[..., Any], arguments: Mapping[str, Any], *fed: Any) -> None:
    try:
        inspect.signature(found).bind(*fed, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{name} does not take these arguments: {error}",
            where="arguments",
            remedy=f"its parameters are {inspect.signature(found)}",
        ) from error


def _named(run: Callable[..., Any], owner: Any) -> NamedProgram:
    return NamedProgram(run, tuple(getattr(owner, "tasks", ())), dict(getattr(owner, "others", {})))
