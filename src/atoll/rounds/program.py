"""A plain program as a job."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from atoll.core import message
from atoll.core.addresses import declared_name
from atoll.core.errors import ConfigError, MessageError
from atoll.core.job import EDGE, Job, Prepared, declared_jobs, members_of, others_of, others_of_reducer, prepare_jobs
from atoll.core.persistence.files import as_json
from atoll.core.rooms import Own
from atoll.core.validation import Checked, require_parts

from .history import History
from .loop import StopRule, stop_reason

if TYPE_CHECKING:
    from atoll.core.event import Event
    from atoll.core.federation.federation import Federation

__all__ = ["ProgramJob", "each_round"]


def each_round(fed: Federation, most: int | None = None) -> Iterator[int]:
    """Yield the numbers of the remaining rounds, from 1, until the run should end.

    A round is over once it has recorded something. A resumed program continues after the last record of its checkpoint. So restore the state
    before the loop, and record each round before its checkpoint::

        state = await fed.restore(0.0)
        for number in each_round(fed, most=20):
            state = ...
            fed.record({"mean": state})
            await fed.checkpoint(state)

    The loop ends when a stop rule of the job holds, when someone stops the run, or after ``most`` rounds.

    Args:
        fed: the federation.
        most: maximum number of rounds; ``None`` leaves it to the job.

    Raises:
        ConfigError: a round recorded nothing.
    """
    while fed.ending is None and (most is None or len(fed.records) < most):
        number = len(fed.records) + 1
        yield number
        if len(fed.records) < number:
            raise ConfigError(
                f"round {number} recorded nothing",
                where="each_round",
                remedy='call fed.record({...}) in every round, before fed.checkpoint: fed.record({"loss": loss})',
            )


_SHOWN = 1 << 16
"""Maximum number of characters of a result that a run's manifest repeats."""


