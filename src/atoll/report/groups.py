"""Groups of runs that differ in their seeds alone: their differences, a plot with a band for each, and a table as text."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError, MissingExtraError, nearest
from atoll.core.extras import need

from .facts import Facts, facts_of

if TYPE_CHECKING:
    from atoll.runs import RunFolder

__all__ = [
    "Difference",
    "Group",
    "compare_values",
    "differences",
    "draw_bands",
    "grouped",
    "main_metric",
    "plot_bands",
    "shows_no_spread",
    "shown_difference",
    "shown_mean",
    "text_of",
    "told_notices",
]


_SEEDS = ("seed", "data.partition.seed", "data.corruption_seed")
"""The settings in which the runs of a group may differ, besides their name and the number of processes."""

_ASIDE = ("name", "folder", "workers")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?|\binf\b|\bnan\b")
_NAMED = re.compile(r"(.+)_seed-\d+")
_ROUNDING = 1e-12
"""Deviation of differences, relative to the values, below which they are equal."""
_MAIN = ("test/accuracy", "test/rmse", "test/loss")


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone.

    Attributes:
        label: what tells the group from the others.
        settings: the settings in which groups differ.
        runs: name and facts of each run, by seed.
    """

    label: str
    settings: dict[str, Any]
    runs: dict[int, tuple[str, Facts]]

    def last(self, metric: str) -> dict[int, float]:
        """The final value of a metric, by seed; runs that have not finished are left out."""
        found = {seed: facts.last(metric) for seed, (_, facts) in self.runs.items() if facts.status == "finished"}
        return {seed: float(value) for seed, value in sorted(found.items()) if value is not None}

    def mean_sd(self, metric: str) -> tuple[float | None, float | None]:
        """Mean and standard deviation (of the sample, ``n - 1``) over the seeds; ``None`` where there are too few."""
        values = list(self.last(metric).values())
        return (
            statistics.fmean(values) if values else None,
            statistics.stdev(values) if len(values) > 1 else None,
        )

    def band(self, metric: str) -> list[tuple[int, float, float]]:
        """Round, mean and standard deviation of a metric over the seeds that have it."""
        by_round: dict[int, list[float]] = {}
        for _, facts in self.runs.values():
            for row in facts.rows:
                if row.get(metric) is not None:
                    by_round.setdefault(int(row["round"]), []).append(float(row[metric]))
        return [
            (number, statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)
            for number, values in sorted(by_round.items())
        ]

    def row(self, metric: str) -> dict[str, Any]:
        """The group in one row."""
        mean, sd = self.mean_sd(metric)
        failed = [name for name, facts in self.runs.values() if facts.status == "failed"]
        values = self.last(metric)
        return {
            "group": self.label, "runs": len(self.runs), "finished": len(values), "failed": failed, "metric": metric, "mean": mean,
            "sd": sd, "values": {str(seed): value for seed, value in values.items()}, "settings": self.settings, "notices": self.notices,
        }  # fmt: skip

    @property
    def notices(self) -> list[str]:
        """What the results of its runs say of themselves, each sentence once; of sentences that differ in their numbers alone the first."""
        found: dict[str, list[str]] = {}
        for _, facts in self.runs.values():
            for notice in facts.notices:
                found.setdefault(_NUMBER.sub("#", notice), []).append(notice)
        count = len(self.runs)
        return [
            (told[0] if len(told) == count else f"{told[0]} ({len(told)} of {count} runs)") for told in found.values()
        ]


@dataclass(frozen=True)
class Difference:
    """How much a group's final values differ from those of the first group.

    Attributes:
        group: the group.
        against: the first group.
        n: pairs of runs with the same seed, or the runs of the smaller group.
        mean: mean difference, the group's minus the first's.
        sd: standard deviation of the paired differences.
        low, high: 95 % confidence interval of the mean difference; ``None`` with one run, and where all differences are equal: they show no spread.
        p: two-sided p-value; one test for each group, without a correction for their number.
        test: ``"paired t"`` if the groups share at least two seeds, else ``"Welch's t"``; empty with too few runs.
    """

    group: str
    against: str
    n: int
    mean: float | None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    test: str = ""


