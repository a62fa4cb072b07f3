"""The program of a fit: what it asks parties, their columns, their preparation, and the rounds of a method.

Imputers and scalers of all rows: means and variances from sums, medians, quartiles and limits from counts of leading bits.

A quantile is found as `atoll.fitting.ranks` says. With a minimum count it is one of coarse values, of which each stands for at least so many rows of a party (`atoll.statistics.disclosure`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import CompositionError, DataError, nearest
from atoll.core.federation.row_rules import required_min_count
from atoll.data.codings import name_lone_values, require_one_coding
from atoll.data.readers._words import is_number
from atoll.data.units import compare_numbers, require_one_unit
from atoll.statistics.columns import settle_kind

from .contacts import Contacts, summed_numbers
from .fitted import FittedModel
from .method import OWN, Known
from .ranks import RankSearch
from .rows import FeatureLayout

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.task import Task

    from .job import Fit

__all__ = ["FitRequests", "agreed", "fitted", "prepared"]


# How the program of `Fit` asks its parties.


class FitRequests:
    """How a program asks for sums: under any reducer, exactly where nobody sees single replies."""

    def __init__(self, fed: Federation, job: Fit) -> None:
        self.fed, self.job = fed, job
        self.words = job.reducer.secure
        self.bare: frozenset[str] = frozenset()
        """Columns of which no party has a value, or enough rows."""

    @property
    def quorum(self) -> int:
        """The smallest number of parties."""
        return len(self.fed.parties) if self.job.quorum is None else self.job.quorum

    async def sums(self, task: Task, message: Mapping[str, Any], at: str) -> dict[str, NDArray[np.float64]]:
        """Sums over all parties."""
        asked = {**message, "least": self.job.least_rows, "words": self.words}
        found = await self.fed.sum(self.fed.parties, task, asked, reducer=self.job.reducer, quorum=self.quorum, at=at)
        self.parties = found.n
        return summed_numbers(found.value)

    async def singly(self, task: Task, message: Mapping[str, Any]) -> list[Any]:
        """The reply of each party."""
        if self.words:
            raise CompositionError(
                f"{type(self.job.model).__name__} asks for single replies here, which {type(self.job.reducer).__name__} does not show",
                where="Fit",
                remedy="choose the setting of the method that needs sums alone, or leave the reducer out",
            )
        asked = {**message, "least": self.job.least_rows, "words": False}
        found = await self.fed.ask_all(self.fed.parties, task, asked, quorum=self.quorum)
        self.parties = len(found.senders)
        return list(found.values)


# Which columns all parties have, of which kind, and with which values.


async def agreed(asking: FitRequests, contacts: Contacts, *, at_sites: bool = False) -> tuple[FeatureLayout, list[str]]:
    """The layout: from the settings if they say everything, else from what the parties tell of their columns. And what people should know of it.

    Between sites (`at_sites`) nobody else can compare where numbers lie, so the parties tell it, unless the reducer or noise hides single ones.

    Raises:
        DataError: the parties have different columns or codings, or a column has no value that enough rows have.
    """
    job = asking.job
    method, chosen = job.model, {name: list(map(str, values)) for name, values in job.categories.items()}
    aside = (*([job.label] if job.label else ()), *method.extra)
    classes = job.label if method.target == "class" else ""
    wanted = [name for name in (*method.grouped, *([classes] if classes else ())) if name not in chosen]
    kinds = {name: "category" if name in chosen else "number" for name in job.columns}
    values: dict[str, list[str]] = dict(chosen)
    notes: dict[str, list[str]] = {}
    compared: list[str] = []
    tells = not asking.words and method.events() is None
    if tells or (method.featured and not job.columns):
        message = {
            "columns": [*job.columns, *aside] if job.columns or not method.featured else [], "categories": [*chosen, *wanted], "undeclared": [classes] if classes in wanted else [],
            "tell": tells, "compare": tells and at_sites, "numbers": False, "features": [*job.columns], "rest": method.featured and not job.columns, "aside": [*aside],
        }  # fmt: skip
        told = await _ask_kinds(asking, contacts, message)
        kinds = _same_kinds(asking, told)
        asking.bare = frozenset(name for name in kinds if all(one["kinds"][name].endswith("?") for one in told))
        for name in kinds:
            if name not in values:
                found = {value for one in told for value in one["values"].get(name, ())}
                values |= {name: _in_order(found)} if found else {}
        notes = _compare_codings(job, classes, values, told)
        compared = compare_numbers({one["site"]: one for one in told})
    for name in aside:
        if name not in kinds and tells:
            raise DataError(
                f"no column {name!r}.{nearest(name, kinds)}", where="Fit", remedy=f"use one of {', '.join(kinds)}"
            )
    features = (list(job.columns) or [name for name in kinds if name not in aside]) if method.featured else []
    if classes and classes not in job.categories:
        _require_no_fractions(classes, values.get(classes, ()))
    levels = {name: _choose_values(name, values, asking) for name in features if kinds[name] == "category"}
    numbers = tuple(name for name in features if kinds[name] == "number")
    groups = {name: _choose_values(name, values, asking) for name in method.grouped}
    layout = FeatureLayout(
        numbers, levels, job.label, tuple(_choose_values(classes, values, asking)) if classes else (), tuple(method.extra), groups, job.coding
    )  # fmt: skip
    used = {*layout.levels, *layout.groups, classes}
    return layout, compared + [note for name, each in notes.items() if name in used for note in each]


def _require_no_fractions(label: str, classes: Sequence[str]) -> None:
    """Refuse amounts as classes: among those told in tenths, enough repeat to look like classes.

    Raises:
        DataError: names one.
    """
    fraction = next((name for name in classes if is_number(name) and float(name) % 1), "")
    if fraction and all(map(is_number, classes)):
        raise DataError(
            f"the label {label!r} has numbers with fractions, such as {fraction!r}, which are no classes",
            where="Fit.label",
            remedy=f"for a number use Ridge (atoll fit ridge); if they are classes, list them: categories={{{label!r}: [...]}}",
        )


def _compare_codings(
    job: Fit, classes: str, values: Mapping[str, list[str]], told: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Refuse columns and classes that parties code differently; say by column which party has values of its own.

    Raises:
        DataError: names the parties.
    """
    found: dict[str, list[str]] = {}
    for name in values:
        if name not in job.categories:
            each = {str(one["site"]): list(one["values"].get(name, ())) for one in told}
            require_one_coding(
                each, name, "Fit.label" if name == classes else "Fit", label=name == classes, who="party"
            )
            found[name] = name_lone_values(each, name, label=name == classes, who="party")
    return found


