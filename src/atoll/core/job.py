"""The contract of a job.

Simulation, configurations, run folders, the runtime and reports use jobs only through this contract. A job is settings: a frozen dataclass.
``prepare`` turns it into a program for one population of parties.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .addresses import declared_name
from .errors import ConfigError, DataError
from .exposure import Explanation, Exposure
from .overview import of_settings
from .requests.task import register_tasks

if TYPE_CHECKING:
    from .event import Event
    from .requests.task import Task

__all__ = [
    "EDGE", "InnerJob", "Job", "Prepared", "as_job", "declare_jobs", "declared_jobs", "every_job", "members_of", "name_of", "others_of", "others_of_reducer", "prepare_jobs", "prepared", "register_prepared",
]  # fmt: skip

EDGE = "edge"
"""The role of a party that runs where the program runs: between organisations at the server, and at no site of its own."""

_STAMPS = frozenset({"slot", "clock", "round", "t_start", "t_end"})
"""Columns of a record that identify it and say when it was made."""


class Prepared:
    """A job prepared for one population.

    Attributes:
        tasks: its tasks that another process cannot find as ``module:name``.
        jobs: the jobs that its program runs inside, by scope; see `Federation.run`.
    """

    tasks: Sequence[Task] = ()
    jobs: Mapping[str, InnerJob] = {}

    async def program(self, fed: Any) -> Any:
        """The program, over a `Federation`. After a crash it runs again from the top; see `atoll.core.federation.federation`."""
        raise NotImplementedError

    def check(self, population: Any) -> None:
        """Check the rows of one site before the program begins.

        Args:
            population: the site's own clients.

        Raises:
            DataError: the job cannot use them.
        """
        del population

    def most(self, rows: int) -> Sequence[Event] | None:
        """What the job releases of one party at most, in all of its rounds; `NonPrivate` for what leaves without noise. ``None`` if nobody can say.

        A party that demands differential privacy asks this before the job begins.

        Args:
            rows: the party's number of rows.
        """
        del rows
        return None

    def entrusted(self, rows: int) -> Sequence[Event]:
        """What the job releases of one party at most with noise that others add: a site books all of it when the job begins, since it cannot see which rounds count.

        Args:
            rows: the party's number of rows.
        """
        del rows
        return ()

    def outcome(self, value: Any) -> Any:
        """Return the job's result, made from the program's return value."""
        return value

    def reason(self, value: Any, fed: Any) -> str:
        """Why the program ended."""
        del value
        return str(fed.ending or "program ended")

    def facts(self, outcome: Any) -> Mapping[str, Any]:
        """Short plain facts about the outcome, for the manifest of a run folder; the end of a run prints ``"result"``."""
        del outcome
        return {}

    def notices(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """What whoever reads the result should know of it, a sentence each: settings without effect, replies that did not count, a loss that grew.

        Args:
            rows: the records of the run.
        """
        return notices_of(rows)

    def sections(self, outcome: Any) -> Sequence[Mapping[str, Any]]:
        """Tables and pictures of the outcome for a report, as plain data; see `atoll.report.page`."""
        del outcome
        return ()

    def files(self, outcome: Any) -> Mapping[str, bytes]:
        """The files of the outcome for the run folder: maps a file name to its content."""
        del outcome
        return {}


def notices_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the records of any job say of replies that did not count, of rounds that failed, and of numbers that were cut off."""
    found = []
    rejected = [(row, dict(row.get("rejected_clients") or {})) for row in rows if row.get("rejected")]
    if rejected:
        count, first = sum(int(row["rejected"]) for row, _ in rejected), rejected[0]
        who = next(iter(first[1].items()), None)
        why = "" if who is None else f", first in round {first[0].get('round')} of {who[0]}: {who[1]}"
        found.append(f"{count} replies were rejected in {len(rejected)} of {len(rows)} rounds{why}")
    errors = [(row, name, text) for row in rows for name, text in dict(row.get("errors") or {}).items()]
    if errors:
        row, name, text = errors[0]
        found.append(
            f"{len(errors)} tasks raised and did not count, first in round {row.get('round')} at {name}: {text}"
        )
    lost = [row for row in rows if type(row.get("failed")) is int and row["failed"]]
    if lost:  # a bridge's records count replies here
        found.append(f"{sum(row['failed'] for row in lost)} replies failed in {len(lost)} of {len(rows)} rounds")
    failed = [row for row in rows if isinstance(row.get("failed"), str)]
    if failed:
        row = failed[0]
        found.append(f"{len(failed)} of {len(rows)} rounds failed, first round {row.get('round')}: {row['failed']}")
    partial = {name: text for row in rows for name, text in dict(row.get("partial_metrics") or {}).items()}
    found += [f"{name} counts {text} in some rounds: it is not a number elsewhere" for name, text in partial.items()]
    most = max((float(row.get("clamped") or 0.0) for row in rows), default=0.0)
    if most:
        found.append(f"up to {most:.2g} of a round's numbers did not fit their words and were cut off (`clamped`)")
    return found


