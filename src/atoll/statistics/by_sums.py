"""The program where the server sees only sums over all sites: exact whole numbers, under whichever secure reducer.

The smallest and largest value and quantiles come from counts of the leading bits of the values' keys (`atoll.statistics.sketch`), 12 bits a contact. They give every column a
range, and with it the fixed point in which its sums travel: first around the middle of the range, then squares and cubes around the common mean. With a minimum count
no range is told: the first sums are scaled generously, and further contacts find the standard deviation ``s`` of the ``n`` values. None is farther than ``s sqrt(n)``
from the mean, which scales the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .disclosure import hidden, public_edges, show_counts
from .histogram import edges_of
from .moments import CentralMoments, Relations
from .replies import _of, number
from .sketch import BITS, between, edges_of_bucket, middle_of, positions_of
from .summary import BinCounts, ColumnSummary, RowsSummary, Summary
from .summed import (
    LOWEST,
    MARGIN,
    STEP,
    AgreedColumns,
    agreed_columns,
    central_sums,
    first_sums,
    next_sums,
    resolution,
    surveyed,
)

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from .job import Statistics

__all__ = ["by_sums"]

Target = tuple[int, str, int]
"""Place of a cell, column and rank."""


async def by_sums(fed: Federation, job: Statistics) -> Summary:
    """Ask for sums alone."""
    return await _Sums(fed, job).run()


_SPREADS = 4
"""Most contacts that look for the standard deviation."""
_SMALLEST = np.finfo(np.float64).tiny * 2**60


class _Sums:
    """One run: its checkpointed state, and the contacts."""

    def __init__(self, fed: Federation, job: Statistics) -> None:
        self.fed, self.job, self.plan = fed, job, job.plan
        self.state: dict[str, Any] = {}
        self.agreed = AgreedColumns({}, ())
        self._sizes: NDArray[np.int64] = np.zeros((0, 0), np.int64)

    async def run(self) -> Summary:
        self.state = await self.fed.restore({"least": None, "kinds": {}, "sites": []})
        self.job, self.state["least"] = await self.job.resolved(self.fed, self.state["least"])
        self.plan = self.job.plan
        self.agreed = await agreed_columns(self.fed, self.job, self.state["kinds"])
        self.state["kinds"] = dict(self.agreed.kinds)
        survey = await self._contact("survey", surveyed, {"correlations": self.job.correlations})
        counts = np.asarray(survey["counts"])
        self._sizes = np.asarray(survey["tops"]).sum(
            axis=2
        )  # with a minimum count, those of parties with enough values
        told = self._list_told(np.asarray(survey["rows"]))
        wanted = [
            (k, name, rank)
            for k in told
            for j, name in enumerate(self.agreed.numbers)
            if counts[0, k, j] >= max(1, self.job.least_rows) and self._sizes[k, j]
            for rank in self._ranks(self._sizes[k, j])
        ]
        values = await self._values(wanted, np.asarray(survey["tops"]))
        moments, central = await self._moments(survey, told, values)
        return self._summary(survey, told, moments, values, central)

    def _list_told(self, rows: NDArray[np.int64]) -> list[int]:
        """The cells of enough rows; in each family others are left out too where the rest would give a small one away."""
        small = np.zeros(len(rows), bool)
        for family in dict.fromkeys(family for family, _ in self.agreed.keys):
            mine = np.flatnonzero([family == one for one, _ in self.agreed.keys])
            small[mine] = hidden(rows[mine], self.job.least_rows) | (rows[mine] == 0)
        return np.flatnonzero(~small).tolist()

    async def _contact(self, name: str, task: Any, message: Mapping[str, Any]) -> dict[str, Any]:
        """One secure sum, or what a checkpoint has of it. Later sums need every party of the first."""
        if name in self.state:
            return dict(self.state[name])
        asked = {"plan": self.plan.pack(), "kinds": dict(self.agreed.kinds), **message}
        parties = self.fed.parties.named(*self.state["sites"]) if self.state["sites"] else self.fed.parties
        quorum = len(parties) if self.state["sites"] else self.job.least(len(parties))
        found = await self.fed.sum(parties, task, asked, reducer=self.job.reducer, quorum=quorum)
        self.state["sites"] = list(found.senders.names)
        self.state[name] = {key: np.asarray(value) for key, value in found.value.items()}
        self.fed.record({"contact": name, "parties": len(found.senders)})
        await self.fed.checkpoint(self.state)
        return dict(self.state[name])

    def _ranks(self, size: int) -> list[int]:
        inner = {rank for share in self.job.quantiles for rank in positions_of(share, size)[:2]}
        return sorted({0, size - 1} | inner)

    # ------------------------------------------------------------------ values at ranks

    async def _values(self, wanted: Sequence[Target], tops: NDArray[np.int64]) -> dict[Target, float]:
        """The values at some ranks: to the bit at both ends, elsewhere with as many bits as the settings ask for."""
        column = {name: j for j, name in enumerate(self.agreed.numbers)}
        first = -(1 << (STEP - 1))
        found = {(k, name, rank): _step(tops[k, column[name]], rank, 0, first) for k, name, rank in wanted}
        last = BITS if self.job.extremes or self._coarse else STEP
        enough = {target: last if self._is_end(target) else self._bits for target in wanted}
        known = dict.fromkeys(wanted, STEP)
        for so_far in range(STEP, BITS, STEP):
            open_ = [target for target in wanted if known[target] < enough[target]]
            if not open_:
                break
            bits = min(STEP, BITS - so_far)
            asked = list(dict.fromkeys((k, name, found[k, name, rank][0]) for k, name, rank in open_))
            message = {"targets": [list(one) for one in asked], "known": so_far, "bits": bits}
            sums = await self._contact(f"ranks {so_far}", next_sums, message)
            rows = dict(zip(asked, np.asarray(sums["counts"]), strict=True))
            for target in open_:
                prefix, below = found[target]
                found[target] = _step(rows[target[0], target[1], prefix], target[2], below, prefix << bits)
                known[target] = so_far + bits
        return {target: self._value(target, prefix, BITS - known[target]) for target, (prefix, _) in found.items()}

    def _value(self, target: Target, prefix: int, left: int) -> float:
        """The value of a target, of whose key some bits are left open; of an end, the outermost number."""
        if left and self._is_end(target):
            return edges_of_bucket(prefix, left)[0 if target[2] == 0 else 1]
        return middle_of(prefix, left)

    def _is_end(self, target: Target) -> bool:
        k, name, rank = target
        return rank in (0, int(self._sizes[k, self.agreed.numbers.index(name)]) - 1)

    @property
    def _bits(self) -> int:
        """Bits of a key that a quantile needs."""
        return BITS if self.job.exact else STEP + self.job.digits

    # ------------------------------------------------------------------ moments

    async def _moments(
        self, survey: Mapping[str, Any], told: Sequence[int], values: Mapping[Target, float]
    ) -> tuple[list[list[CentralMoments | None]], dict[str, Any]]:
        """Means, then centred sums, in fixed point; ``None`` for what is withheld."""
        numbers, cells = self.agreed.numbers, len(self.agreed.keys)
        counts = np.asarray(survey["counts"])
        size = counts[0]
        ends = np.zeros((2, cells, len(numbers)))
        known = np.zeros((cells, len(numbers)), bool)
        for k in range(cells):
            for j, name in enumerate(numbers):
                known[k, j] = k in told and counts[0, k, j] >= max(1, self.job.least_rows)
                if (k, name, 0) in values:
                    ends[:, k, j] = values[k, name, 0], values[k, name, int(self._sizes[k, j]) - 1]
        ends = np.where(known, ends, ends[:, :1])  # what is withheld is scaled as all rows, and never read
        bits = resolution(int(size.max(initial=1)), len(self.state["sites"]))
        centres, scales = ends.mean(axis=0), np.maximum(np.ptp(ends, axis=0) / 2, _SMALLEST)
        if self._coarse:
            centres, scales = np.zeros_like(centres), _scales(np.asarray(survey["reach"]))
        first = await self._contact("means", first_sums, {"centres": centres, "scales": scales, "bits": bits})
        total = np.maximum(size, 1)
        means = centres + scales * (np.asarray(first["sums"]) * 2.0**-bits / total)
        spans = np.maximum(np.abs(ends - means).max(axis=0), scales)
        if self._coarse:
            spans = await self._spread(means, scales, bits)
        edges = self._edges(ends, known)
        message = {
            "centres": means,
            "scales": spans,
            "bits": bits,
            "edges": edges,
            "pairs": np.asarray(survey["objections"]) == 0 if self.job.correlations else np.zeros((0, 0), bool),
        }
        central = await self._contact("centred", central_sums, message)
        powers = np.asarray(central["powers"]) * 2.0**-bits
        made: list[list[CentralMoments | None]] = [[None] * len(numbers) for _ in range(cells)]
        for k, j in np.argwhere(known).tolist():
            second, third = powers[0, k, j] * spans[k, j] ** 2, powers[1, k, j] * spans[k, j] ** 3
            row = (size[k, j], counts[1, k, j], means[k, j], max(0.0, second), third, ends[0, k, j], ends[1, k, j])
            found = CentralMoments(*(np.array([one]) for one in row))
            made[k][j] = found if self.job.extremes and not self._coarse else found.without_ends()
        return made, {**central, "edges": edges, "fraction": bits}

    @property
    def _coarse(self) -> bool:
        """Whether parties answer from coarse values."""
        return self.job.least_rows > 1

    async def _spread(self, means: Any, scales: Any, bits: int) -> NDArray[np.float64]:
        """``sqrt(n)`` standard deviations of each cell and column, once a scale shows them with enough digits."""
        number, found = 0, scales
        while number == 0 or (number < _SPREADS and (found < scales * 2.0**-12).any()):
            scales = found
            message = {"centres": means, "scales": scales, "bits": bits, "edges": {}, "pairs": np.zeros((0, 0), bool)}
            powers = (await self._contact(f"spread {number}", central_sums, message))["powers"]
            most = np.maximum(np.asarray(powers)[0], 0) + len(
                self.state["sites"]
            )  # and what rounding may have left out
            found = np.clip(scales * np.sqrt(most * 2.0**-bits), _SMALLEST, scales)
            number += 1
        return np.asarray(found)

    def _edges(self, ends: NDArray[np.float64], known: NDArray[np.bool_]) -> dict[str, Any]:
        if not self.job.bins:
            return {}
        made = {}
        for j, name in enumerate(self.agreed.numbers):
            if known[0, j] and (name in self.job.ranges or self._sizes[0, j]):
                low, high = self.job.ranges.get(name, (ends[0, 0, j], ends[1, 0, j]))
                make = public_edges if self._coarse and name not in self.job.ranges else edges_of
                made[name] = make(float(low), float(high), self.job.bins)
        return made

    # ------------------------------------------------------------------ the result

    def _summary(
        self,
        survey: Mapping[str, Any],
        told: Sequence[int],
        moments: list[list[CentralMoments | None]],
        values: Mapping[Target, float],
        central: Mapping[str, Any],
    ) -> Summary:
        rows, withheld = np.asarray(survey["rows"]).tolist(), self.agreed.list_untold(self.plan)
        withheld += [f"{name}: no reply" for name in self.fed.parties.names if name not in self.state["sites"]]
        parts: dict[tuple[str, str], RowsSummary] = {}
        for k, key in enumerate(self.agreed.keys):
            if k not in told:
                if rows[k]:
                    withheld.append(
                        f"all rows{_of(*key)}: fewer than min_count={self.job.least_rows} rows, or what would give them away"
                    )
                continue
            columns = self._columns(k, survey, moments[k], values, central)
            withheld += [
                f"{name}{_of(*key)}: fewer than min_count={self.job.least_rows} rows, or none"
                for name in self.agreed.kinds
                if name not in columns
            ]
            parts[key] = RowsSummary(rows[k], columns)
        groups: dict[str, dict[str, RowsSummary]] = {}
        for (family, label), part in parts.items():
            if family:
                groups.setdefault(family, {})[label] = part
        withheld.append(
            f"each site's own statistics{' and drift' if self.job.drift else ''}: the server sees only sums ({type(self.job.reducer).__name__})"
        )
        if self._coarse:
            withheld += [f"min and max of {name}: they are values of single rows" for name in self.agreed.numbers]
            objections = np.triu(np.asarray(survey.get("objections", np.zeros((0, 0)))))
            names = self._related(survey)
            withheld += [f"the correlation of {names[i]} and {names[j]}: with other sums it shows fewer than min_count={self.job.least_rows} rows of a site" for i, j in np.argwhere(objections).tolist()]  # fmt: skip
        precision = f"within {len(self.state['sites'])} x 2^-{central['fraction'] + 1} of the column's range a value's sum, from fixed point"
        return Summary(
            whole=parts.get(self.agreed.keys[0], RowsSummary(None)),
            groups=groups,
            correlations=self._correlations(survey, central),
            withheld=withheld,
            errors={"moments": precision, **({} if self.job.exact or not self.job.quantiles else self._near())},
            contacts=len(self.fed.records),
        )

    def _near(self) -> dict[str, str]:
        steps = -(-self.job.digits // STEP)
        return {"quantiles": f"within {2.0 ** -(steps * STEP + 1):.2g} of the values around them, relative"}

    def _columns(
        self,
        k: int,
        survey: Mapping[str, Any],
        moments: Sequence[CentralMoments | None],
        values: Mapping[Target, float],
        central: Mapping[str, Any],
    ) -> dict[str, ColumnSummary]:
        made: dict[str, ColumnSummary] = {}
        least = self.job.least_rows
        for name, kind in self.agreed.kinds.items():
            if kind != "number":
                *counts, present, missing = np.asarray(survey[f"values {name}"])[k].tolist()
                named = dict(
                    zip(
                        map(str, self.plan.categories.get(name, ())),
                        show_counts(counts, least)[0].tolist(),
                        strict=True,
                    )
                )
                if 0 < present < least:
                    continue
                made[name] = ColumnSummary(kind=kind, count=present, missing=missing, values=named or None)
                continue
            one = moments[self.agreed.numbers.index(name)]
            if one is None:
                continue
            size = int(self._sizes[k, self.agreed.numbers.index(name)])
            quantiles = {
                share: between(values[k, name, low], values[k, name, high], weight)
                for share, (low, high, weight) in (
                    (q, positions_of(q, size)) for q in (self.job.quantiles if size else ())
                )
            }
            bins = None
            if name in central["edges"]:
                counts, small = show_counts(np.asarray(central[f"bins {name}"])[k], least)
                bins = BinCounts(np.asarray(central["edges"][name]), counts, int(small.sum()))
            made[name] = number(one, quantiles or None, bins)
        return made

    def _related(self, survey: Mapping[str, Any]) -> list[str]:
        """The columns that correlate: those with one number a row, which parties say."""
        single = np.asarray(survey.get("single", np.zeros(len(self.agreed.numbers))))
        return [name for name, parties in zip(self.agreed.numbers, single.tolist(), strict=True) if parties]

    def _correlations(
        self, survey: Mapping[str, Any], central: Mapping[str, Any]
    ) -> tuple[list[str], NDArray[np.float64]] | None:
        if "both" not in central:
            return None
        unit = 2.0 ** -int(central["fraction"])
        rows = [np.asarray(central[f"related {name}"]) * unit for name in ("sums", "squares", "products")]
        related = Relations(np.asarray(central["both"], dtype=np.float64), *rows)
        related = related.keeping(related.visible(self.job.least_rows))
        return self._related(survey), related.correlations()


def _scales(reach: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scales of first sums, ``(cells, numbers)``: ``2^8`` times the largest power of two of any party."""
    places = np.where(reach > 0, np.arange(reach.shape[2]), 0).max(axis=2) + LOWEST
    return np.asarray(np.ldexp(MARGIN, np.clip(places, -900, 1000)))


def _step(counts: NDArray[np.int64], rank: int, below: int, first: int) -> tuple[int, int]:
    """The longer prefix under which a rank lies, and how many values lie below it.

    Args:
        counts: values by their next bits.
        rank: the rank, counted from 0.
        below: values below the shorter prefix.
        first: the longer prefix whose next bits are 0.
    """
    cumulative = below + np.cumsum(counts)
    place = int(np.searchsorted(cumulative, rank, side="right"))
    return first + place, int(cumulative[place] - counts[place])
