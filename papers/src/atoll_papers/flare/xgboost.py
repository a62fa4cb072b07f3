"""NVIDIA FLARE, federated XGBoost: bags of trees and histograms, beside XGBoost on the union of the rows and each site alone.

Source: "NVIDIA FLARE: Federated Learning from Simulation to Real-World" (2022), section on federated machine learning. The paper describes tree-based boosting ("each client
grows one tree a round from the global forest; the server bags them") and names histogram boosting, whose federation "is distributed" training. It prints no numbers. We judge
what these sentences imply, on FATE's credit data and on generated rows with the form of HIGGS (28 features, two classes).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError
from atoll.core.extras import need
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.trees import Trees, model_file
from atoll.trees.tree import auc as area_under_curve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.data import Islands

__all__ = ["ENTRY", "higgs_like"]


_SITES, _CLOSE = 5, 0.001
_ORDERED = 8_000
"""Rows up to which the order does not matter to XGBoost."""
_ONE, _MANY = "", "Several sites"


@keeping_nothing("flare-xgboost")
def _run(quick: bool) -> list[Claim]:
    rows, rounds = (2_000, 6) if quick else (10_000, 25)
    sets, absent = {"HIGGS-like": higgs_like(rows, rows // 2, seed=0)}, list[Claim]()
    if not quick:
        try:
            sets = {"credit": _credit(), **sets}
        except DataError as error:
            absent = [Claim("the same on FATE's credit data", None, None, None, f"not run: {error.what}", _MANY)]
    claims = [claim for name, data in sets.items() for claim in _judged(name, data, rounds, 0.02 if quick else _CLOSE)]
    return claims + absent


Rows = tuple["NDArray[np.float32]", "NDArray[np.int64]", "NDArray[np.float32]", "NDArray[np.int64]"]


def higgs_like(train: int, test: int, seed: int) -> Rows:
    """Return training and test rows with the form of HIGGS: 21 features measured, of which 8 matter, and 7 that are functions of them.

    A row's class is drawn with the log-odds of products and squares, so that single features tell little and trees must combine them.
    """
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(train + test, 21))
    derived = np.stack(
        [x[:, 0] * x[:, 1], np.abs(x[:, 2]), np.hypot(x[:, 3], x[:, 4]), x[:, 5] ** 2, x[:, 6] - x[:, 7], np.sin(x[:, 0]),
         np.maximum(x[:, 1], x[:, 2])],
        axis=1,
    )  # fmt: skip
    odds = (
        1.2 * derived[:, 0] + 1.1 * (derived[:, 2] - 1.25) + 0.6 * (derived[:, 3] - 1.0) - 0.8 * derived[:, 4] * x[:, 2]
    )
    y = (draw.random(len(x)) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    whole = np.concatenate([x, derived + 0.1 * draw.normal(size=derived.shape)], axis=1).astype(np.float32)
    return whole[:train], y[:train], whole[train:], y[train:]


def _credit() -> Rows:
    """Return FATE's credit data, guest's and host's columns joined by id: 20,000 rows to train on, 10,000 to test."""
    from atoll.data import fate_vertical

    guest, host = fate_vertical("default_credit")
    mine, theirs = np.argsort(np.asarray(guest["id"])), np.argsort(np.asarray(host["id"]))
    x = np.concatenate([np.asarray(guest.x)[mine], np.asarray(host.x)[theirs]], axis=1).astype(np.float32)
    y = np.asarray(guest.y)[mine].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    return x[order[:20_000]], y[order[:20_000]], x[order[20_000:]], y[order[20_000:]]


def _islands(x: Any, y: Any, sites: int) -> Islands:
    from atoll.data import Dataset, Islands

    parts = np.array_split(np.arange(len(y)), sites)
    return Islands.from_datasets(
        {
            f"site-{k + 1}": Dataset({"x": x[part], "y": y[part]}, task="classification", classes=2)
            for k, part in enumerate(parts)
        }
    )


def _grown(islands: Islands, scheme: Any, rounds: int, **more: Any) -> Any:
    from atoll.simulation import simulate

    job = Trees(scheme=scheme, rounds=rounds, max_depth=5, eta=0.3, **more)
    return simulate(job, islands, engine="inline", progress=False).outcome