class Job:
    """Base class of jobs: frozen dataclasses of settings, which a configuration can also give.

    Attributes:
        kind: the value of ``job:`` in a configuration.
        one_form: whether the parties' data must have one form (columns, types, classes). Sites then agree on it before ``prepare`` is called, and the
            data of ``prepare`` have it. Otherwise parties may have any data, and only sizes are known.
        missing_features: whether the job can use data whose features may be missing (NaN); others refuse them.
        reads: how a site reads its tables for the job: as a ``"dataset"`` of complete features and a target, or as a ``"table"`` of columns as they are.
        key_columns: columns of keys, which stay text when a site reads its tables for the job: "007" is not the number 7 there.
        method: the setting that tables of runs show.
        changeable: settings that a resumed run may change; changing any other would make it another run.
    """

    kind: ClassVar[str] = ""
    one_form: ClassVar[bool] = False
    missing_features: ClassVar[bool] = False
    reads: ClassVar[str] = "dataset"
    method: ClassVar[str] = ""
    changeable: ClassVar[tuple[str, ...]] = ()

    @property
    def key_columns(self) -> Sequence[str]:
        """Columns of keys; none by default."""
        return ()

    @property
    def title(self) -> str:
        """The class, and the part that decides how the job computes: ``Training (FedAvg)``."""
        part = getattr(self, self.method, None) if self.method else None
        named = getattr(part, "__qualname__", type(part).__name__)
        return type(self).__name__ + ("" if part is None else f" ({named})")

    def __str__(self) -> str:
        return str(of_settings(self.title, self))

    def _repr_html_(self) -> str:
        return of_settings(self.title, self).html()

    def names(self) -> tuple[str, ...]:
        """The names by which site policies know the job: its kind, then the names of what decides how it computes. User code is ``module:name``."""
        return (self.kind if name_of(type(self)) == type(self).__qualname__ else name_of(type(self)),)

    @classmethod
    def known_names(cls) -> Iterable[str]:
        """Every name that `names` of a job of this kind can give, but those of code of one's own. A policy that names anything else is misspelt, and refused."""
        return (cls.kind,)

    @property
    def most_rounds(self) -> int | None:
        """Maximum number of records, for a progress bar; ``None`` if it is not known."""
        return None

    def others(self, n: int) -> Mapping[str, str]:
        """The parties that the job needs in addition to ``n`` clients: maps a name to a role; by default those of its ``reducer``, if it has one."""
        del n
        return others_of_reducer(self)

    def helpers(self) -> Mapping[str, str]:
        """Those of ``others`` that need a site of their own between organisations: name -> role.

        It is asked when the job is submitted: nobody knows then how many clients there will be. All but edges, by default.
        """
        return {name: role for name, role in self.others(1).items() if role != EDGE}

    def jobs(self) -> Mapping[str, tuple[Job, tuple[str, ...] | None]]:
        """The jobs that its program runs inside (`Federation.run`), which places on other machines must know before it begins.

        Returns:
            Maps a scope to the job, and to the names of its parties; ``None`` for all.
        """
        return {}

    def prepare(self, data: Any) -> Prepared:
        """Prepare the job for a population.

        This is called where the program runs and, between organisations, also at each site, so that both know the same tasks. There
        ``data`` has names, sizes and, with ``one_form``, the form of the rows (``data.outline()`` has made-up rows of that form), but no rows.

        Args:
            data: the population: what ``simulate`` receives, or what is known of it remotely.

        Raises:
            AtollError: settings do not fit together, or the data cannot be used.
        """
        raise NotImplementedError

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Who will see what, under which assumption, at which cost, before anyone is contacted. A kind of job says what it knows.

        By default that is what follows from the job itself: its further parties, the jobs that it runs inside, and the reducers among its settings.

        Args:
            data: the population, if it is at hand.
            clients: number of clients in a round, if it does not follow from the job and the data.
        """
        return _explain_own(self, data, clients)

    @classmethod
    def require_settings(cls, said: Mapping[str, Any]) -> None:
        """Refuse settings of a configuration before anything is made from them.

        Args:
            said: maps a setting to its value; for a part, the class or function found by its name.

        Raises:
            ConfigError: if one setting is wrong, the text begins with ``setting=value``.
        """
        del said

    def settings(self) -> dict[str, Any]:
        """The settings by name, for people to read."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def measures(cls, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """The main columns of the records, in display order: maps a label to a column; by default every number.

        Args:
            rows: the records so far.
        """
        names = dict.fromkeys(name for row in rows for name, value in row.items() if _is_number(value))
        return {name: name for name in names if name not in _STAMPS}

    @classmethod
    def news(cls, last: Mapping[str, float]) -> Iterable[str]:
        """What a progress display prints of the newest values of the columns."""
        columns = [name for name in last if name not in _STAMPS and not name.startswith("bytes_")]
        return [f"{name} {last[name]:.4g}" for name in columns[:3]]


@dataclasses.dataclass(frozen=True)
class InnerJob:
    """A job that a program runs inside, ready for its parties.

    Attributes:
        job: the job.
        prepared: the job, prepared for the parties.
        parties: their names; ``None`` for all of the population.
    """

    job: Job
    prepared: Prepared
    parties: tuple[str, ...] | None = None


def declared_jobs(program: Any) -> dict[str, tuple[Job, tuple[str, ...] | None]]:
    """The jobs that a program runs inside, as its attribute ``jobs`` says: ``{"a": job}``, or ``{"a": (job, names of its parties)}``.

    Raises:
        ConfigError: the attribute says something else.
    """
    found: dict[str, tuple[Job, tuple[str, ...] | None]] = {}
    given = getattr(program, "jobs", None) or {}
    for scope, one in (given if isinstance(given, Mapping) else {"": given}).items():
        job, names = one if isinstance(one, tuple) and len(one) == 2 else (one, None)
        if not isinstance(job, Job) or not (scope and isinstance(scope, str)) or isinstance(names, str):
            raise ConfigError(
                f"jobs: {type(one).__name__} for the scope {scope!r}",
                where=_name_program(program),
                remedy='declare a job for each scope: program.jobs = {"a": job}, or {"a": (job, ["north", "south"])} for some parties',
            )
        found[scope] = (job, None if names is None else tuple(str(name) for name in names))
    return found


def every_job(job: Job) -> Iterator[Job]:
    """A job, and all jobs that its program runs inside, at any depth: whoever admits it admits each of them."""
    yield job
    for inner, _ in getattr(job, "jobs", dict)().values():  # a job of one's own may have the older contract
        yield from every_job(inner)


def prepare_jobs(job: Job, data: Any) -> dict[str, InnerJob]:
    """Prepare the jobs that a job's program runs inside, each for its own parties.

    Raises:
        ConfigError: a party is not in the population.
        AtollError: as ``Job.prepare``.
    """
    return {
        scope: InnerJob(inner, prepared(inner, members_of(data, names)), names)
        for scope, (inner, names) in job.jobs().items()
    }


def members_of(data: Any, names: Sequence[str] | None) -> Any:
    """The part of a population that some of its parties are, in the population's order; the population itself for ``None`` or all.

    Raises:
        ConfigError: a party is not in the population, or the population cannot be divided.
    """
    if names is None or list(names) == list(data.names):
        return data
    places = {str(name): i for i, name in enumerate(data.names)}
    missing = [name for name in names if name not in places]
    if missing:
        raise ConfigError(
            f"no party of the federation is named {missing[0]!r}",
            where="jobs",
            remedy=f"name some of {', '.join([*places][:20])}",
        )
    positions = np.array(sorted(places[name] for name in names), dtype=np.int64)
    if len(positions) == len(places):
        return data
    choose = getattr(data, "members", None) or getattr(data, "subset", None)  # what has no rows here has no `subset`
    if choose is None:
        raise ConfigError(
            f"a {type(data).__name__} has no part of some parties",
            where="jobs",
            remedy="give it a method subset(positions), or run the job with all parties",
        )
    return choose(positions)


def register_prepared(registry: dict[str, Any], ready: Prepared, slot: str = "") -> None:
    """Make a job's tasks known by address, and those of the jobs inside it, each under the slot of its scope.

    Args:
        registry: see `register_tasks`.
        ready: the job.
        slot: slot of its scope; empty for the outermost.
    """
    register_tasks(registry, ready.tasks, slot)
    for scope, inner in ready.jobs.items():
        register_prepared(registry, inner.prepared, f"{slot or 'main'}/{scope}")


def declare_jobs(known: dict[str, InnerJob], ready: Prepared, slot: str = "") -> None:
    """Note the jobs inside a prepared one by the slots of their scopes.

    Args:
        known: slot -> `InnerJob`.
        ready: the job.
        slot: slot of its scope; empty for the outermost.
    """
    for scope, inner in ready.jobs.items():
        at = f"{slot or 'main'}/{scope}"
        known[at] = inner
        declare_jobs(known, inner.prepared, at)


def as_job(given: Any) -> Job:
    """A job as it is, and a plain ``async def program(fed)`` as a job; its attributes say more, see `atoll.rounds.ProgramJob`.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(given, Job):
        return given
    if inspect.isclass(given) or not callable(given):
        raise ConfigError(
            f"{given!r} is neither a job nor a program",
            remedy="give a job, such as atoll.Training(...), or an async def program(fed)",
        )
    return _GivenProgram(given)