async def _ask_kinds(asking: FitRequests, contacts: Contacts, message: Mapping[str, Any]) -> list[Any]:
    asked = {**message, "least": asking.job.least_rows}
    found = await asking.fed.ask_all(asking.fed.parties, contacts.named, asked, quorum=asking.quorum)
    return [{**one, "site": name} for name, one in zip(found.senders.names, found.values, strict=True)]


def _same_kinds(asking: FitRequests, told: list[Any]) -> dict[str, str]:
    first = dict(told[0]["kinds"])
    for one in told:
        own = dict(one["kinds"])
        require_one_unit(own, first, f"the columns of {one['site']}", told[0]["site"])
        if own.keys() != first.keys() or any(settle_kind((kind, first[name])) is None for name, kind in own.items()):
            shown = [_shown(own), _shown(first)]
            raise DataError(
                f"the columns of {one['site']} are {shown[0]}, and of {told[0]['site']} {shown[1]}",
                where="Fit",
                remedy="name columns= that all parties have, of one kind; categories= makes one of text or numbers",
            )
        first |= {name: kind for name, kind in own.items() if not kind.endswith("?")}
    return {name: str(settle_kind(one["kinds"][name] for one in told)) for name in first}


def _shown(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({kind.replace('?', ', empty')})" for name, kind in kinds.items())


def _in_order(values: set[str]) -> list[str]:
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _choose_values(name: str, values: Mapping[str, list[str]], asking: FitRequests) -> list[str]:
    if not values.get(name):
        if name in asking.bare:
            least = asking.job.least_rows
            few = f", or no party has min_count={least} rows" if least > 1 else ""
            raise DataError(
                f"{'the label' if name == asking.job.label else 'column'} {name!r} has no value at any party{few}",
                where="Fit",
                remedy="use another column" if name == asking.job.label else "leave the column out",
            )
        secure = f", and {type(asking.job.reducer).__name__} does not show what parties have" if asking.words else ""
        if name == asking.job.label and not secure:
            few = (
                f", or fewer than min_count={asking.job.least_rows} rows have each" if asking.job.least_rows > 1 else ""
            )
            raise DataError(
                f"the label {name!r} has no classes: its values nearly all differ{few}",
                where="Fit.label",
                remedy=f"for a number use Ridge (atoll fit ridge); if they are classes, list them: categories={{{name!r}: [...]}}",
            )
        raise DataError(
            f"no value of {name!r} is known{secure}",
            where="Fit",
            remedy=f"agree on them: categories={{{name!r}: [...]}}, or leave the column out",
        )
    return values[name]


# Imputers and scalers of all rows: means and variances from sums, medians, quartiles and limits from counts of leading bits.


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
        message = {
            "columns": names,
            "categories": [],
            "undeclared": [],
            "tell": False,
            "compare": False,
            "numbers": True,
            "features": [],
            "rest": False,
            "aside": [],
        }
        told = await self.asking.singly(self.contacts.named, message)
        values: dict[str, list[str]] = {}
        for name in names:
            values[name] = sorted({value for one in told for value in one["values"].get(name, ())}, key=float)
            if not values[name]:
                raise DataError(
                    f"column {name!r} has no most frequent number that may be told: its values nearly all differ, or there is none",
                    where="Fit",
                    remedy="use impute='median' or 'mean', or leave the column out",
                )
        return {name: float(value) for name, value in (await self._modes(layout, values, "modes of numbers")).items()}

    async def _moments(self, layout: FeatureLayout) -> dict[str, NDArray[np.float64]]:
        sums = await self._sums(layout, "moments", f"moments {len(layout.fill)}")
        for name, count in zip(layout.numbers, sums["counts"].tolist(), strict=True):
            if count < 1:
                raise _refuse_empty(name, self.asking.job.least_rows)
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
                raise _refuse_empty(name, least)
        return search.quantiles()


def _refuse_empty(name: str, least: int) -> DataError:
    few = f" that at least min_count={least} rows of a party have" if least > 1 else ""
    return DataError(f"column {name!r} has no value{few}", where="Fit", remedy="leave the column out")


async def fitted(fed: Federation, job: Fit, contacts: Contacts, *, at_sites: bool = False) -> FittedModel:
    """Run the job; a checkpoint follows every contact."""
    kept = await fed.restore(
        {"least": None, "layout": None, "preparing": {}, "state": None, "number": 0, "counts": {}, "notes": []}
    )
    asked = job.min_count if kept["least"] is None else kept["least"]
    quorum = len(fed.parties) if job.quorum is None else job.quorum
    least = job.least_rows if job.model.events() else await required_min_count(fed, fed.parties, asked, quorum=quorum)
    job, kept = replace(job, min_count=least), {**kept, "least": least}
    asking = FitRequests(fed, job)
    if kept["layout"] is None:
        layout, notes = await agreed(asking, contacts, at_sites=at_sites)
        kept = {**kept, "layout": layout.packed(), "notes": notes}
        await fed.checkpoint(kept)
    layout = await prepared(asking, contacts, FeatureLayout.unpacked(kept["layout"]), kept)
    method = job.model
    known = Known(layout, fed.rng.child("fit").generator(), asking.words, job.least_rows)
    method.check(known)
    state, number = kept["state"], int(kept["number"])
    counts = dict(kept["counts"])
    state = method.start(known) if state is None else state
    while not state.get("done") and not fed.ending:
        known = Known(layout, fed.rng.child("fit", number).generator(), asking.words, job.least_rows)
        message = {"layout": layout.packed(), "state": {name: one for name, one in state.items() if name != OWN}}
        if state["phase"] in method.singly:
            proposals = await asking.singly(contacts.proposed, message)
            state = method.gather(state, proposals, known)
        else:
            sums = await asking.sums(contacts.replied, message, f"{number}")
            counts = {"rows": int(sums.pop("rows")), "withheld": int(sums.pop("withheld"))}
            _require_rows(counts, job)
            state = method.step(state, sums, known)
        number += 1
        fed.record(
            {
                "contact": number,
                "phase": str(message["state"]["phase"]),
                "parties": asking.parties,
                **method.measures(state),
            }
        )
        if number >= job.rounds and not state.get("done"):
            state = {**state, "done": True, "stopped": True}
        kept = {**kept, "state": state, "number": number, "counts": counts}
        await fed.checkpoint(kept)
    told = {
        **counts,
        "contacts": number,
        "converged": not (state.get("stopped", False) or state.get("separated", False)),
    }
    params = method.result(state)
    notes = [*kept.get("notes", ()), *method.notes(layout.features, params)]
    if state.get("stopped", False):
        notes.append(
            f"it did not converge in {number} contacts: these numbers are where it stopped, and errors and p-values mean nothing yet. "
            f"Use more, rounds={2 * job.rounds}"
        )
    if notes:
        told["notes"] = notes
    return FittedModel(method, layout, params, told)


def _require_rows(counts: Mapping[str, int], job: Fit) -> None:
    if counts["rows"] < 1:
        lacking = " or ".join(map(repr, filter(None, (job.label, *job.model.extra))))
        few = f": {lacking} is missing in every row" if lacking else ""
        if counts["withheld"]:
            few = f": {counts['withheld']} rows are at parties with fewer than min_count={job.least_rows}"
        raise DataError(f"no party has a usable row{few}", where="Fit", remedy="invite parties that have data")
