"""The contract of a job: what people run.

Simulation, configurations, run folders, the runtime and reports know jobs by this contract alone. A job is settings: a frozen dataclass.
``prepare`` turns it into a program for one population of parties.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .overview import of_settings

if TYPE_CHECKING:
    from .federation.federation import Federation
    from .requests.task import Task

__all__ = ["Job", "Prepared", "name_of"]

_STAMPS = frozenset({"slot", "clock", "round", "t_start", "t_end"})
"""Columns of a record that say which one it is and when it was made."""


class Prepared:
    """A job made ready for one population.

    Attributes:
        tasks: its tasks that no other process finds as ``module:name``.
    """

    tasks: Sequence[Task] = ()

    async def program(self, fed: Federation) -> Any:
        """The program. It is run again from the top after a crash; see `atoll.core.federation.federation`."""
        raise NotImplementedError

    def check(self, population: Any) -> None:
        """Look at the rows of one site before it begins.

        Args:
            population: the site's own clients.

        Raises:
            DataError: the job cannot use them.
        """
        del population

    def outcome(self, value: Any) -> Any:
        """What people get, of what the program returned."""
        return value

    def reason(self, value: Any, fed: Federation) -> str:
        """Why the program ended."""
        del value
        return fed.ending or "program ended"

    def facts(self, outcome: Any) -> Mapping[str, Any]:
        """Short plain facts about the outcome, for the manifest of a run folder; ``"result"`` is shown at the end of a run."""
        del outcome
        return {}

    def files(self, outcome: Any) -> Mapping[str, bytes]:
        """What a run folder keeps of the outcome: name of a file -> its content."""
        del outcome
        return {}


class Job:
    """Base of jobs: frozen dataclasses of settings, which a configuration may give too.

    Attributes:
        kind: what ``job:`` in a configuration says.
        one_form: the parties' data must have one form (columns, types, classes). Sites then agree on it before ``prepare`` is called, and what
            ``prepare`` gets has it. Otherwise parties may hold whatever they like, and nothing is known of it but sizes.
        method: the setting that tables of runs show.
        changeable: settings that a resumed run may change: the others would make it another run.
    """

    kind: ClassVar[str] = ""
    one_form: ClassVar[bool] = False
    method: ClassVar[str] = ""
    changeable: ClassVar[tuple[str, ...]] = ()

    @property
    def title(self) -> str:
        """The class, and the part that decides how it computes: ``Training (FedAvg)``."""
        part = getattr(self, self.method, None) if self.method else None
        named = getattr(part, "__qualname__", type(part).__name__)
        return type(self).__name__ + ("" if part is None else f" ({named})")

    def __str__(self) -> str:
        return str(of_settings(self.title, self))

    def _repr_html_(self) -> str:
        return of_settings(self.title, self).html()

    def names(self) -> tuple[str, ...]:
        """What the policies of sites know it by: its kind, then what decides how it computes. Code that is not Atoll's is ``module:name``."""
        return (self.kind if name_of(type(self)) == type(self).__qualname__ else name_of(type(self)),)

    @property
    def most_rounds(self) -> int | None:
        """How many records there will be at most, for a progress bar; ``None`` where nobody knows."""
        return None

    def others(self, n: int) -> Mapping[str, str]:
        """Parties that it needs beside ``n`` clients: name -> role."""
        del n
        return {}

    def prepare(self, data: Any) -> Prepared:
        """Make it ready for a population.

        This is called where the program runs, and between organisations at every site as well, so that both know the same tasks. There
        ``data`` knows names, sizes and, with ``one_form``, the form of the rows (``data.outline()`` has made-up rows of that form), but no row.

        Args:
            data: the population: what ``simulate`` is given, or what is known of it from far.

        Raises:
            AtollError: settings that do not go together, or data that cannot be used.
        """
        raise NotImplementedError

    @classmethod
    def require_settings(cls, said: Mapping[str, Any]) -> None:
        """Refuse settings that a configuration gives, before anything is made of them.

        Args:
            said: setting -> value; of a part, the class or function that was found by its name.

        Raises:
            ConfigError: its text begins with ``setting=value`` where one setting is wrong.
        """
        del said

    def settings(self) -> dict[str, Any]:
        """Its settings by name, for people to read."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def measures(cls, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """The columns of its records that people look at first, in their order: label -> column; by default every number.

        Args:
            rows: the records so far.
        """
        names = dict.fromkeys(name for row in rows for name, value in row.items() if _is_number(value))
        return {name: name for name in names if name not in _STAMPS}

    @classmethod
    def news(cls, last: Mapping[str, float]) -> Iterable[str]:
        """What a progress display says of the newest values of its columns."""
        told = [name for name in last if name not in _STAMPS and not name.startswith("bytes_")]
        return [f"{name} {last[name]:.4g}" for name in told[:3]]


def name_of(found: Any) -> str:
    """The name of a class or function of Atoll; of any other ``module:name``."""
    module, name = getattr(found, "__module__", "?"), getattr(found, "__qualname__", type(found).__name__)
    return name if module.partition(".")[0] == __name__.partition(".")[0] else f"{module}:{name}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