def grouped(folders: Sequence[RunFolder]) -> list[Group]:
    """Group runs that differ only in their seeds; a run alone is a group of one.

    Raises:
        CheckpointError: a folder cannot be read.
    """
    found: dict[str, list[tuple[RunFolder, dict[str, Any]]]] = {}
    for folder in folders:
        settings = folder.settings()
        found.setdefault(_key_without_seed(folder, settings), []).append((folder, settings))
    tables = [_flatten_settings(members[0][1]) for members in found.values()]
    paths = [p for p in dict.fromkeys(p for t in tables for p in t) if len({repr(t.get(p)) for t in tables}) > 1]
    paths = [p for p in paths if p not in (*_SEEDS, *_ASIDE)]
    groups = []
    for members, table in zip(found.values(), tables, strict=True):
        own = {path: table.get(path) for path in paths}
        runs: dict[int, tuple[str, Facts]] = {}
        for folder, settings in members:
            seed = int(settings.get("seed") or 0)
            while seed in runs:  # a second run of one seed counts as a run of its own
                seed += 1_000_000
            runs[seed] = (folder.name, facts_of(folder))
        groups.append(Group(_label_group(members, own), own, runs))
    return groups


def _key_without_seed(folder: RunFolder, settings: dict[str, Any]) -> str:
    named = _NAMED.fullmatch(folder.name)
    rest = {path: value for path, value in _flatten_settings(settings).items() if path not in (*_SEEDS, *_ASIDE)}
    return json.dumps([named and named.group(1), rest], sort_keys=True, default=str)


def _label_group(members: Sequence[tuple[RunFolder, dict[str, Any]]], own: dict[str, Any]) -> str:
    names = {match.group(1) for folder, _ in members if (match := _NAMED.fullmatch(folder.name))}
    if len(names) == 1:
        return names.pop()
    return ", ".join(f"{path}={value}" for path, value in own.items()) or members[0][0].name


def _flatten_settings(tree: Any, path: str = "") -> dict[str, Any]:
    """A tree of settings as paths and values; lists stay whole."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {
        p: v
        for key, value in tree.items()
        for p, v in _flatten_settings(value, f"{path}.{key}" if path else key).items()
    }


def main_metric(groups: Sequence[Group], wanted: str | None = None) -> str:
    """The metric to compare: the wanted one, else the first usual one that every group has measured.

    Raises:
        ConfigError: nothing was measured, or not this.
    """
    facts = [one for group in groups for _, one in group.runs.values() if one.rows]
    known = [set().union(*(row for row in one.rows)) for one in facts]
    shared = set.intersection(*known) if known else set()
    metrics = sorted(name for name in shared if "/" in name)
    if wanted is not None:
        if wanted not in shared:
            raise ConfigError(
                f"metric {wanted!r} is not in every run.{nearest(wanted, metrics)}",
                where="compare",
                remedy=f"use one of {', '.join(metrics) or 'those that were measured'}",
            )
        return wanted
    failed = [one.error for group in groups for _, one in group.runs.values() if one.error]
    if not facts and failed:
        raise ConfigError(
            f"no run has a result: {failed[0]['what']}",
            where=failed[0].get("where") or "compare",
            remedy=failed[0].get("remedy") or "look at log.jsonl in the folder of a run",
        )
    found = [name for name in (*_MAIN, *metrics) if name in shared]
    if not found:
        raise ConfigError("no metric is in every run", where="compare", remedy="evaluate the runs, or name a metric")
    return found[0]


def differences(groups: Sequence[Group], metric: str) -> list[Difference]:
    """Compare each group with the first: the same seeds in pairs, else as independent samples."""
    first, *others = groups
    return [compare_values((one.label, one.last(metric)), (first.label, first.last(metric))) for one in others]


def compare_values(own: tuple[str, Mapping[int, float]], first: tuple[str, Mapping[int, float]]) -> Difference:
    """Compare the final values of one arm with those of the first: the same seeds in pairs, else as independent samples.

    Args:
        own: the arm's name, and its values by seed.
        first: the same of the first.
    """
    (label, b), (against, a) = own, first
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) > 1:
        pairs = [b[seed] - a[seed] for seed in seeds]
        mean, sd = statistics.fmean(pairs), statistics.stdev(pairs)
        if shows_no_spread(sd, [a[seed] for seed in seeds], [b[seed] for seed in seeds]):
            return Difference(label, against, len(pairs), mean, 0.0)
        low, high, p = _t_test(mean, sd / len(pairs) ** 0.5, len(pairs) - 1)
        return Difference(label, against, len(pairs), mean, sd, low, high, p, "paired t")
    if not a or not b:
        return Difference(label, against, 0, None)
    mean, n = statistics.fmean(b.values()) - statistics.fmean(a.values()), min(len(a), len(b))
    if n < 2:
        return Difference(label, against, n, mean)
    parts = [statistics.variance(values.values()) / len(values) for values in (a, b)]
    if shows_no_spread(sum(parts) ** 0.5, a.values(), b.values()):
        return Difference(label, against, n, mean, 0.0)
    spread = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
    freedom = sum(parts) ** 2 / spread
    low, high, p = _t_test(mean, sum(parts) ** 0.5, freedom)
    return Difference(label, against, n, mean, None, low, high, p, "Welch's t")


def shows_no_spread(deviation: float, *values: Iterable[float]) -> bool:
    """Whether a deviation is 0 up to rounding: the runs tell nothing of how far another seed would be, so an interval of width 0 would be wrong."""
    return deviation <= _ROUNDING * max((abs(each) for some in values for each in some), default=0.0)


def _t_test(mean: float, error: float, freedom: float) -> tuple[float | None, float | None, float | None]:
    """The 95 % interval and the two-sided p-value; ``None`` without SciPy."""
    try:
        t: Any = need("scipy.stats", "report", "a test of differences", where="atoll.report").t
    except MissingExtraError:
        return None, None, None
    reach = float(t.ppf(0.975, freedom)) * error
    return mean - reach, mean + reach, float(2.0 * t.sf(abs(mean) / error, freedom))


# Groups of runs on paper: a plot with a band for each group, and a table as text.


def plot_bands(groups: Sequence[Group], metric: str, axes: Any = None) -> Any:
    """Draw a metric by round: a line for the mean of each group, and a band of one standard deviation around it.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    if axes is None:
        axes = need("matplotlib.pyplot", "report", "a plot", where="atoll.report").subplots()[1]
    draw_bands(axes, groups, metric)
    axes.set_ylabel(metric)
    return axes


