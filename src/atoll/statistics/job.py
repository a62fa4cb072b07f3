"""`Statistics`: the job."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Event, Laplace, NonPrivate
from atoll.core.exposure import Explanation, Exposure
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.federation.row_rules import required_min_count
from atoll.core.job import Job, Prepared
from atoll.core.persistence.files import as_json
from atoll.core.validation import Checked, is_real, require_parts
from atoll.data.codings import name_lone_values, require_one_coding

from .disclosure import public_edges
from .histogram import edges_of
from .plan import CONDITIONS, PERIODS, StatisticsPlan

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from .replies import CellReply
    from .summary import Summary

__all__ = ["Statistics"]

_SHOWN = 1 << 16
"""Most characters of a result that a run's manifest repeats; the file has all of it."""
_MAIN = ("count", "missing", "mean", "std", "min", "max")


@dataclass(frozen=True, kw_only=True)
class Statistics(Checked, Job):
    """Describe the columns of all parties' rows: moments, ranges, histograms, quantiles, categories, correlations, groups, periods and drift.

    Parties hold tables, data sets, images or texts, of any columns; see `atoll.statistics.columns.table_of`. The result is that of all rows in one place, up to
    rounding; `Summary.errors` says what is not exact.

    ============================  ==========================================  ======================================
    who may see single replies    settings                                    what the server sees
    ============================  ==========================================  ======================================
    the server                    (default)                                   each site's statistics
    nobody                        ``reducer=SecureAggregation()``             sums over all sites
    nobody, and rows are hidden   ``epsilon=1.0``, with or without a reducer  statistics with noise that each site adds
    ============================  ==========================================  ======================================

    ``min_count`` withholds what describes fewer rows: columns, groups and categories, and others that would give them away. Bins and quantiles are those of coarse
    values, of which each stands for at least so many rows (`atoll.statistics.disclosure`); the smallest and the largest value are hidden, unless a site's
    policy declares them. Each site keeps a record of the rows behind its answers, and refuses a request that differs from an earlier one by fewer rows.
    Values of columns of text, and of whole numbers, that are nearly all different are never listed.

    Attributes:
        columns: columns to describe, in order; by default all that a party has, but those of ``by`` and ``over``.
        text: columns of free text: their lengths and vocabulary are described.
        categories: the values of a column, where they are agreed; needed for categories and groups with a secure reducer or ``epsilon``.
        by: columns whose values are groups.
        over: a column of moments; its periods are groups.
        period: ``"year"``, ``"month"``, ``"week"``, ``"day"`` or ``"hour"``.
        where: conditions that every row meets: ``[["age", ">=", 18]]``.
        bins: bins of a histogram; 0 for none.
        ranges: the range of a column's histogram, ``{"age": [0, 120]}``; by default from the smallest to the largest value, or with ``min_count`` whole multiples of a power of two around the coarse ones, at most ``bins``. With ``epsilon``, values are clipped to it.
        quantiles: shares, such as ``[0.25, 0.5, 0.75]``.
        digits: bits of a value's fraction in the sketch that quantiles come from: relative error ``2^-(digits + 1)``.
        exact: find exact quantiles, by further contacts.
        correlations: whether to tell the correlations of columns of numbers.
        drift: whether to tell how far each site is from all.
        extremes: whether to tell the smallest and the largest value, where that is allowed.
        words: number of words that a site tells of a vocabulary.
        min_count: the smallest number of rows behind what a site tells; ``None`` is the largest that the sites' policies require, 1 if none does.
        epsilon: differential privacy of each row towards the server and everyone after it, for the whole job; ``None`` adds no noise.
        reducer: how replies are combined; with a secure reducer the server sees only sums.
        request: what a site's record calls the request.
        quorum: smallest number of parties; by default all must reply. The result names those that did not.
    """

    kind: ClassVar[str] = "statistics"
    missing_features: ClassVar[bool] = True
    reads: ClassVar[str] = "table"

    columns: Sequence[str] = ()
    text: Sequence[str] = ()
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    by: Sequence[str] = ()
    over: str = ""
    period: str = "month"
    where: Sequence[Sequence[Any]] = ()
    bins: int = 0
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    quantiles: Sequence[float] = ()
    digits: int = 7
    exact: bool = False
    correlations: bool = False
    drift: bool = False
    extremes: bool = True
    words: int = 100
    min_count: int | None = None
    epsilon: float | None = None
    reducer: Reducer = field(default_factory=Plain)
    request: str = "statistics"
    quorum: int | None = None

    def __post_init__(self) -> None:
        require_parts(self, {"reducer": (Reducer, "atoll.reducers.SecureAggregation()")})
        for name in ("columns", "text", "by"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(one, str) for one in value):
                raise ConfigError(f"{name}={value!r}", remedy=f"give a list of names, such as {name}=['age']")
        _require_numbers(self)
        for name, ends in self.ranges.items():
            if len(ends) != 2 or not all(is_real(end) for end in ends) or not ends[0] < ends[1]:
                raise ConfigError(f"ranges={{{name!r}: {ends!r}}}", remedy="give the lower and the upper end: [0, 120]")
        for one in self.where:
            if isinstance(one, str) or len(one) != 3 or one[1] not in CONDITIONS:
                raise ConfigError(
                    f"where={one!r}", remedy=f"give [column, sign, value], with one of {', '.join(CONDITIONS)}"
                )
        self._require_alone()

    def _require_alone(self) -> None:
        """Refuse what single rows would show through, or what cannot be told without seeing single replies."""
        if self.exact and (self.least_rows > 1 or self.epsilon is not None):
            raise ConfigError(
                f"exact=True tells values of single rows, and min_count={self.least_rows}, epsilon={self.epsilon}",
                remedy="leave out exact, or min_count and epsilon where sites require none: quantiles of the sketch have a stated error",
            )
        if self.epsilon is not None and self.correlations:
            raise ConfigError(
                "correlations=True with epsilon", remedy="leave one out: no noise for correlations is implemented"
            )
        alone = self.epsilon is not None or self.reducer.secure
        missing = [name for name in (*self.by, *([self.over] if self.over else ())) if name not in self.categories]
        if alone and missing:
            raise ConfigError(
                f"groups of {missing[0]!r} where single replies are not seen",
                remedy=f"agree on the groups: categories={{{missing[0]!r}: [...]}}",
            )

    # ------------------------------------------------------------------ what programs need

    @property
    def plan(self) -> StatisticsPlan:
        """What parties are asked."""
        digits = self.digits if self.quantiles or self.drift else 0
        return StatisticsPlan(
            request=self.request, columns=tuple(self.columns), text=tuple(self.text), categories=self.categories, by=tuple(self.by),
            extremes=self.extremes, over=self.over, period=self.period, where=tuple(self.where), digits=digits, words=self.words, min_count=self.least_rows,
        )  # fmt: skip

    @property
    def least_rows(self) -> int:
        """The minimum count; 1 until the sites have said what they require."""
        return self.min_count or 1

    async def resolved(self, fed: Federation, known: int | None = None) -> tuple[Statistics, int]:
        """The same job with the minimum count that its sites require, if the settings have none, and that number.

        Args:
            fed: the federation.
            known: the number that a checkpoint has.

        Raises:
            ConfigError: the settings want what this minimum count hides.
        """
        asked = self.min_count if known is None else known
        least = await required_min_count(fed, fed.parties, asked, quorum=self.least(len(fed.parties)))
        return replace(self, min_count=least), least

    def least(self, parties: int) -> int:
        """The smallest number of parties, of so many."""
        return parties if self.quorum is None else self.quorum

    def edges(self, whole: CellReply) -> dict[str, Any]:
        """TableColumn of numbers -> the edges of its bins: the given range, or that of all values."""
        if not self.bins:
            return {}
        ends = {name: (float(m.low[0]), float(m.high[0])) for name, m in whole.moments.items() if m.count[0]}
        public = {name: one for name, one in whole.ends.items() if name in ends and name not in self.ranges}
        ends |= public
        ends |= {name: (float(low), float(high)) for name, (low, high) in self.ranges.items() if name in ends}
        for name, (low, high) in ends.items():
            if not (math.isfinite(low) and math.isfinite(high)):
                raise ConfigError(
                    f"bins of {name!r} without a range, and too few values for one",
                    where="Statistics",
                    remedy=f"give ranges={{{name!r}: [low, high]}}",
                )
        make = {name: public_edges if name in public else edges_of for name in ends}
        return {name: make[name](low, high, self.bins) for name, (low, high) in ends.items()}

    def means(self, whole: CellReply, kinds: Mapping[str, str]) -> dict[str, float]:
        """Columns of one number a row that correlate, and their means; nothing if correlations are not asked for."""
        if not self.correlations:
            return {}
        return {name: float(whole.moments[name].mean[0]) for name in kinds if name in whole.moments}

    def errors(self, sites: int) -> dict[str, str]:
        """What is not exact, and by how much."""
        if not self.quantiles or self.exact:
            return {}
        coarse = f", which stand for at least {self.least_rows} rows of a site each" if self.least_rows > 1 else ""
        return {"quantiles": f"within {2.0 ** -(self.digits + 1):.2g} of the values around them, relative{coarse}"}

    @property
    def most_rounds(self) -> int | None:
        """One record a contact; exact quantiles and secure sums take several."""
        return None if self.exact or self.reducer.secure else 2

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return who sees what of the rows, and how many rows stand behind a number."""
        parties = clients or (len(data) if data is not None else 0)
        seen = self.reducer.exposures(parties or 2)
        whole = self.reducer.secure or self.epsilon is not None
        gets = "the statistics of all rows together" if whole else "the statistics of all rows, and of each client's"
        notes = [
            "a reply is statistics of a party's rows: counts, sums, bins and categories of the columns; no row leaves it"
        ]
        if self.epsilon is not None:
            notes.append(
                f"differential privacy of each row: epsilon {self.epsilon:g} for the whole job, by noise that each party adds"
            )
        else:
            notes.append("no differential privacy: counts and sums are exact")
        notes.append(
            "what describes too few rows is not told: too few are fewer than the largest min_count of the sites' policies, which is 10 without a word between organisations, and 1 in a simulation"
            if self.min_count is None
            else f"what describes fewer than {self.min_count} rows is not told"
        )
        return Explanation(self.title, parties, (*seen, Exposure("whoever gets the result", gets)), notes=tuple(notes))

    def prepare(self, data: Any) -> Prepared:
        """Nothing needs to be known of the data."""
        del data
        return _PreparedStatistics(self)


def _require_numbers(job: Statistics) -> None:
    """Refuse numbers that make no sense."""
    if job.least_rows < 1 or job.min_count == 0 or job.bins < 0 or job.words < 1 or not 0 <= job.digits <= 20:
        raise ConfigError(
            f"min_count={job.min_count}, bins={job.bins}, words={job.words}, digits={job.digits}",
            remedy="use min_count and words of at least 1, bins of at least 0, and digits from 0 to 20",
        )
    if any(not (is_real(share) and 0 <= share <= 1) for share in job.quantiles):
        raise ConfigError(
            f"quantiles={list(job.quantiles)}", remedy="give shares from 0 to 1, such as [0.25, 0.5, 0.75]"
        )
    if not job.extremes and {0.0, 1.0} & {float(share) for share in job.quantiles}:
        raise ConfigError(
            f"quantiles={list(job.quantiles)} with extremes=False",
            remedy="leave out 0 and 1: they are the smallest and the largest value",
        )
    if job.epsilon is not None and not (math.isfinite(job.epsilon) and job.epsilon > 0):
        raise ConfigError(f"epsilon={job.epsilon}", remedy="use a finite number > 0")
    if job.quorum is not None and job.quorum < 1:
        raise ConfigError(f"quorum={job.quorum}", remedy="use a whole number of at least 1, or None for all")
    if job.period not in PERIODS:
        raise ConfigError(f"period={job.period!r}", remedy=f"use one of {', '.join(PERIODS)}")


def _name_left_out(summary: Summary, job: Statistics) -> list[str]:
    """Say how many values of a column are none of the agreed ones, or outside the range of its histogram."""
    found = []
    for name, one in summary.whole.items():
        if name in job.ranges and one.histogram is not None and not one.histogram.withheld:
            outside = one.count - int(one.histogram.counts.sum())
            if outside:
                low, high = job.ranges[name]
                found.append(f"{outside} of {one.count} values of {name} are outside {low:g} to {high:g}, and in no bin: see ranges")  # fmt: skip
        listed = None if one.values is None or name not in job.categories else sum(one.values.values())
        if listed is not None and listed < one.count:
            few = f", or fewer than min_count={job.least_rows} rows of a site have them" if job.least_rows > 1 else ""
            found.append(
                f"{one.count - listed} of {one.count} values of {name} are not among the agreed ones{few}: see categories"
            )
    return found


def _name_codings(summary: Summary, agreed: Mapping[str, Sequence[str]]) -> list[str]:
    """What would be refused in a model: a description shows it, and says so."""
    found: list[str] = []
    for name, one in summary.whole.items():
        if one.kind != "category" or name in agreed or not one.values:
            continue
        each = {site: list(columns[name].values or ()) for site, columns in summary.sites.items() if name in columns}
        try:
            require_one_coding(each or {"": list(one.values)}, name, "statistics")
        except DataError as error:
            found.append(f"{error.what}: is it coded differently?")
        else:
            found += name_lone_values(each, name)
    return found


_APART, _CLOSE = 5, 0.85


def _name_columns_apart(summary: Summary) -> list[str]:
    """Say which column may be another site's under another name: each site lacks the other's, and they differ in capitals, signs or a letter."""
    at = dict[str, set[str]]()
    for site, columns in summary.sites.items():
        for name in columns:
            at.setdefault(name, set()).add(site)
    some = sorted(name for name, sites in at.items() if len(sites) < len(summary.sites))
    alike = dict[tuple[str, ...], list[str]]()  # names with the same numbers, in order
    for name in some:
        alike.setdefault(_numbers_in(name), []).append(name)
    found = list[str]()
    for one in some:
        later = alike[_numbers_in(one)]
        later.pop(0)
        for other in later:
            if at[one].isdisjoint(at[other]) and _are_spellings(one, other):
                here, there = (" and ".join(map(repr, sorted(at[name])[:3])) for name in (one, other))
                found.append(
                    f"column {one!r} is at {here} alone, and {other!r} at {there}: is it one column under two names?"
                )
                if len(found) == _APART:
                    return found
    return found


def _numbers_in(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\d+", name))


def _are_spellings(one: str, other: str) -> bool:
    """Whether two names with the same numbers may be one: but for capitals and signs nearly the same letters."""
    first, second = (re.sub(r"[\W_]", "", name).casefold() for name in (one, other))
    met = SequenceMatcher(None, first, second)
    # The first two are bounds of the third, which takes time; `difflib.get_close_matches` asks so too.
    return met.real_quick_ratio() >= _CLOSE and met.quick_ratio() >= _CLOSE and met.ratio() >= _CLOSE


class _PreparedStatistics(Prepared):
    def __init__(self, job: Statistics) -> None:
        self.job = job
        self.codings: list[str] = []

    async def program(self, fed: Federation) -> Summary:
        """Choose the program by who may see what."""
        if self.job.epsilon is not None:
            from .private import private

            return await private(fed, self.job)
        if self.job.reducer.secure:
            from .by_sums import by_sums

            return await by_sums(fed, self.job)
        from .by_site import by_site

        return await by_site(fed, self.job)

    def outcome(self, value: Summary) -> Summary:
        """Return the summary, in which sites may code a column differently."""
        self.codings = _name_codings(value, self.job.categories)
        if self.job.epsilon is None:
            self.codings += _name_left_out(value, self.job)
        self.codings += _name_columns_apart(value)
        return value

    def notices(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return which replies did not count, and which sites write the values of a column in other ways."""
        return [*super().notices(rows), *self.codings]

    def most(self, rows: int) -> Sequence[Event]:
        """Return the budget, or one release without noise."""
        del rows
        if self.job.epsilon is None:
            return (NonPrivate(what="statistics of columns"),)
        return (Laplace(unit="example", epsilon=self.job.epsilon),)

    def facts(self, outcome: Summary) -> Mapping[str, Any]:
        """Return the numbers; of many columns, the main ones."""
        whole = outcome.plain()
        if len(as_json(whole)) <= _SHOWN:
            return {"result": whole}
        main = {name: {key: one.get(key) for key in _MAIN if key in one} for name, one in whole["global"].items()}
        return {"result": {"rows": whole["rows"], "global": main, "withheld": len(whole["withheld"])}}

    def sections(self, outcome: Summary) -> Sequence[Mapping[str, Any]]:
        """Return the page."""
        from .summary import sections_of

        return sections_of(outcome)

    def files(self, outcome: Summary) -> Mapping[str, bytes]:
        """Return the numbers as JSON."""
        return {"statistics.json": as_json(outcome.plain(), indent=1).encode()}
