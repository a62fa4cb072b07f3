"""The page of trees: how well they predict, how their probabilities come true, and which features they use, as plain data (`atoll.report.page`)."""

from __future__ import annotations

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
    rows = [[name, f"{100 * share:.2f} %"] for name, share in used]
    unused = len(ranked) - len(used)
    idle = f" {unused:,} of {len(ranked):,} features are not used." if unused else ""
    labels, shares = [name for name, _ in used[:_DRAWN]], [share for _, share in used[:_DRAWN]]
    picture = {
        "name": "importance",
        "kind": "bars",
        "flat": True,
        "labels": labels,
        "series": [{"name": "share of the gain", "values": shares}],
    }
    found: dict[str, Any] = {
        "title": "Importance",
        "text": f"The share of the gain of all splits that a feature's splits have.{idle}",
        "tables": [{"head": ["feature", "share"], "rows": rows}],
        "figures": [picture] if used else [],
    }
    tiles = [["trees", f"{len(outcome.trees):,}", outcome.library]]
    if used:
        tiles.append(["most important", used[0][0], f"{100 * used[0][1]:.1f} % of the gain"])
    if test is None:
        text = "The server has no test rows, so nothing here says how well the trees predict: give the job rows that no site trains on."
        return [{"title": "How well they predict", "text": text, "tables": [], "tiles": tiles}, found]
    predicted = outcome.predict(test["x"])
    name, value = score(objective, test["y"], predicted)
    tiles.insert(
        0,
        [
            f"test {_WORDS[name]}",
            f"{value:.4f}" if value == value else "-",
            f"{len(test):,} rows that no site trained on",
        ],
    )
    measured: dict[str, Any] = {
        "title": "How well they predict",
        "tables": [
            {"head": ["measure", "test rows"], "rows": [[_WORDS[name], f"{value:.4f}" if value == value else "-"]]}
        ],
        "tiles": tiles,
    }
    if objective.name == LOGISTIC:
        mean, came, count = calibration(np.asarray(test["y"]), predicted.reshape(len(test)))
        series = [{"name": "test rows", "x": mean.tolist(), "values": came.tolist()}]
        measured["figures"] = [
            {
                "name": "calibration",
                "kind": "lines",
                "diagonal": True,
                "bottom": 0.0,
                "x": "predicted probability",
                "series": series,
            }
        ]
        measured["tables"].append(
            {
                "head": ["predicted", "came true", "rows"],
                "rows": [[f"{a:.3f}", f"{b:.3f}", f"{n:,}"] for a, b, n in zip(mean, came, count, strict=True)],
            }
        )
    return [measured, found]


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
