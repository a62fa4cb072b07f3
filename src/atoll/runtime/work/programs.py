"""Programs of a job: ``program: module:name`` with plain arguments, in place of a training."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError
from atoll.runs.registries import imported

from ..jobs.modules import importing

if TYPE_CHECKING:
    from atoll.core.federation import Federation
    from atoll.core.task import Task
    from atoll.learn import Training

    from ..jobs.spec import JobConfig

__all__ = ["NamedProgram", "program_of", "require_program", "training_of"]


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
    name, arguments = str(job.program), dict(job.arguments)
    found = _found(name, arguments)
    if inspect.iscoroutinefunction(found):
        return _named(functools.partial(found, **arguments), found)
    made = found(**arguments)
    if not callable(made):
        raise ConfigError(
            f"{name} made a {type(made).__name__}, which is no program",
            where="program",
            remedy="name an `async def program(fed, **arguments)`, or something that makes one",
        )
    return _named(made, made)


def require_program(job: JobConfig) -> None:
    """Refuse a job whose program cannot be what it has to be, before anybody is asked. What makes a program is not called.

    Raises:
        ConfigError: it cannot be imported, does not take the arguments, or is a function that is not async.
    """
    if job.program is not None:
        with importing(job.source_folder):
            _found(str(job.program), job.arguments)


def _found(name: str, arguments: Mapping[str, Any]) -> Any:
    found = imported(name, "program", where="program")
    if inspect.iscoroutinefunction(found):
        _require_arguments(name, found, arguments, None)
    elif not _takes(found, arguments) and _takes(found, arguments, None):
        raise ConfigError(
            f"{name} takes a federation and is not async",
            where="program",
            remedy=f"write `async def {found.__name__}(...)`, and await what the federation gives",
        )
    else:
        _require_arguments(name, found, arguments)
    return found


def _takes(found: Callable[..., Any], arguments: Mapping[str, Any], *fed: Any) -> bool:
    try:
        inspect.signature(found).bind(*fed, **arguments)
    except TypeError:
        return False
    return True


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