def draw_bands(axes: Any, groups: Sequence[Group], metric: str, colours: Sequence[str] | None = None) -> None:
    """Draw into axes."""
    for i, group in enumerate(groups):
        band = group.band(metric)
        if not band:
            continue
        rounds, means = [at for at, _, _ in band], [mean for _, mean, _ in band]
        own = {} if colours is None else {"color": colours[i % len(colours)]}
        (line,) = axes.plot(rounds, means, label=f"{group.label} ({len(group.runs)} runs)", **own)
        low, high = [m - sd for _, m, sd in band], [m + sd for _, m, sd in band]
        axes.fill_between(rounds, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
    axes.set_xlabel("round")
    axes.legend(loc="best", fontsize=8.5)


def shown_mean(row: Mapping[str, Any]) -> str:
    """A mean with its standard deviation."""
    if row["mean"] is None:
        return "none"
    return f"{row['mean']:.4g}" + ("" if row["sd"] is None else f" ± {row['sd']:.2g}")


def shown_difference(one: Difference) -> str:
    """A difference with its interval and its test."""
    if one.mean is None:
        return "unknown"
    if one.n < 2 or (one.sd == 0.0 and one.low is None):
        why = "one seed" if one.n < 2 else f"the {one.n} seeds differ in nothing"
        return f"{one.mean:+.4g} (no interval: {why})"
    interval = "" if one.low is None or one.high is None else f" [{one.low:+.3g}, {one.high:+.3g}]"
    p = "" if one.p is None else f", p = {one.p:.2g} ({one.test}, {one.n} seeds)"
    return f"{one.mean:+.4g}{interval}{p}"


def text_of(rows: Sequence[Mapping[str, Any]], found: Sequence[Difference]) -> str:
    """The table as text."""
    metric = rows[0]["metric"] if rows else ""
    against = {one.group: shown_difference(one) for one in found}
    head = (
        "variant",
        f"{metric}, mean ± sd",
        "runs",
        f"difference from {rows[0]['group']} (95 % interval)" if found else "",
    )
    lines = [head]
    for row in rows:
        runs = f"{row['finished']}" + (f" ({len(row['failed'])} failed)" if row["failed"] else "")
        lines.append((row["group"], shown_mean(row), runs, against.get(row["group"], "")))
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*shown, *told_notices(rows)])


def told_notices(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the results of the groups say of themselves, a line each: ``notice  GROUPS: sentence``."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for notice in row["notices"]:
            found.setdefault(notice, []).append(str(row["group"]))
    return [
        f"notice  {'' if len(groups) == len(rows) else ', '.join(groups) + ': '}{notice}"
        for notice, groups in found.items()
    ]
