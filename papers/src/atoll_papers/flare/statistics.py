"""NVIDIA FLARE, federated statistics: each client's data sets and the global one, merged exactly, histograms over common bins.

Source: "NVIDIA FLARE: Federated Learning from Simulation to Real-World" (2022), section on federated analytics. The paper names the workflow and its output, and prints no numbers: that the
global statistics are those of pooled data, to 1e-9, is what its formulas imply. Which statistics is not stated; we take count, sum, mean, standard deviation, range and histogram.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import atoll
from atoll.data import Dataset, Islands
from atoll.reducers import SecureAggregation
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.statistics import Statistics, Summary

__all__ = ["ENTRY"]


_EXACT = 1e-9
_MERGED, _MORE = "", "What the paper does not have: our own targets"
_SITES, _BINS = 5, 20


@keeping_nothing("flare-statistics")
def _run(quick: bool) -> list[Claim]:
    named: dict[str, Callable[[], Dataset]] = {"diabetes": atoll.data.diabetes}
    if not quick:
        named |= {"breast cancer": atoll.data.breast_cancer, "wine": atoll.data.wine, "digits": atoll.data.digits}
    claims = [claim for name, make in named.items() for claim in _merged(name, make())]
    claims += [_stable(), *_sums(named["diabetes"]()), *_private(named["diabetes"]())]
    return claims


def _divided(data: Dataset) -> dict[str, Islands]:
    """The clients' two data sets, as FLARE's examples have them: train and test."""
    owner = np.random.default_rng(0).integers(0, _SITES, len(data))
    whole = Islands.from_owner(data, owner, _SITES, keys=np.array([f"site-{k + 1}" for k in range(_SITES)]))
    train, test = whole.holdout(0.2, seed=0)
    return {"train": train, "test": test}


def _described(islands: Any, **settings: Any) -> Summary:
    found: Summary = atoll.simulate(Statistics(**settings), islands, engine="inline", progress=False).outcome
    return found


def _features(islands: Islands) -> list[str]:
    x = islands.pooled().x
    return list(islands.about.features) or [f"x{i}" for i in range(x.shape[1])]


def _gap(found: Summary, x: Any, names: list[str]) -> float:
    """The largest error of a moment relative to the pooled number, or to 1."""
    pooled = {
        "sum": x.sum(axis=0),
        "mean": x.mean(axis=0),
        "std": x.std(axis=0),
        "min": x.min(axis=0),
        "max": x.max(axis=0),
    }
    return max(
        float(np.max(np.abs(found.array(name, names) - wanted) / np.maximum(1.0, np.abs(wanted))))
        for name, wanted in pooled.items()
    )


def _merged(name: str, data: Dataset) -> list[Claim]:
    worst, counted, binned, listed = 0.0, True, True, True
    for islands in _divided(data).values():
        x, names = islands.pooled().x.astype(np.float64).reshape(int(islands.sizes.sum()), -1), _features(islands)
        found = _described(islands, bins=_BINS)
        worst = max(worst, _gap(found, x, names))
        counted &= all(found[column].count == len(x) for column in names)
        for k, column in enumerate(names):
            bins = found[column].histogram
            wanted = np.histogram(x[:, k], _BINS, (x[:, k].min(), x[:, k].max()))[0]
            binned &= bins is not None and bins.counts.tolist() == wanted.tolist()
        listed &= list(found.sites) == list(islands.names) and all(
            set(names) <= set(part) for part in found.sites.values()
        )
    where = f"{name}, train and test at {_SITES} sites"
    return [
        Claim(f"global statistics are those of pooled data: {name}", None, float(f"{worst:.2g}"), worst <= _EXACT and counted,
              f"at most {_EXACT:g}: the largest relative error of sum, mean, standard deviation and range; counts are equal; {where}", _MERGED),
        Claim(f"histograms over common bins are those of pooled data: {name}", None, "equal" if binned else "different", binned, f"{_BINS} bins from the smallest to the largest value; {where}", _MERGED),
        Claim(f"the output has every client's data sets and the global one: {name}", None, "all" if listed else "some are missing", listed, where, _MERGED),
    ]  # fmt: skip


def _stable() -> Claim:
    """Merging centred moments against sums of squares, where the mean is large."""
    x = np.random.default_rng(0).normal(1e9, 1.0, 20_000)
    parts = np.array_split(x, _SITES)
    found = _described({f"site-{k}": {"x": part} for k, part in enumerate(parts)})["x"]
    n, total, squares = (
        len(x),
        sum(float(part.sum()) for part in parts),
        sum(float((part * part).sum()) for part in parts),
    )
    naive = np.sqrt(max(0.0, squares / n - (total / n) ** 2))
    ours = abs((found.std or 0.0) / x.std() - 1)
    return Claim(
        "merging centred sums keeps the digits that sums of squares lose", f"at most {_EXACT:g}", float(f"{ours:.2g}"), ours <= _EXACT,
        f"relative error of the standard deviation of 20,000 values around 1e9 with deviation 1; from sums of squares it is {naive:.3g} instead of {x.std():.3g}", _MORE,
    )  # fmt: skip


def _sums(data: Dataset) -> list[Claim]:
    """The same without showing any site's own numbers."""
    islands = _divided(data)["train"]
    names, x = _features(islands), islands.pooled().x.astype(np.float64)
    found = _described(
        islands, columns=names, bins=_BINS, quantiles=[0.25, 0.5, 0.75], exact=True, reducer=SecureAggregation()
    )
    gap = _gap(found, x, names)
    exact = all(
        list((found[c].quantiles or {}).values()) == np.quantile(x[:, k], [0.25, 0.5, 0.75]).tolist()
        for k, c in enumerate(names)
    )
    return [
        Claim("secure sums give the same global statistics", f"at most {_EXACT:g}", float(f"{gap:.2g}"), gap <= _EXACT and not found.sites,
              "the server sees sums over all sites only, in fixed point; FLARE's server sees every client's statistics", _MORE),
        Claim("secure sums give exact quartiles", "equal", "equal" if exact else "different", exact, f"bits of order statistics by rounds, {found.contacts} contacts; FLARE has no quantiles in this paper", _MORE),
    ]  # fmt: skip


def _private(data: Dataset) -> list[Claim]:
    """Minimum counts hide small sites."""
    islands = _divided(data)["train"]
    least = int(np.sort(islands.sizes)[1])
    found = _described(islands, min_count=least, columns=_features(islands))
    kept = [site for site, part in found.sites.items() if len(part)]
    hides = len(kept) == _SITES - 1 and found[_features(islands)[0]].count == int(np.sort(islands.sizes)[1:].sum())
    return [
        Claim("a site below the minimum count is in no statistic, and named", _SITES - 1, len(kept), hides and any("fewer than min_count" in line for line in found.withheld),
              f"min_count={least}, the size of the second smallest site", _MORE)
    ]  # fmt: skip


ENTRY = Entry(
    name="flare-statistics",
    title="NVIDIA FLARE: federated statistics are those of pooled data",
    source="NVIDIA FLARE: Federated Learning from Simulation to Real-World (2022), federated analytics",
    run=_run,
)