@dataclass(frozen=True)
class ProgramJob(Checked, Job):
    """Run ``async def program(fed, **arguments)``.

    ``program`` may also be any callable that takes the arguments and returns the program: a class with ``async def __call__(self, fed)``, or a
    function. The program may have four attributes: ``tasks``, its tasks that another process cannot find as ``module:name``, ``others``,
    which maps the names of further parties to their roles, ``jobs``, which maps scopes to the jobs that it runs there (`Federation.run`), and
    ``releases``, the privacy events that it releases of a party at most, besides those of ``jobs``.

    Attributes:
        program: the program, or a callable that makes it.
        arguments: its arguments; plain data if the job is sent to another machine.
        rounds: maximum number of rounds of `each_round`; ``None`` lets the program decide when to end.
        stop: stop rules over its records; `each_round` obeys them, and ``fed.ending`` has the reason.
    """

    kind: ClassVar[str] = "program"
    method: ClassVar[str] = "program"
    changeable: ClassVar[tuple[str, ...]] = ("rounds", "stop")

    program: Annotated[Callable[..., Any], Own("program", always=True)]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    stop: Sequence[StopRule] = ()

    def __post_init__(self) -> None:
        require_parts(self, {}, {"stop": (StopRule, 'atoll.Target("loss", 0.1)')})
        if self.rounds is not None and self.rounds < 1:
            raise ConfigError(f"rounds={self.rounds}", remedy="use at least 1 round")
        _require_program(self.program, self.arguments)

    @classmethod
    def of(cls, program: Callable[[Federation], Awaitable[Any]]) -> ProgramJob:
        """Wrap a program in a job: any callable that takes a federation and returns an awaitable."""
        return cls(_AsGiven(program))

    @property
    def most_rounds(self) -> int | None:
        """The limit of ``rounds``."""
        return self.rounds

    @functools.cached_property
    def _made(self) -> tuple[Callable[[Federation], Awaitable[Any]], Any]:
        """Return the program, and the object whose attributes describe it to the world."""
        if _is_program(self.program):
            run = functools.partial(self.program, **self.arguments) if self.arguments else self.program
            return run, self.program
        made = self.program(**self.arguments)
        if not callable(made):
            raise ConfigError(
                f"{_name(self.program)} made a {type(made).__name__}, which is not a program",
                where="program",
                remedy="name an `async def program(fed, **arguments)`, or a callable that makes one",
            )
        return made, made

    def names(self) -> tuple[str, ...]:
        """The names of the job's kind and of the program."""
        program = self.program.whole if isinstance(self.program, _AsGiven) else self.program
        return (*super().names(), _name(program))

    def others(self, n: int) -> Mapping[str, str]:
        """The further parties that the program names, or that its reducer needs."""
        made = self._made[1]
        return {**others_of(self.jobs(), n), **others_of_reducer(made), **dict(getattr(made, "others", {}))}

    def jobs(self) -> Mapping[str, tuple[Job, tuple[str, ...] | None]]:
        """The jobs that the program declares, by scope."""
        return self._jobs

    @functools.cached_property
    def _jobs(self) -> dict[str, tuple[Job, tuple[str, ...] | None]]:
        return declared_jobs(self._made[1])

    @property
    def one_form(self) -> bool:  # type: ignore[override]
        """Whether a job that it runs needs data of one form."""
        return any(job.one_form for job, _ in self.jobs().values())

    @property
    def missing_features(self) -> bool:  # type: ignore[override]
        """Whether a job that it runs can use data whose features may be missing."""
        return any(job.missing_features for job, _ in self.jobs().values())

    @property
    def reads(self) -> str:  # type: ignore[override]
        """How a site reads its tables: as the jobs that it runs want them."""
        wanted = sorted({job.reads for job, _ in self.jobs().values()}) or [Job.reads]
        if len(wanted) > 1:
            raise ConfigError(
                f"the jobs of {_name(self.program)} read a site's tables in two ways, as {' and as '.join(wanted)}",
                where="jobs",
                remedy="run them in two programs",
            )
        return wanted[0]

    def helpers(self) -> Mapping[str, str]:
        """Of those that the program names, or what makes it; that need not be called then."""
        named, jobs = getattr(self.program, "others", None), getattr(self.program, "jobs", None)
        plain = [isinstance(one, Mapping) for one in (named, jobs) if one is not None]
        if not plain or not all(plain):
            found = self.others(1)
        else:
            inside = others_of(declared_jobs(self.program), 1)
            found = {**inside, **others_of_reducer(self.program), **dict(named or {})}
        return {name: role for name, role in found.items() if role != EDGE}

    def prepare(self, data: Any) -> Prepared:
        """Prepare the program; it does not depend on the data."""
        run, owner = self._made
        made = _PreparedProgram(self, run, tuple(getattr(owner, "tasks", ())), getattr(owner, "releases", None))
        made.jobs = prepare_jobs(self, data)
        return made


class _AsGiven:
    """A program as its author wrote it, which Atoll does not analyse."""

    def __init__(self, program: Callable[[Federation], Awaitable[Any]]) -> None:
        self.whole = program
        self.tasks = tuple(getattr(program, "tasks", ()))
        self.others = {**others_of_reducer(program), **dict(getattr(program, "others", {}))}
        self.jobs = getattr(program, "jobs", None)
        self.releases = getattr(program, "releases", None)

    async def __call__(self, fed: Federation) -> Any:
        made = self.whole(fed)
        if not inspect.isawaitable(made):
            raise ConfigError(
                f"{_name(self.whole)} is not async: it gave a {type(made).__name__}",
                where="program",
                remedy="write `async def program(fed): ...`, and await what the federation gives",
            )
        return await made


