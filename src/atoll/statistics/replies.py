"""Replies of single sites, and what they are together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll.core.errors import DataError
from atoll.data.units import require_one_unit

from .columns import settle_kind
from .moments import CentralMoments
from .sketch import Sketch
from .summary import BinCounts, ColumnSummary, RowsSummary

__all__ = ["CellReply", "SiteReply", "kinds_of_all", "number", "together"]

Key = tuple[str, str]
WHOLE: Key = ("", "")


@dataclass
class CellReply:
    """What is known of the columns of one cell.

    Attributes:
        rows: number of rows.
        moments: column of numbers -> its moments, of one column.
        sketches: column of numbers -> its sketch.
        categories: column -> count, missing and counts by value.
        bins: column of numbers -> its histogram.
        ends: column of numbers whose extremes are not told -> the smallest and the largest coarse value, see `atoll.statistics.disclosure`.
    """

    rows: int = 0
    moments: dict[str, CentralMoments] = field(default_factory=dict)
    sketches: dict[str, Sketch] = field(default_factory=dict)
    categories: dict[str, tuple[int, int, dict[str, int]]] = field(default_factory=dict)
    bins: dict[str, BinCounts] = field(default_factory=dict)
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def unpack(cls, message: Any) -> CellReply:
        """The cell of a reply."""
        names, moments = list(message["numbers"]), CentralMoments.unpack(message["moments"])
        return cls(
            int(message["rows"]),
            {name: moments.take(np.array([k])) for k, name in enumerate(names)},
            {name: Sketch.unpack(one) for name, one in zip(names, message["sketches"], strict=False)},
            {
                name: (int(one["count"]), int(one["missing"]), dict(zip(one["values"], np.asarray(one["counts"]).tolist(), strict=True)))
                for name, one in message["categories"].items()
            },
            ends={name: (float(one[0]), float(one[1])) for name, one in zip(names, message["ends"], strict=True) if one is not None},
        )  # fmt: skip

    def settle(self, name: str, kind: str) -> None:
        """Tell a column without a value as one of another kind: so many missing values."""
        if kind == "number" and name in self.categories:
            count, missing, _ = self.categories.pop(name)
            self.moments[name] = CentralMoments.of([np.full(count + missing, np.nan)])
        elif name in self.moments:
            moments = self.moments.pop(name)
            self.categories[name] = 0, int(moments.missing[0]) + int(moments.count[0]), {}
            self.sketches.pop(name, None)
            self.ends.pop(name, None)

    def part(
        self, kinds: Mapping[str, str], shares: Sequence[float], exact: Mapping[str, Mapping[float, float]]
    ) -> RowsSummary:
        """The cell as people read it.

        Args:
            kinds: column -> its kind, in the order of the columns.
            shares: the quantiles.
            exact: column -> exact quantiles, where they are known.
        """
        columns: dict[str, ColumnSummary] = {}
        for name, kind in kinds.items():
            if kind == "number" and name in self.moments:
                found = exact.get(name) or self._quantiles(name, shares)
                columns[name] = number(self.moments[name], found, self.bins.get(name))
            elif name in self.categories:
                count, missing, values = self.categories[name]
                columns[name] = ColumnSummary(kind=kind, count=count, missing=missing, values=values)
        return RowsSummary(self.rows, columns)

    def _quantiles(self, name: str, shares: Sequence[float]) -> dict[float, float] | None:
        """Quantiles of the sketch; none lies outside the range, where that is told."""
        sketch, moments = self.sketches.get(name), self.moments[name]
        if sketch is None or not shares:
            return None
        low, high = float(moments.low[0]), float(moments.high[0])
        found = {share: sketch.quantile(share) for share in shares}
        return {share: min(max(value, low), high) for share, value in found.items()} if low <= high else found


@dataclass
class SiteReply:
    """What one site told: its cells, the kinds of its columns, what it withholds, the columns whose values it never lists, and its number of rows."""

    site: str
    kinds: dict[str, str]
    cells: dict[Key, CellReply]
    withheld: list[tuple[str, str, str]]
    unlisted: list[str] = field(default_factory=list)
    rows: int = 0

    @classmethod
    def unpack(cls, site: str, message: Any) -> SiteReply:
        """A site's reply."""
        cells = {(one["family"], one["label"]): CellReply.unpack(one) for one in message["cells"]}
        return cls(
            site, dict(message["kinds"]), cells, [tuple(one) for one in message["withheld"]], list(message["unlisted"]), int(message["rows"])
        )  # fmt: skip

    def settle(self, name: str, kind: str) -> None:
        """Take the kind of the other sites for a column that has no value here."""
        if name not in self.kinds:
            return
        own, self.kinds[name] = self.kinds[name].removesuffix("?"), kind
        if own == kind:
            return
        for cell in self.cells.values():
            cell.settle(name, kind)

    def with_bins(self, message: Any, edges: Mapping[str, Sequence[float]]) -> list[str]:
        """Add a reply of histograms; return what it withholds, in words."""
        withheld = []
        for one in message["cells"]:
            cell = self.cells.get((one["family"], one["label"]))
            if cell is None:
                continue
            for name, counts in one["counts"].items():
                hides = int(one["withheld"][name])
                cell.bins[name] = BinCounts(np.asarray(edges[name]), np.asarray(counts), hides)
                if hides:
                    withheld.append(
                        f"{self.site}: {hides} bins of {name}{_of(one['family'], one['label'])}: an earlier answer has nearly the same rows"
                    )
        return withheld


