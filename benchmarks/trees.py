"""Measures trees grown on sums of histograms against XGBoost on the union of the rows.

    python benchmarks/trees.py                               # 200,000 rows x 20 columns at 4 sites, 20 rounds
    python benchmarks/trees.py --rows 1000000 --runs 3
    python benchmarks/trees.py --missing 0.1                 # a tenth of all features is missing

Both grow trees of the same depth and number of bins, alternately in one run, each from rows in memory: binning counts. XGBoost gets as many threads as the
machine has processors; all sites share them. The script reports medians of seconds, and the area under the ROC curve on rows that nobody trained on.

* ``ratio``: seconds of the federation / XGBoost's.
* ``spread``: how far XGBoost's own areas are apart with 256, 255, 254 and 252 bins: a difference below that says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

import atoll
import numpy as np
import xgboost
from atoll.data import Dataset, Islands
from atoll.trees import Trees
from atoll.trees.tree import auc


def table(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in the manner of HIGGS: skewed and rounded columns, products that matter, a tenth of the labels wrong."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 20)).astype(np.float32)
    x[:, 5:10] = np.exp(x[:, 5:10])
    x[:, 10] = np.round(x[:, 10])
    signal = x[:, 0] * x[:, 1] + x[:, 2] - np.log(x[:, 5]) + np.sin(3 * x[:, 3]) + x[:, 10] * x[:, 11]
    y = (signal > 0) ^ (rng.random(rows) < 0.1)
    return x, y.astype(np.int64)


def seconds(call: Any) -> tuple[float, Any]:
    """Seconds of a call, and its result."""
    begin = time.perf_counter()
    made = call()
    return time.perf_counter() - begin, made


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--engine", default="batched")
    parser.add_argument("--missing", type=float, default=0.0, help="share of the features that are missing")
    asked = parser.parse_args()
    x, y = table(asked.rows + 50_000, 0)
    holes = asked.missing > 0
    if holes:
        x[np.random.default_rng(1).random(x.shape) < asked.missing] = np.nan
    train, test = slice(0, asked.rows), slice(asked.rows, None)
    parts = np.array_split(np.arange(asked.rows), asked.sites)
    islands = Islands.from_datasets(
        {f"site-{i}": Dataset({"x": x[p], "y": y[p]}, missing_features=holes) for i, p in enumerate(parts)}
    )
    held = xgboost.DMatrix(x[test])

    def union(bins: int = 256) -> Any:
        rows = xgboost.QuantileDMatrix(x[train], y[train], max_bin=bins, nthread=os.cpu_count())
        settings = {"objective": "binary:logistic", "max_bin": bins, "nthread": os.cpu_count()}
        return xgboost.train(settings, rows, asked.rounds)

    def federated() -> Any:
        job = Trees(rounds=asked.rounds)
        return atoll.simulate(job, islands, engine=asked.engine, progress=False).outcome

    federated()  # compiles
    ours, theirs = [], []
    for _ in range(asked.runs):
        took, grown = seconds(federated)
        ours.append(took)
        took, booster = seconds(union)
        theirs.append(took)
    areas = [auc(y[test], union(bins).predict(held)) for bins in (256, 255, 254, 252)]
    found = {
        "rows": asked.rows, "sites": asked.sites, "rounds": asked.rounds, "engine": asked.engine, "runs": asked.runs,
        "missing": asked.missing,
        "seconds": statistics.median(ours), "xgboost": statistics.median(theirs),
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "auc": auc(y[test], grown.predict(x[test])), "auc_xgboost": auc(y[test], booster.predict(held)),
        "spread": max(areas) - min(areas),
    }  # fmt: skip
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
