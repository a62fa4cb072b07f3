"""Imputers and scalers of all rows: means and variances from sums, medians, quartiles and limits from counts of leading bits.

A quantile is found as `atoll.fitting.ranks` says. With a minimum count it is one of coarse values, of which each stands for at least so many rows of a party (`atoll.statistics.disclosure.coarsening`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError

from .contacts import Contacts
from .ranks import RankSearch
from .rows import FeatureLayout

if TYPE_CHECKING:
    from .asking import FitRequests

__all__ = ["prepared"]

_SHARES = {"minmax": (0.0, 1.0), "robust": (0.25, 0.5, 0.75)}


async def prepared(
    asking: FitRequests, contacts: Contacts, layout: FeatureLayout, kept: dict[str, Any]
) -> FeatureLayout:
    """The layout with what fills holes, and with the scale. A checkpoint follows each of them.

    Raises:
        DataError: a column has no value anywhere.
    """
    job, done = asking.job, kept["preparing"]
    search = _Preparing(asking, contacts)
    if job.impute and "fill" not in done:
        done = {**done, "fill": await search.fill(layout)}
        kept["preparing"] = done
        await asking.fed.checkpoint(kept)
    layout = replace(layout, fill=done.get("fill", {}))
    if job.scale and layout.numbers and "scale" not in done:
        centre, spread = await search.scale(layout)
        done = {**done, "scale": {"centre": centre, "spread": spread}}
        kept["preparing"] = done
        await asking.fed.checkpoint(kept)
    if "scale" in done:
        return layout.with_scale(np.asarray(done["scale"]["centre"]), np.asarray(done["scale"]["spread"]))
    return layout


class _Preparing:
    def __init__(self, asking: FitRequests, contacts: Contacts) -> None:
        self.asking, self.contacts = asking, contacts

    async def _sums(self, layout: FeatureLayout, ask: str, at: str, **more: Any) -> dict[str, NDArray[np.float64]]:
        message = {"layout": layout.packed(), "ask": ask, **more}
        return await self.asking.sums(self.contacts.prepared, message, at)

    async def fill(self, layout: FeatureLayout) -> dict[str, Any]:
        """What replaces a missing value, by column."""
        how, found = self.asking.job.impute, dict[str, Any]()
        counted = {name: list(values) for name, values in layout.levels.items()}
        if counted:
            found |= await self._modes(layout, counted, "modes")
        if not layout.numbers:
            return found
        if how == "mean":
            sums = await self._moments(layout)
            return found | dict(zip(layout.numbers, (sums["sums"] / sums["counts"]).tolist(), strict=True))
        if how == "median":
            medians = await self._quantiles(layout, (0.5,), "fill")
            return found | {name: float(row[0]) for name, row in zip(layout.numbers, medians, strict=True)}
        return found | await self._modes_of_numbers(layout)

    async def _modes(self, layout: FeatureLayout, values: Mapping[str, list[str]], at: str) -> dict[str, str]:
        counts = await self._sums(layout, "counts", at, values=dict(values))
        return {name: known[int(np.argmax(counts[name]))] for name, known in values.items()}

    async def _modes_of_numbers(self, layout: FeatureLayout) -> dict[str, float]:
        """The most frequent number of each column, the smallest of several: the parties first tell those of enough rows."""
        names = list(layout.numbers)
        message = {"columns": names, "categories": [], "tell": False, "numbers": True}
        told = await self.asking.singly(self.contacts.named, message)
        values: dict[str, list[str]] = {}
        for name in names:
            values[name] = sorted({value for one in told for value in one["values"].get(name, ())}, key=float)
            if not values[name]:
                raise _nothing(name, self.asking.job.least_rows)
        return {name: float(value) for name, value in (await self._modes(layout, values, "modes of numbers")).items()}

    async def _moments(self, layout: FeatureLayout) -> dict[str, NDArray[np.float64]]:
        sums = await self._sums(layout, "moments", f"moments {len(layout.fill)}")
        for name, count in zip(layout.numbers, sums["counts"].tolist(), strict=True):
            if count < 1:
                raise _nothing(name, self.asking.job.least_rows)
        return sums

    async def scale(self, layout: FeatureLayout) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Centre and spread of each column of numbers."""
        how = self.asking.job.scale
        if how == "standard":
            sums = await self._moments(layout)
            mean = sums["sums"] / sums["counts"]
            squares = (await self._sums(layout, "spread", "spread", mean=mean))["squares"]
            return mean, np.sqrt(squares / sums["counts"])
        found = await self._quantiles(layout, _SHARES[how], "scale")
        centre = found[:, 0] if how == "minmax" else found[:, 1]
        return centre, found[:, -1] - found[:, 0]

    async def _quantiles(self, layout: FeatureLayout, shares: Sequence[float], at: str) -> NDArray[np.float64]:
        """Quantiles of each column, ``(numbers, shares)``."""
        least = self.asking.job.least_rows
        search = RankSearch(len(layout.numbers), shares)
        while search.open:
            asked = search.asked()
            search.take((await self._sums(layout, "ranks", f"{at} {asked['known']}", **asked))["ranks"])
        for name, size in zip(layout.numbers, search.sizes.tolist(), strict=True):
            if size < 1:
                raise _nothing(name, least)
        return search.quantiles()


def _nothing(name: str, least: int) -> DataError:
    few = f" that at least min_count={least} rows of a party have" if least > 1 else ""
    return DataError(f"column {name!r} has no value{few}", where="Fit", remedy="leave the column out")