def _judged(name: str, data: Rows, rounds: int, close: float) -> list[Claim]:
    x, y, held, truth = data
    need("xgboost", "trees", "flare-xgboost")

    def auc(trees: Any) -> float:
        return float(area_under_curve(truth, trees.predict(held)))

    one = _grown(_islands(x, y, 1), "bagging", rounds)
    pooled, same = _xgboost(x, y, held, rounds, one)
    reference = float(area_under_curve(truth, pooled))
    gap = float(np.abs(same - pooled).max())
    sites = _islands(x, y, _SITES)
    histogram, bagging = auc(_grown(sites, "histogram", rounds, exact_cuts=True)), auc(_grown(sites, "bagging", rounds))
    agreed = auc(_grown(sites, "histogram", rounds, cuts=_cuts_of_xgboost(x, y)))
    alone = [auc(_grown(_islands(shard.x, shard.y, 1), "bagging", rounds)) for shard in sites]
    x1, y1 = x[:_ORDERED], y[:_ORDERED]
    few = _grown(_islands(x1, y1, _SITES), "histogram", rounds, exact_cuts=True)
    theirs = float(area_under_curve(truth, _xgboost(x1, y1, held, rounds, few)[0]))
    how = f"{rounds} rounds, depth 5, {_SITES} sites; AUC on {len(truth):,} other rows"
    where = f"{len(y):,} rows, {how}; XGBoost on the union has {reference:.4f}"
    return [
        Claim(f"bagging with one client is ordinary boosting: {name}", "equal", float(f"{gap:.2g}"), gap == 0.0,
              "the largest difference of a predicted probability from XGBoost's own; equal to the bit", _ONE),
        Claim(f"histograms of all sites make the trees of the union: {name}, {len(y1):,} rows", round(theirs, 6), round(auc(few), 6), abs(auc(few) - theirs) <= _CLOSE,
              f"within {_CLOSE:g} of AUC; up to 8,194 rows XGBoost's cuts do not depend on the order of the rows, and counting finds them; {how}", _MANY),
        Claim(f"histograms of all sites make the trees of the union: {name}, {len(y):,} rows", round(reference, 4), round(histogram, 4), abs(histogram - reference) <= close,
              f"within {close:g} of AUC; {where}", _MANY),
        Claim(f"with the cuts that XGBoost finds on the union, they are its trees: {name}", round(reference, 4), round(agreed, 4), abs(agreed - reference) <= close,
              f"within {close:g} of AUC; {where}", _MANY),
        Claim(f"bags of trees are better than the sites alone: {name}", f"more than {max(alone):.4f}", round(bagging, 4), bagging > max(alone),
              f"the best site alone; the mean of the sites is {np.mean(alone):.4f}; {where}", _MANY),
        Claim(f"histograms are better than bags of trees: {name}", f"more than {bagging:.4f}", round(histogram, 4), histogram > bagging,
              f"a bag's trees do not know each other; our expectation, the paper says nothing; {where}", _MANY),
    ]  # fmt: skip


def _cuts_of_xgboost(x: Any, y: Any) -> dict[str, list[float]]:
    """Return where XGBoost's bins begin, for each feature."""
    import xgboost  # type: ignore[import-not-found,unused-ignore]

    starts, values = xgboost.QuantileDMatrix(x, label=y, max_bin=256, nthread=1).get_quantile_cut()
    # The first and the last of a feature lie outside of its values.
    return {f"x{k}": values[a + 1 : b - 1].tolist() for k, (a, b) in enumerate(pairwise(starts))}


def _xgboost(x: Any, y: Any, held: Any, rounds: int, ours: Any) -> tuple[Any, Any]:
    """Return what XGBoost predicts that has seen all rows, and what it predicts with our file of trees."""
    import xgboost  # type: ignore[import-not-found,unused-ignore]

    settings = {"objective": "binary:logistic", "max_depth": 5, "eta": 0.3, "tree_method": "hist", "nthread": 1}
    booster = xgboost.train({**settings, "base_score": ours.base_score}, xgboost.DMatrix(x, label=y), rounds)
    read = xgboost.Booster()
    read.load_model(bytearray(model_file(ours)))
    named = xgboost.DMatrix(held, feature_names=list(ours.features))
    return booster.predict(xgboost.DMatrix(held)), read.predict(named)


ENTRY = Entry(
    name="flare-xgboost",
    title="NVIDIA FLARE: XGBoost by bags of trees and by histograms, beside the union of the rows",
    source="NVIDIA FLARE: Federated Learning from Simulation to Real-World (2022), section on federated machine learning",
    run=_run,
)
