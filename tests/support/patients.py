"""Tables of patients at three sites, and what statistics must say of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import scipy.stats

import atoll
from atoll.statistics import Statistics, Summary

__all__ = ["SHARES", "described", "frames", "require_pooled"]

SHARES = [0.1, 0.5, 0.75]


def frame(rows: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    made = pd.DataFrame(
        {
            "age": draw.normal(50 + 4 * seed, 10, rows).round(2),
            "pressure": draw.normal(1e6, 3, rows),
            "sex": draw.choice(["f", "m", ""], rows, p=[0.5, 0.4, 0.1]),
            "day": draw.choice(pd.date_range("2026-01-01", "2026-03-31"), rows),
            "note": draw.choice(["feels well", "is tired, has pain", ""], rows),
        }
    )
    made.loc[draw.random(rows) < 0.1, "age"] = np.nan
    made["pressure"] += made["age"].fillna(0) * 0.1
    return made


def frames() -> dict[str, pd.DataFrame]:
    return {"north": frame(210, 1), "south": frame(120, 2), "west": frame(33, 3)}


def described(data: Any = None, **settings: Any) -> Summary:
    found = atoll.simulate(Statistics(**settings), frames() if data is None else data, engine="inline").outcome
    assert isinstance(found, Summary)
    return found


def require_pooled(found: Any, pooled: pd.DataFrame, columns: tuple[str, ...] = ("age", "pressure")) -> None:
    for name in columns:
        x, one = pooled[name].dropna().to_numpy(), found[name]
        assert (one.count, one.missing) == (len(x), len(pooled) - len(x))
        np.testing.assert_allclose(one.mean, x.mean(), rtol=1e-13)
        np.testing.assert_allclose(one.sum, x.sum(), rtol=1e-13)
        np.testing.assert_allclose(one.std, x.std(), rtol=1e-9)
        np.testing.assert_allclose(one.sample_std, x.std(ddof=1), rtol=1e-9)
        np.testing.assert_allclose(one.skewness, scipy.stats.skew(x), rtol=1e-6, atol=1e-9)
        assert (one.min, one.max) == (x.min(), x.max())
        if one.histogram is not None:
            assert one.histogram.counts.tolist() == np.histogram(x, one.histogram.edges)[0].tolist()
        if one.quantiles is not None:
            assert [one.quantiles[share] for share in SHARES] == np.quantile(x, SHARES).tolist()
