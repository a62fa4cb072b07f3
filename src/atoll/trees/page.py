"""The page of trees: how well they predict, how their probabilities come true, and which features they use, as plain data (`atoll.report.page`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .objectives import LOGISTIC, TreeLoss
from .tree import Ensemble, score

__all__ = ["calibration", "sections_of"]

_DRAWN = 20
"""Most features of the picture."""
_BINS = 10
_WORDS = {"auc": "AUC", "rmse": "RMSE", "accuracy": "accuracy"}


def sections_of(outcome: Ensemble, objective: TreeLoss, test: Any) -> list[dict[str, Any]]:
    """The sections of the page.

    Args:
        outcome: the trees.
        objective: their loss.
        test: the server's test rows, or ``None``: then nothing says how well the trees predict.
    """
    ranked = sorted(outcome.importance().items(), key=lambda item: -item[1])
    used = [(name, share) for name, share in ranked if share > 0]
    tiles = [["trees", f"{len(outcome.trees):,}", outcome.library]]
    if used:
        tiles.append(["most important", used[0][0], f"{100 * used[0][1]:.1f} % of the gain"])
    measured = _measured(outcome, objective, test)
    return [{**measured, "tiles": [*measured.get("tiles", []), *tiles]}, _importance(used, len(ranked))]


def _measured(outcome: Ensemble, objective: TreeLoss, test: Any) -> dict[str, Any]:
    title = "How well they predict"
    if test is None:
        text = "The server has no test rows, so nothing here says how well the trees predict: give the job rows that no site trains on."
        return {"title": title, "text": text, "tables": []}
    predicted = outcome.predict(test["x"])
    name, value = score(objective, test["y"], predicted)
    shown = f"{value:.4f}" if np.isfinite(value) else "-"
    tables = [{"head": ["measure", "test rows"], "rows": [[_WORDS[name], shown]]}]
    made = {
        "title": title,
        "tables": tables,
        "tiles": [[f"test {_WORDS[name]}", shown, f"{len(test):,} rows that no site trained on"]],
    }
    if objective.name != LOGISTIC:
        return made
    mean, came, count = calibration(np.asarray(test["y"]), predicted.reshape(len(test)))
    rows = [[f"{a:.3f}", f"{b:.3f}", f"{n:,}"] for a, b, n in zip(mean, came, count, strict=True)]
    tables.append({"head": ["predicted", "came true", "rows"], "rows": rows})
    series = [{"name": "test rows", "x": mean.tolist(), "values": came.tolist()}]
    words = {"name": "calibration", "kind": "lines", "diagonal": True, "bottom": 0.0, "x": "predicted probability"}
    return {**made, "figures": [{**words, "series": series}]}


def _importance(used: Sequence[tuple[str, float]], features: int) -> dict[str, Any]:
    unused = features - len(used)
    idle = f" {unused:,} of {features:,} features are not used." if unused else ""
    labels, shares = [name for name, _ in used[:_DRAWN]], [share for _, share in used[:_DRAWN]]
    series = [{"name": "share of the gain", "values": shares}]
    picture = {"name": "importance", "kind": "bars", "flat": True, "labels": labels, "series": series}
    return {
        "title": "Importance",
        "text": f"The share of the gain of all splits that a feature's splits have.{idle}",
        "tables": [{"head": ["feature", "share"], "rows": [[name, f"{100 * share:.2f} %"] for name, share in used]}],
        "figures": [picture] if used else [],
    }


def calibration(
    y: NDArray[Any], predicted: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """The mean prediction, the share of class 1 and the rows of each tenth of [0, 1] that has rows.

    A prediction on a bin's edge is of the upper bin; 1 is of the last.
    """
    place = np.minimum((np.asarray(predicted, np.float64) * _BINS).astype(np.int64), _BINS - 1)
    count = np.bincount(place, minlength=_BINS)
    some = count > 0
    sums = [
        np.bincount(place, np.asarray(values, np.float64), _BINS)[some] for values in (predicted, np.asarray(y) > 0)
    ]
    return sums[0] / count[some], sums[1] / count[some], count[some]
