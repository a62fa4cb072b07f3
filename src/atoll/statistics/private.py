"""Statistics with differential privacy: what one party tells, and the program, with one contact for counts, sums and histograms, and one before it for ranges.

The unit is a row; neighbouring tables differ in one row that is there or not. A row moves a count by at most 1. A number ``x`` clipped to its range becomes
``u = (x - middle) / half`` in [-1, 1]; sums of ``u`` and ``u^2`` are rounded to multiples of ``2^-20``, so one row moves them by at most ``2^20 + 1`` units.
Every row is in each column, and in one group of each dividing column besides all rows: the budget is split evenly over everything that a row can move.

The range of a column without one is found privately: from noised counts of values by sign and power of two, the outermost that are above what noise alone reaches
(Wilson et al. 2020, "Differentially private SQL with bounded user contribution", section 5.1.1). Everything else is computed from the noised numbers, at no further cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import DataError
from atoll.core.event import Laplace
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.task import task

from .columns import TableColumn
from .disclosure import discrete_laplace, noise_std, rate_of
from .histogram import Drift, counts_in, drift_of
from .plan import Cell, StatisticsPlan, agreed_parts
from .replies import _of
from .summary import BinCounts, ColumnSummary, RowsSummary, Summary
from .summed import AgreedColumns, agreed_columns

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from .job import Statistics

__all__ = ["EXPONENTS", "FINE", "noised_ranges", "noised_ranges_told", "noised_sums", "noised_told", "private"]

FINE = 20
"""Bits of the fraction of a sum."""
EXPONENTS = 40
"""A range is found among powers of two from ``2^-40`` to ``2^40``, of either sign."""

WholeNumbers = dict[str, NDArray[np.int64]]


def _read_promise(message: Any) -> Disclosure:
    del message
    return Disclosure(private=True)


def _read_request(island: Any, message: Any) -> tuple[StatisticsPlan, int, dict[str, TableColumn], list[Cell]]:
    """The plan, the rows, the columns and the agreed cells; the ledger has the cost before anything is looked at.

    Raises:
        DataError: a column is of another kind here, or a row has many numbers.
    """
    plan, table, columns, cells = agreed_parts(island, message)
    island.spend(Laplace(unit="example", epsilon=float(message["share"]), count=int(message["releases"])))
    return plan, len(table), columns, cells


def _numbers(column: TableColumn, cell: Cell) -> NDArray[np.float64]:
    """One number a row: for a row of several, such as the pixels of an image, the mean of those that are there."""
    values = column.values if cell.rows is None else column.values[cell.rows]
    values = values.astype(np.float64)
    if values.ndim == 1:
        return values
    flat = values.reshape(len(values), -1)
    there = np.isfinite(flat)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(there, flat, 0.0).sum(axis=1) / there.sum(axis=1))


def _ranges(island: Any, message: Any) -> WholeNumbers:
    """Counts of values by sign and power of two, of each column without a range."""
    _, _, columns, cells = _read_request(island, message)
    rate = rate_of(float(message["share"]), 1)
    found: WholeNumbers = {}
    for name in message["unknown"]:
        values = _numbers(columns[name], cells[0])
        values = values[np.isfinite(values)]
        exponents = np.clip(np.frexp(values)[1], -EXPONENTS, EXPONENTS) + EXPONENTS + 1
        places = np.where(values == 0, 0, np.sign(values) * exponents).astype(np.int64) + 2 * EXPONENTS + 1
        counts = np.bincount(places, minlength=4 * EXPONENTS + 3)
        found[name] = counts + discrete_laplace(rate, island.secret, counts.shape)
    return found


def _sums(island: Any, message: Any) -> WholeNumbers:
    """Counts, sums, sums of squares and histograms of numbers; counts of agreed categories; for each cell."""
    plan, of, columns, cells = _read_request(island, message)
    share = float(message["share"])
    counting, summing = rate_of(share, 1), rate_of(share, (1 << FINE) + 1)
    found: WholeNumbers = {}

    def put(name: str, rows: Sequence[Any], rate: Any) -> None:
        exact = np.array(rows, dtype=np.int64)
        found[name] = exact + discrete_laplace(rate, island.secret, exact.shape)

    for name, column in columns.items():
        if column.kind == "number":
            _put_numbers(name, column, cells, message, put, counting, summing)
        elif column.kind == "category":
            counted = [_count_agreed(column, cell, plan, of) for cell in cells]
            put(f"{name} values", counted, counting)
    return found


def _put_numbers(
    name: str, column: TableColumn, cells: Sequence[Cell], message: Any, put: Any, counting: Any, summing: Any
) -> None:
    low, high = (float(end) for end in message["ranges"][name])
    middle, half = (low + high) / 2, (high - low) / 2
    rows: dict[str, list[Any]] = {"counts": [], "sums": [], "squares": [], "bins": []}
    for cell in cells:
        values = _numbers(column, cell)
        kept = np.clip(values[np.isfinite(values)], low, high)
        u = (kept - middle) / half
        rows["counts"].append([len(kept), len(values) - len(kept)])
        rows["sums"].append(int(np.rint(u.sum() * 2.0**FINE)))
        rows["squares"].append(int(np.rint((u * u).sum() * 2.0**FINE)))
        rows["bins"].append(counts_in(kept, np.linspace(low, high, int(message["bins"]) + 1)))
    put(f"{name} counts", rows["counts"], counting)
    put(f"{name} sums", rows["sums"], summing)
    put(f"{name} squares", rows["squares"], summing)
    put(f"{name} bins", rows["bins"], counting)


def _count_agreed(column: TableColumn, cell: Cell, plan: StatisticsPlan, of: int) -> list[int]:
    """Counts of the agreed values, of any other value and of none: a row is in one of them."""
    counts, present, missing = column.counted(cell.rows, of)
    place = {name: k for k, name in enumerate(column.coded[0])}
    told = [int(counts[place[name]]) if name in place else 0 for name in map(str, plan.categories.get(column.name, ()))]
    return [*told, present - sum(told), missing]


def _make_sums(arrays: Mapping[str, NDArray[np.int64]]) -> dict[str, Sum]:
    return {name: Sum(value, role="side") for name, value in arrays.items()}


@task(discloses=_read_promise)
def noised_ranges_told(island: Any, message: Any) -> Any:
    """Return the noised counts by power of two."""
    return _ranges(island, message)


@task(discloses=_read_promise)
def noised_ranges(island: Any, message: Any) -> dict[str, Sum]:
    """Add the noised counts by power of two to a secure sum."""
    return _make_sums(_ranges(island, message))


@task(discloses=_read_promise)
def noised_told(island: Any, message: Any) -> Any:
    """Return the noised counts and sums."""
    return _sums(island, message)


@task(discloses=_read_promise)
def noised_sums(island: Any, message: Any) -> dict[str, Sum]:
    """Add the noised counts and sums to a secure sum."""
    return _make_sums(_sums(island, message))


# ---------------------------------------------------------------- the program with differential privacy

_BINS = 64
"""Bins of the histogram that quantiles come from where none is asked for."""
_FALSE = 1e-3
"""Chance that noise alone widens a range."""

Arrays = Mapping[str, NDArray[Any]]


async def private(fed: Federation, job: Statistics) -> Summary:
    """Ask for noised counts and sums."""
    return await _Private(fed, job).run()


class _Private:
    """One run: how the budget is split, and the contacts."""

    def __init__(self, fed: Federation, job: Statistics) -> None:
        self.fed, self.job, self.plan = fed, job, job.plan
        self.agreed = AgreedColumns({}, ())
        self.state: dict[str, Any] = {}

    async def run(self) -> Summary:
        self.state = await self.fed.restore({"kinds": {}, "told": {}})
        self.agreed = await agreed_columns(self.fed, self.job, self.state["kinds"])
        self.state["kinds"] = dict(self.agreed.kinds)
        families = 1 + len(self.plan.by) + bool(self.plan.over)
        categories = [name for name, kind in self.agreed.kinds.items() if kind == "category"]
        unknown = [name for name in self.agreed.numbers if name not in self.job.ranges]
        releases = families * (4 * len(self.agreed.numbers) + len(categories))
        _require_some(releases)
        share = float(self.job.epsilon or 0) / (releases + len(unknown))
        ranges = {name: [float(low), float(high)] for name, (low, high) in self.job.ranges.items()}
        if unknown:
            message = {"share": share, "releases": len(unknown), "unknown": unknown}
            told = await self._contact("ranges", noised_ranges_told, noised_ranges, message)
            ranges |= {name: self._range(name, told, share) for name in unknown}
        ranges = {name: ranges[name] for name in self.agreed.numbers}
        message = {"share": share, "releases": releases, "ranges": ranges, "bins": self.job.bins or _BINS}
        told = await self._contact("sums", noised_told, noised_sums, message)
        return self._summary(told, ranges, share, families)

    async def _contact(self, name: str, alone: Any, summed: Any, message: Mapping[str, Any]) -> dict[str, Arrays]:
        """The noised numbers of each site, or under ``""`` of all together if only sums may be seen."""
        if name not in self.state["told"]:
            asked = {"plan": self.plan.pack(), "kinds": dict(self.agreed.kinds), **message}
            quorum = self.job.least(len(self.fed.parties))
            if self.job.reducer.secure:
                found = await self.fed.sum(self.fed.parties, summed, asked, reducer=self.job.reducer, quorum=quorum)
                self.state["told"][name] = {"": {key: np.asarray(value) for key, value in found.value.items()}}
                senders = found.senders
            else:
                replies = await self.fed.ask_all(self.fed.parties, alone, asked, quorum=quorum)
                self.state["told"][name], senders = replies.by_name(), replies.senders
            self.state["sites"] = len(senders)
            self.fed.record({"contact": name, "parties": len(senders)})
            await self.fed.checkpoint(self.state)
        return dict(self.state["told"][name])

    def _range(self, name: str, told: Mapping[str, Arrays], share: float) -> list[float]:
        """The powers of two between which values lie.

        Raises:
            DataError: noise hides all of them.
        """
        counts = np.asarray(_total(told)[name], dtype=np.float64)
        # The sum of n draws of scale 1 / share is above this with a chance of at most _FALSE / bins (Chernoff, with exp(t / 2) of one draw at most 4 / 3).
        sites = self.state["sites"]
        least = 2 / share * (math.log(len(counts) / _FALSE) + sites * math.log(4 / 3))
        above = np.flatnonzero(counts > least)
        if not len(above):
            raise DataError(
                f"the range of {name!r} is lost in the noise: no power of two has more than {least:.0f} values",
                where="statistics",
                remedy=f"give it, ranges={{{name!r}: [low, high]}}, use a larger epsilon, or describe fewer columns",
            )
        ends = [_bounds(int(above[0]) - 2 * EXPONENTS - 1)[0], _bounds(int(above[-1]) - 2 * EXPONENTS - 1)[1]]
        return ends if ends[0] < ends[1] else [ends[0] - 0.5, ends[1] + 0.5]

    # ------------------------------------------------------------------ the result

    def _summary(
        self, told: Mapping[str, Arrays], ranges: Mapping[str, Sequence[float]], share: float, families: int
    ) -> Summary:
        whole = _total(told)
        withheld = self.agreed.list_untold(self.plan)
        withheld += [f"min and max of {name}: they are values of single rows" for name in self.agreed.numbers]
        withheld += [
            f"{name}: a row has any number of words" for name, kind in self.agreed.kinds.items() if kind == "words"
        ]
        parts = {key: RowsSummary(None, self._columns(k, whole, ranges)) for k, key in enumerate(self.agreed.keys)}
        if self.job.least_rows > 1:
            withheld += self._too_few(parts)
        groups: dict[str, dict[str, RowsSummary]] = {}
        for (family, label), part in parts.items():
            if family:
                groups.setdefault(family, {})[label] = part
        sites = {site: RowsSummary(None, self._columns(0, one, ranges)) for site, one in told.items() if site}
        if not sites:
            withheld.append(
                f"each site's own statistics: the server sees only sums ({type(self.job.reducer).__name__})"
            )
        count, value = noise_std(rate_of(share, 1)), noise_std(rate_of(share, (1 << FINE) + 1)) * 2.0**-FINE
        privacy = {
            "unit": "row", "neighbours": "add-remove", "adversary": "server", "epsilon": float(self.job.epsilon or 0), "delta": 0.0,
            "mechanism": "discrete Laplace", "epsilon of a release": share, "noise of a count, std a site": count,
            "noise of a sum, std a site, in halves of the range": value,
        }  # fmt: skip
        return Summary(
            whole=parts["", ""],
            sites=sites,
            groups=groups,
            drift=self._drift(told, whole, ranges) if self.job.drift else {},
            withheld=withheld,
            errors={"everything": "has noise, see privacy", "values": "are clipped to the range of their column"},
            privacy=privacy,
            contacts=len(self.fed.records),
        )

    def _too_few(self, parts: dict[tuple[str, str], RowsSummary]) -> list[str]:
        """Take out columns of too few rows by their noised counts; return them in words."""
        said = []
        for key, part in parts.items():
            few = [name for name, one in part.items() if one.count < self.job.least_rows]
            parts[key] = RowsSummary(None, {name: one for name, one in part.items() if name not in few})
            said += [f"{name}{_of(*key)}: a noised count below min_count={self.job.least_rows}" for name in few]
        return said

    def _columns(self, k: int, told: Arrays, ranges: Mapping[str, Sequence[float]]) -> dict[str, ColumnSummary]:
        made: dict[str, ColumnSummary] = {}
        for name, kind in self.agreed.kinds.items():
            if kind == "number":
                made[name] = self._number(name, k, told, ranges[name])
            elif kind == "category":
                *counts, _, missing = (max(0, int(one)) for one in np.asarray(told[f"{name} values"])[k])
                present = max(0, int(np.asarray(told[f"{name} values"])[k][:-1].sum()))
                values = dict(zip(map(str, self.plan.categories.get(name, ())), counts, strict=True))
                made[name] = ColumnSummary(kind=kind, count=present, missing=missing, values=values or None)
        return made

    def _number(self, name: str, k: int, told: Arrays, ends: Sequence[float]) -> ColumnSummary:
        count, missing = (max(0, int(one)) for one in np.asarray(told[f"{name} counts"])[k])
        middle, half = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
        n = max(1, count)
        first = min(1.0, max(-1.0, float(told[f"{name} sums"][k]) * 2.0**-FINE / n))
        square = min(1.0, max(0.0, float(told[f"{name} squares"][k]) * 2.0**-FINE / n))
        mean, variance = middle + half * first, half**2 * max(0.0, square - first**2)
        bins = np.asarray(told[f"{name} bins"])[k]
        edges = np.linspace(ends[0], ends[1], len(bins) + 1)
        shown = BinCounts(edges, np.maximum(bins, 0)) if self.job.bins else None
        quantiles = {q: _quantile(q, bins, edges) for q in self.job.quantiles} if self.job.quantiles else None
        return ColumnSummary(
            kind="number", count=count, missing=missing, sum=mean * count, mean=mean, std=math.sqrt(variance), variance=variance,
            sample_std=math.sqrt(variance * n / max(1, n - 1)), quantiles=quantiles, histogram=shown,
        )  # fmt: skip

    def _drift(
        self, told: Mapping[str, Arrays], whole: Arrays, ranges: Mapping[str, Sequence[float]]
    ) -> dict[str, dict[str, Drift]]:
        found: dict[str, dict[str, Drift]] = {}
        for site, one in told.items():
            for name in self.agreed.numbers if site else ():
                here, all_ = (np.maximum(np.asarray(of[f"{name} bins"])[0], 0) for of in (one, whole))
                edges = np.linspace(ranges[name][0], ranges[name][1], len(here) + 1).tolist()
                labels = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
                drift = drift_of(here, all_, labels, ordered=True)
                if drift is not None:
                    found.setdefault(site, {})[name] = drift
        return found


def _require_some(releases: int) -> None:
    """Refuse a request that describes nothing.

    Raises:
        DataError: there are no columns of numbers or categories.
    """
    if not releases:
        raise DataError("there is no column of numbers or categories", where="statistics", remedy="name other columns=")


def _total(told: Mapping[str, Arrays]) -> dict[str, NDArray[Any]]:
    parts = list(told.values())
    return {name: np.sum([np.asarray(part[name]) for part in parts], axis=0) for name in parts[0]}


def _bounds(place: int) -> tuple[float, float]:
    """The numbers of a place of the counts by power of two: its smallest and largest."""
    if place == 0:
        return 0.0, 0.0
    exponent = abs(place) - EXPONENTS - 1
    small, large = 2.0 ** (exponent - 1), 2.0**exponent
    return (small, large) if place > 0 else (-large, -small)


def _quantile(share: float, bins: NDArray[np.int64], edges: NDArray[np.float64]) -> float:
    """The quantile of noised counts: interpolated in the bin where the cumulative counts pass the share."""
    cumulative = np.maximum.accumulate(np.concatenate([[0], np.cumsum(bins)])).astype(np.float64)
    if cumulative[-1] <= 0:
        return float("nan")
    target = share * cumulative[-1]
    place = min(int(np.searchsorted(cumulative, target, side="left")), len(bins))
    if place == 0:
        place = int(np.searchsorted(cumulative, target, side="right"))
    width = cumulative[place] - cumulative[place - 1]
    inside = 0.0 if width <= 0 else (target - cumulative[place - 1]) / width
    return float(edges[place - 1] + inside * (edges[place] - edges[place - 1]))
