"""The contract of a job.

Simulation, configurations, run folders, the runtime and reports use jobs only through this contract. A job is settings: a frozen dataclass.
``prepare`` turns it into a program for one population of parties.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import DataError
from .exposure import Explanation
from .overview import of_settings

if TYPE_CHECKING:
    from .event import Event
    from .federation.federation import Federation
    from .requests.task import Task

__all__ = ["EDGE", "Job", "Prepared", "name_of", "prepared"]

EDGE = "edge"
"""The role of a party that runs where the program runs: between organisations at the server, and at no site of its own."""

_STAMPS = frozenset({"slot", "clock", "round", "t_start", "t_end"})
"""Columns of a record that identify it and say when it was made."""


class Prepared:
    """A job prepared for one population.

    Attributes:
        tasks: its tasks that another process cannot find as ``module:name``.
    """

    tasks: Sequence[Task] = ()

    async def program(self, fed: Federation) -> Any:
        """The program. After a crash it runs again from the top; see `atoll.core.federation.federation`."""
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

    def reason(self, value: Any, fed: Federation) -> str:
        """Why the program ended."""
        del value
        return fed.ending or "program ended"

    def facts(self, outcome: Any) -> Mapping[str, Any]:
        """Short plain facts about the outcome, for the manifest of a run folder; the end of a run prints ``"result"``."""
        del outcome
        return {}

    def sections(self, outcome: Any) -> Sequence[Mapping[str, Any]]:
        """Tables and pictures of the outcome for a report, as plain data; see `atoll.report.page`."""
        del outcome
        return ()

    def files(self, outcome: Any) -> Mapping[str, bytes]:
        """The files of the outcome for the run folder: maps a file name to its content."""
        del outcome
        return {}


class Job:
    """Base class of jobs: frozen dataclasses of settings, which a configuration can also give.

    Attributes:
        kind: the value of ``job:`` in a configuration.
        one_form: whether the parties' data must have one form (columns, types, classes). Sites then agree on it before ``prepare`` is called, and the
            data of ``prepare`` have it. Otherwise parties may have any data, and only sizes are known.
        missing_features: whether the job can use data whose features may be missing (NaN); others refuse them.
        reads: how a site reads its tables for the job: as a ``"dataset"`` of complete features and a target, or as a ``"table"`` of columns as they are.
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

    @property
    def most_rounds(self) -> int | None:
        """Maximum number of records, for a progress bar; ``None`` if it is not known."""
        return None

    def others(self, n: int) -> Mapping[str, str]:
        """The parties that the job needs in addition to ``n`` clients: maps a name to a role."""
        del n
        return {}

    def helpers(self) -> Mapping[str, str]:
        """Those of ``others`` that need a site of their own between organisations: name -> role.

        It is asked when the job is submitted: nobody knows then how many clients there will be. All but edges, by default.
        """
        return {name: role for name, role in self.others(1).items() if role != EDGE}

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

        Args:
            data: the population, if it is at hand.
            clients: number of clients in a round, if it does not follow from the job and the data.
        """
        del data
        note = "this kind of job does not say what its parties see: read its program"
        return Explanation(self.title, clients, notes=(note,))

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
