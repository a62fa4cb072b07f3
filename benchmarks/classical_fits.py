"""Measures classical models over four sites against scikit-learn on all rows, alternately in one run.

    python benchmarks/classical_fits.py                     # 400,000 rows x 20 columns at 4 sites
    python benchmarks/classical_fits.py --rows 100000 --runs 3

All sites share this machine's cores, so a federation's time here is that of its sites one after the other, with what coordination adds: reading columns and checkpoints. Both do the
same work: Lloyd's iterations and EM from the same start, as many of them; ridge and logistic regression to the optimum; all components.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import atoll
import numpy as np
from atoll.data import DataTable
from atoll.fitting import GLM, PCA, Fit, GaussianMixture, KMeans, NaiveBayes, Ridge
from sklearn import cluster, decomposition, linear_model, mixture, naive_bayes

_ITERATIONS = 10


def rows_of(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in five clusters, and two classes."""
    draw = np.random.default_rng(0)
    centres = draw.normal(scale=3, size=(5, columns))
    x = centres[draw.integers(0, 5, rows)] + draw.normal(size=(rows, columns))
    return x, (x[:, :5].sum(axis=1) + draw.logistic(size=rows) > 0).astype(int)


def pairs(x: np.ndarray, y: np.ndarray) -> dict[str, tuple[Fit, Callable[[], Any]]]:
    """Name -> our job, and scikit-learn's fit."""
    names = [f"c{i}" for i in range(x.shape[1])]
    first = x[:5]
    diagonal = 1 / (x.var(axis=0) + 1e-6)

    def lloyd() -> Any:
        return cluster.KMeans(5, init=first, n_init=1, max_iter=_ITERATIONS, tol=0).fit(x)

    def em() -> Any:
        precisions = np.stack([np.diag(diagonal)] * 5)
        settings: dict[str, Any] = {"weights_init": np.full(5, 0.2), "means_init": first, "precisions_init": precisions}
        return mixture.GaussianMixture(5, max_iter=_ITERATIONS, tol=0, init_params="random", **settings).fit(x)

    def job(model: Any, rounds: int = 300, **more: Any) -> Fit:
        return Fit(model=model, columns=names, rounds=rounds, **more)

    return {
        "ridge": (Fit(model=Ridge(alpha=1.0), columns=names[1:], label="c0"), lambda: linear_model.Ridge(alpha=1.0).fit(x[:, 1:], x[:, 0])),
        "components": (job(PCA(components=5)), lambda: decomposition.PCA(5).fit(x)),
        "naive Bayes": (job(NaiveBayes(), label="y"), lambda: naive_bayes.GaussianNB().fit(x, y)),
        "logistic": (job(GLM(alpha=1.0), label="y"), lambda: linear_model.LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-8).fit(x, y)),
        f"k-means, {_ITERATIONS} iterations": (job(KMeans(clusters=5, centres=first.tolist()), _ITERATIONS), lloyd),
        f"mixture, {_ITERATIONS} iterations": (job(GaussianMixture(components=5, means=first.tolist(), tolerance=0.0), _ITERATIONS + 1), em),
    }  # fmt: skip


def seconds(run: Callable[[], Any]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main() -> None:
    """Print one line a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    x, y = rows_of(given.rows, given.columns)
    columns = {f"c{i}": x[:, i] for i in range(given.columns)} | {"y": y}
    whole = DataTable(columns)
    sites = {f"site-{k}": DataTable({n: whole[n][k::4] for n in whole.columns}) for k in range(4)}
    warnings.simplefilter("ignore")  # scikit-learn warns that a few iterations do not converge
    for name, (job, theirs) in pairs(x, y).items():
        both = [
            (seconds(lambda: atoll.simulate(job, sites, engine="inline", progress=False)), seconds(theirs))  # noqa: B023
            for _ in range(given.runs)
        ]
        ours, other = (statistics.median(column) for column in zip(*both, strict=True))
        print(f"{name:24} atoll {ours:7.3f} s   scikit-learn {other:7.3f} s   ratio {ours / other:5.2f}", flush=True)


if __name__ == "__main__":
    main()