@dataclasses.dataclass(frozen=True)
class _GivenProgram(Job):
    """A program as its author wrote it."""

    kind: ClassVar[str] = "program"

    program: Any

    def names(self) -> tuple[str, ...]:
        whole = self.program
        return (self.kind, declared_name(whole if hasattr(whole, "__qualname__") else type(whole)))

    def others(self, n: int) -> Mapping[str, str]:
        return {**others_of(self.jobs(), n), **others_of_reducer(self.program), **dict(getattr(self.program, "others", {}))}  # fmt: skip

    def jobs(self) -> Mapping[str, tuple[Job, tuple[str, ...] | None]]:
        return declared_jobs(self.program)

    def prepare(self, data: Any) -> Prepared:
        return _GivenPrepared(self.program, prepare_jobs(self, data))


class _GivenPrepared(Prepared):
    def __init__(self, run: Any, jobs: Mapping[str, InnerJob]) -> None:
        self.run, self.jobs, self.tasks = run, jobs, tuple(getattr(run, "tasks", ()))

    async def program(self, fed: Any) -> Any:
        return await self.run(fed)


def others_of_reducer(whole: Any) -> dict[str, str]:
    """The further parties that the ``reducer`` of a job or a program needs, such as a key holder: name -> role; none without a reducer."""
    return dict(getattr(getattr(whole, "reducer", None), "others", {}))


