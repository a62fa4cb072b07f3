"""The results of a cell of the tables: the medians of its runs, and their spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["FedProfFound"]


@dataclass(frozen=True)
class FedProfFound:
    """Our results for a cell, as medians over seeds; ``None`` if the target was not reached.

    Attributes:
        best: best accuracy in all rounds.
        rounds: to the target accuracy.
        seconds: to the target.
        watt_hours: of all clients together to the target.
        runs: the runs behind the medians; none for a single run.
    """

    best: float
    rounds: float | None = None
    seconds: float | None = None
    watt_hours: float | None = None
    runs: tuple[FedProfFound, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def median(cls, runs: Sequence[FedProfFound]) -> FedProfFound:
        """Return the median of runs; a run that never reached the target is later than all others.

        If the median run did not reach it, the median is ``None``.
        """

        def middle(of: str) -> float | None:
            made = float(np.median(_values(runs, of)))
            return made if np.isfinite(made) else None

        best = float(np.median([run.best for run in runs]))
        return cls(best, middle("rounds"), middle("seconds"), middle("watt_hours"), tuple(runs))

    def told(self, of: str, form: str = "g") -> str:
        """Return a figure in words, with the least and the most of its runs if there are several.

        Args:
            of: ``"best"``, ``"rounds"``, ``"seconds"`` or ``"watt_hours"``.
            form: of a number, as in ``format``.
        """
        value = getattr(self, of)
        said = _said(np.inf if value is None else value, form)
        if len(self.runs) < 2:
            return said
        each = _values(self.runs, of)
        return f"{said} ({_said(min(each), form)} to {_said(max(each), form)})"


def _values(runs: Sequence[FedProfFound], of: str) -> list[float]:
    return [np.inf if (value := getattr(run, of)) is None else float(value) for run in runs]


def _said(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else "never"