class _PreparedProgram(Prepared):
    def __init__(
        self,
        job: ProgramJob,
        run: Callable[[Federation], Awaitable[Any]],
        tasks: Sequence[Any],
        releases: Sequence[Event] | None,
    ) -> None:
        self.job, self.run, self.tasks, self.releases = job, run, tasks, releases

    def most(self, rows: int) -> Sequence[Event] | None:
        """What the program says that it releases, and what the jobs inside it release."""
        if self.releases is None:
            return None
        found = [tuple(self.releases), *(inner.prepared.most(rows) for inner in self.jobs.values())]
        return None if any(one is None for one in found) else [event for one in found for event in one or ()]

    def entrusted(self, rows: int) -> Sequence[Event]:
        """What the jobs inside it release with noise that others add."""
        return [event for inner in self.jobs.values() for event in inner.prepared.entrusted(rows)]

    def check(self, population: Any) -> None:
        """Let the jobs inside it check a site's own rows, each those of its parties."""
        here = {str(name) for name in population.names}
        for inner in self.jobs.values():
            mine = None if inner.parties is None else [name for name in inner.parties if name in here]
            if mine is None or mine:
                inner.prepared.check(members_of(population, mine))

    async def program(self, fed: Federation) -> Any:
        """Run the program under the job's stop rules."""
        fed.ends_when(lambda rows: stop_reason(self.job.stop, self.job.rounds, History(rows)))
        return await self.run(fed)

    def facts(self, outcome: Any) -> Mapping[str, Any]:
        """The program's return value, if it is short."""
        if self._free and not _is_message(outcome):
            return {}
        shown = as_json(outcome)
        return {"result": outcome} if len(shown) <= _SHOWN else {}

    def files(self, outcome: Any) -> Mapping[str, bytes]:
        """The program's return value, as a message."""
        return {} if self._free and not _is_message(outcome) else {"result.msg": message.encode(outcome)}

    @property
    def _free(self) -> bool:
        """Whether the program may return any object: its caller has it, and the folder keeps what is a message."""
        return isinstance(self.job.program, _AsGiven)


def _is_message(value: Any) -> bool:
    try:
        message.nbytes(value)
    except MessageError:
        return False
    return True


def _require_program(program: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse an object that cannot be a program before the first request. A callable that makes a program is not called.

    Raises:
        ConfigError: it does not take the arguments, or is a function that is not async.
    """
    if not callable(program):
        raise ConfigError(
            f"program: a {type(program).__name__} is not a program",
            where="ProgramJob",
            remedy="give an `async def program(fed, **arguments)`, or a callable that makes one",
        )
    if _is_program(program):
        _require_arguments(program, arguments, None)
    elif not _takes(program, arguments) and _takes(program, arguments, None):
        raise ConfigError(
            f"{_name(program)} takes a federation and is not async",
            where="program",
            remedy=f"write `async def {getattr(program, '__name__', 'program')}(...)`, and await what the federation gives",
        )
    else:
        _require_arguments(program, arguments)


def _is_program(program: Any) -> bool:
    """Whether calling it with a federation runs it: true of a coroutine function and of an object with an ``async def __call__``."""
    if inspect.iscoroutinefunction(inspect.unwrap(program) if inspect.isfunction(program) else program):
        return True
    if isinstance(program, functools.partial):
        return _is_program(program.func)
    return not inspect.isclass(program) and inspect.iscoroutinefunction(getattr(program, "__call__", None))  # noqa: B004


def _takes(program: Callable[..., Any], arguments: Mapping[str, Any], *fed: Any) -> bool:
    try:
        inspect.signature(program).bind(*fed, **arguments)
    except TypeError:
        return False
    return True


def _require_arguments(program: Callable[..., Any], arguments: Mapping[str, Any], *fed: Any) -> None:
    try:
        inspect.signature(program).bind(*fed, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{_name(program)} does not take these arguments: {error}",
            where="arguments",
            remedy=f"its parameters are {inspect.signature(program)}",
        ) from error


def _name(program: Any) -> str:
    return declared_name(program if hasattr(program, "__qualname__") else type(program))