def number(moments: CentralMoments, quantiles: Mapping[float, float] | None, bins: BinCounts | None) -> ColumnSummary:
    """A column of numbers as people read it."""

    def first(values: Any) -> float:
        return float(values[0])

    some = int(moments.count[0]) > 0
    return ColumnSummary(
        kind="number",
        count=int(moments.count[0]),
        missing=int(moments.missing[0]),
        sum=first(moments.total),
        mean=first(moments.mean) if some else None,
        std=first(moments.std),
        sample_std=first(moments.sample_std),
        variance=first(moments.variance),
        skewness=first(moments.skewness),
        min=_end(moments.low),
        max=_end(moments.high),
        quantiles=quantiles,
        histogram=bins,
    )


def _end(values: Any) -> float | None:
    value = float(values[0])
    return value if np.isfinite(value) else None


def kinds_of_all(replies: Iterable[SiteReply]) -> dict[str, str]:
    """TableColumn -> kind, in the order in which sites have them.

    Raises:
        DataError: a column is of two kinds, or in two units.
    """
    sites, found = list(replies), dict[str, str]()
    for reply in sites[1:]:
        require_one_unit(reply.kinds, sites[0].kinds, f"the columns of {reply.site}", sites[0].site)
    for name in dict.fromkeys(name for reply in sites for name in reply.kinds):
        told = {reply.site: reply.kinds[name] for reply in sites if name in reply.kinds}
        kind = settle_kind(told.values())
        if kind is None:
            sure = {kind: site for site, kind in reversed(told.items()) if not kind.endswith("?")}
            (one, here), (other, there), *_ = sure.items()
            raise DataError(
                f"column {name!r} is a {one} at {here} and a {other} at {there}",
                where="statistics",
                remedy="correct the column there, say categories= for it, or leave it out with columns=",
            )
        found[name] = kind
        for reply in sites:
            reply.settle(name, kind)
    return found


def together(cells: Sequence[CellReply]) -> CellReply:
    """The union of the same cell of several sites."""
    made = CellReply(sum(cell.rows for cell in cells))
    made.moments = _each(cells, "moments", _unite_moments)
    made.ends = {name: (min(lows), max(highs)) for name, (lows, highs) in _ranges(cells).items() if lows}
    made.sketches = _each(cells, "sketches", lambda parts: Sketch.union(parts, parts[0].digits))
    made.bins = _each(cells, "bins", _sum_bins)
    made.categories = _each(cells, "categories", _add_counts)
    return made


def _each(cells: Sequence[CellReply], what: str, union: Callable[[list[Any]], Any]) -> dict[str, Any]:
    names = dict.fromkeys(name for cell in cells for name in getattr(cell, what))
    return {name: union([getattr(cell, what)[name] for cell in cells if name in getattr(cell, what)]) for name in names}


def _unite_moments(parts: list[CentralMoments]) -> CentralMoments:
    """The moments of all; without extremes if one of the parts does not tell its own."""
    whole = CentralMoments.union(parts)
    hides = any(part.count[0] and not np.isfinite(part.low[0]) for part in parts)
    return whole.without_ends() if hides else whole


def _ranges(cells: Sequence[CellReply]) -> dict[str, tuple[list[float], list[float]]]:
    """Column -> what is known of the smallest and the largest values of the cells, where one of them does not tell its extremes."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for name in dict.fromkeys(name for cell in cells for name in cell.ends):
        told = [cell.moments[name] for cell in cells if name in cell.moments and name not in cell.ends]
        known = [(float(one.low[0]), float(one.high[0])) for one in told if one.count[0] and np.isfinite(one.low[0])]
        known += [cell.ends[name] for cell in cells if name in cell.ends]
        found[name] = [low for low, _ in known], [high for _, high in known]
    return found


def _sum_bins(parts: list[BinCounts]) -> BinCounts:
    return BinCounts(parts[0].edges, sum(part.counts for part in parts), sum(part.withheld for part in parts))  # type: ignore[arg-type]


def _add_counts(parts: list[tuple[int, int, dict[str, int]]]) -> tuple[int, int, dict[str, int]]:
    values: dict[str, int] = {}
    for _, _, each in parts:
        for name, count in each.items():
            values[name] = values.get(name, 0) + count
    return sum(part[0] for part in parts), sum(part[1] for part in parts), dict(sorted(values.items()))


def _of(family: str, label: str) -> str:
    return f" where {family}={label}" if family else ""
