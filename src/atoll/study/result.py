"""The result of a study."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.runs.folder import RunFolder

if TYPE_CHECKING:
    from atoll.report.groups import Difference, Group

__all__ = ["StudyResult"]


@dataclass(frozen=True)
class StudyResult:
    """What a study found: the final values of each arm over the seeds, and how the arms differ.

    Attributes:
        folder: the study's folder.
        names: names of its runs, arm by arm.
        wanted: the metric to compare; ``None`` for the first usual one.
    """

    folder: Path
    names: tuple[str, ...]
    wanted: str | None = None

    @property
    def runs(self) -> list[RunFolder]:
        """The run folders."""
        return [RunFolder(self.folder / name) for name in self.names]

    @cached_property
    def groups(self) -> list[Group]:
        """The runs of each variant."""
        from atoll.report.groups import grouped

        return grouped([run for run in self.runs if run.begun])

    @property
    def metric(self) -> str:
        """The metric that is compared."""
        from atoll.report.groups import main_metric

        return main_metric(self.groups, self.wanted)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each variant: mean, standard deviation and the values by seed."""
        metric = self.metric
        return [group.row(metric) for group in self.groups]

    @property
    def differences(self) -> list[Difference]:
        """How each variant differs from the first, in pairs of the same seed."""
        from atoll.report.groups import differences

        return differences(self.groups, self.metric)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with a row for each run: variant, seed and final value."""
        from atoll.rounds.history import History

        metric = self.metric
        rows = [
            {"variant": group.label, "seed": seed, metric: value}
            for group in self.groups
            for seed, value in group.last(metric).items()
        ]
        return History(rows).to_pandas()

    def plot(self, metric: str | None = None, axes: Any = None) -> Any:
        """Draw a metric by round with matplotlib, mean and standard deviation of each variant; return the axes."""
        from atoll.report.groups import plot_bands

        return plot_bands(self.groups, metric or self.metric, axes)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the comparison as one HTML page; return its path."""
        from atoll.report import write_comparison

        return write_comparison([run for run in self.runs if run.begun], path or self.folder / "comparison.html")

    def __str__(self) -> str:
        from atoll.report.groups import text_of

        return text_of(self.rows, self.differences)

    __repr__ = __str__
