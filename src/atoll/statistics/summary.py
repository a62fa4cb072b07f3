"""The result of statistics: what people read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, nearest

from .aggregates.drift import Drift

__all__ = ["BinCounts", "ColumnSummary", "RowsSummary", "Summary"]


@dataclass(frozen=True)
class BinCounts:
    """Counts over bins.

    Attributes:
        edges: ``(bins + 1,)``.
        counts: ``(bins,)``; 0 where a count is withheld.
        withheld: number of withheld bins, over all sites.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    withheld: int = 0


@dataclass(frozen=True, kw_only=True)
class ColumnSummary:
    """One column over some rows; what is withheld or not asked for is ``None``.

    Attributes:
        kind: ``"number"``, ``"category"`` or ``"words"``.
        count: values that are there.
        missing: values that are not.
        sum: of the values.
        mean: of the values.
        std: standard deviation of these values, ``sqrt(sum (x - mean)^2 / n)``.
        sample_std: that of the population they are a sample of, with ``n - 1``.
        variance: ``std^2``.
        skewness: ``sqrt(n) M_3 / M_2^1.5``.
        min: the smallest value.
        max: the largest value.
        quantiles: by share.
        histogram: over common bins.
        values: how many rows have each category or word.
    """

    kind: str
    count: int
    missing: int | None = None
    sum: float | None = None
    mean: float | None = None
    std: float | None = None
    sample_std: float | None = None
    variance: float | None = None
    skewness: float | None = None
    min: float | None = None
    max: float | None = None
    quantiles: Mapping[float, float] | None = None
    histogram: BinCounts | None = None
    values: Mapping[str, int] | None = None

    def plain(self) -> dict[str, Any]:
        """The description as JSON has it; ``null`` for what is not a number."""
        made: dict[str, Any] = {"kind": self.kind, "count": self.count, "missing": self.missing}
        if self.kind == "number":
            names = ("sum", "mean", "std", "sample_std", "variance", "skewness", "min", "max")
            made |= {name: _finite(getattr(self, name)) for name in names}
        if self.histogram is not None:
            edges, counts = self.histogram.edges.tolist(), self.histogram.counts.tolist()
            made["histogram"] = {"edges": edges, "counts": counts, "withheld": self.histogram.withheld}
        if self.quantiles is not None:
            made["quantiles"] = {f"{share:g}": _finite(value) for share, value in self.quantiles.items()}
        if self.values is not None:
            made["values"] = dict(self.values)
        return made


@dataclass(frozen=True)
class RowsSummary(Mapping[str, ColumnSummary]):
    """Descriptions of the columns of some rows, by name.

    Attributes:
        rows: number of rows; ``None`` if it is private.
        columns: the columns.
    """

    rows: int | None
    columns: Mapping[str, ColumnSummary] = field(default_factory=dict)

    def __getitem__(self, name: str) -> ColumnSummary:
        if name not in self.columns:
            raise ConfigError(
                f"{name!r} is not described.{nearest(name, self.columns)}",
                where="Summary",
                remedy=f"use one of {', '.join(self.columns)}",
            )
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def plain(self) -> dict[str, Any]:
        """TableColumn -> description, as JSON has it."""
        return {name: column.plain() for name, column in self.columns.items()}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of `Statistics`.

    Attributes:
        whole: all rows of all sites.
        sites: each site's own rows, where single replies may be seen.
        groups: of each dividing column, each group or period over all sites.
        correlations: names of columns, and their matrix of Pearson's correlations.
        drift: site -> column -> how far it is from all sites.
        withheld: what is not told, and why, in words.
        errors: what is not exact: name of the statistic -> its error, in words.
        privacy: unit, neighbours, epsilon and noise, if noise was added.
        contacts: how often each site was asked.
    """

    whole: RowsSummary
    sites: Mapping[str, RowsSummary] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, RowsSummary]] = field(default_factory=dict)
    correlations: tuple[Sequence[str], NDArray[np.float64]] | None = None
    drift: Mapping[str, Mapping[str, Drift]] = field(default_factory=dict)
    withheld: Sequence[str] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    privacy: Mapping[str, Any] | None = None
    contacts: int = 0

    @property
    def rows(self) -> int | None:
        """Number of rows of all sites."""
        return self.whole.rows

    def __getitem__(self, column: str) -> ColumnSummary:
        """A column over all rows.

        Raises:
            ConfigError: it is not described.
        """
        return self.whole[column]

    def array(self, statistic: str, columns: Sequence[str]) -> NDArray[np.float64]:
        """One statistic of several columns over all rows, ``(columns,)``: ``summary.array("mean", features)``.

        Raises:
            ConfigError: a column is not described, or not a column of numbers.
        """
        found = [getattr(self.whole[name], statistic) for name in columns]
        for name, value in zip(columns, found, strict=True):
            if value is None:
                raise ConfigError(f"{name!r} has no {statistic}", where="Summary", remedy="see `summary.withheld`")
        return np.array(found, dtype=np.float64)

    def plain(self) -> dict[str, Any]:
        """The whole result as JSON has it."""
        made: dict[str, Any] = {
            "rows": self.rows,
            "sites": {name: part.plain() for name, part in self.sites.items()},
            "global": self.whole.plain(),
            "withheld": list(self.withheld),
        }
        if self.groups:
            made["groups"] = {
                family: {label: {"rows": part.rows, "columns": part.plain()} for label, part in parts.items()}
                for family, parts in self.groups.items()
            }
        if self.correlations is not None:
            names, matrix = self.correlations
            made["correlations"] = {
                "columns": list(names),
                "matrix": [[_finite(r) for r in row] for row in matrix.tolist()],
            }
        if self.drift:
            made["drift"] = {
                site: {name: one.plain() for name, one in columns.items()} for site, columns in self.drift.items()
            }
        made["errors"] = dict(self.errors)
        if self.privacy is not None:
            made["privacy"] = dict(self.privacy)
        return made


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