def others_of(jobs: Mapping[str, tuple[Job, tuple[str, ...] | None]], n: int) -> dict[str, str]:
    """The further parties that the jobs inside a program need, of ``n`` clients: name -> role.

    Raises:
        ConfigError: two of them need one name in two roles.
    """
    found: dict[str, str] = {}
    for scope, (job, names) in jobs.items():
        for name, role in job.others(n if names is None else len(names)).items():
            if found.setdefault(name, role) != role:
                raise ConfigError(
                    f"the party {name!r} would be {found[name]} and {role}",
                    where=f"jobs, scope {scope!r}",
                    remedy="give the helpers of the two jobs different names",
                )
    return found


def _explain_own(job: Job, data: Any, clients: int) -> Explanation:
    """What follows from a job of any kind; see ``Job.explain``."""
    count = clients if data is None else len(data)
    fields: Sequence[Any] = dataclasses.fields(job) if dataclasses.is_dataclass(job) else ()
    parts = [getattr(job, field.name) for field in fields]
    exposures = [
        one for part in parts if callable(getattr(part, "exposures", None)) for one in part.exposures(count or 2)
    ]
    further = job.others(count or 1)
    exposures += [Exposure(role, f"what the job asks of {name}") for name, role in further.items()]
    costs: dict[str, Any] = {}
    notes: list[str] = []
    for scope, (inner, names) in job.jobs().items():
        found = inner.explain(
            members_of(data, names) if data is not None else None, count if names is None else len(names)
        )
        exposures += [dataclasses.replace(one, who=f"{scope}: {one.who}") for one in found.exposures]
        costs |= {f"{scope}: {name}": value for name, value in found.costs.items()}
        notes += [f"{scope}: {note}" for note in found.notes]
    if not job.jobs():
        notes.append("this kind of job does not say what its parties see: read its program")
    else:
        notes.append("what its own program asks besides, nobody says here: read it")
    return Explanation(job.title, count, tuple(exposures), costs, tuple(notes))


def _name_program(program: Any) -> str:
    return str(getattr(program, "__qualname__", type(program).__name__))


def prepared(job: Job, data: Any) -> Prepared:
    """Prepare a job for a population, if it can use features that are missing or there are none.

    Raises:
        DataError: features of the clients or of the server's test rows may be missing, and the job cannot use that.
        AtollError: as ``Job.prepare``.
    """
    for rows, whose in ((data, "the clients'"), (getattr(data, "test", None), "the test rows'")):
        about = getattr(rows, "about", None)
        if not job.missing_features and getattr(about, "missing_features", False):
            raise DataError(
                f"{whose} features may be missing, which a {type(job).__name__} cannot use",
                where=f"data set {getattr(about, 'name', '')!r}",
                remedy="fill them first, as Fit(model=Columns(), impute='median') does, or use a job that takes them, such as Trees",
            )
    return job.prepare(data)


def name_of(found: Any) -> str:
    """The name of a class or function of Atoll; ``module:name`` for any other."""
    module, name = getattr(found, "__module__", "?"), getattr(found, "__qualname__", type(found).__name__)
    return name if module.partition(".")[0] == __name__.partition(".")[0] else f"{module}:{name}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
