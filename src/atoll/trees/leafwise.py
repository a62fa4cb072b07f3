"""A round of ``scheme="lightgbm"`` at one party: a tree that LightGBM grows leaf by leaf on the party's own rows, or on a sample of them by gradient.

Ke et al. 2017, "LightGBM: A Highly Efficient Gradient Boosting Decision Tree". All is in double precision, as in LightGBM: with one party and no samples, this is
ordinary LightGBM to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Parts
from atoll.core.extras import need
from atoll.core.requests.task import task
from atoll.data.missing import known_rows

from . import columns as C
from .bagging import margins_of, place_features
from .model_files import OBJECTIVES, lightgbm_trees
from .objectives import SOFTMAX, TreeLoss
from .parties import features_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["grow_leafwise", "one_side_sample"]


@task
def grow_leafwise(island: Any, message: dict[str, Any]) -> dict[str, Parts]:
    """The tree of one round at one party (one an output), and its number of rows as their weight."""
    lightgbm = need("lightgbm", "lightgbm", "Trees(scheme='lightgbm')", where="atoll.trees")
    data = known_rows(island.data, "trees")
    x = features_of(data).astype(np.float32, copy=False)
    objective = TreeLoss(message["objective"], int(message["outputs"]))
    targets = objective.targets(np.asarray(data["y"]))
    margin = margins_of(data, x, message, np.asarray(message["base"], np.float64))
    random = island.rng.generator()
    settings = {**message["settings"], "objective": OBJECTIVES[objective.name], "seed": int(random.integers(2**31))}
    if objective.name == SOFTMAX:
        settings["num_class"] = objective.outputs
    settings |= {"num_threads": 1, "deterministic": True, "force_row_wise": True, "verbosity": -1}
    weights = kept = None
    shares = tuple(float(share) for share in message["one_side"])
    if shares and int(message["round"]) >= 1 / settings["learning_rate"]:  # LightGBM begins to sample then, too
        kept, weights = one_side_sample(objective, margin, targets, shares, random)
    order = np.asarray(message["order"])
    rows = lightgbm.Dataset(
        x[:, order], targets, weight=weights, init_score=margin.squeeze(axis=1) if objective.outputs == 1 else margin,
        params={"verbosity": -1, "max_bin": settings["max_bin"]}, free_raw_data=False,
    )  # fmt: skip
    booster = lightgbm.train(settings, rows if kept is None else rows.subset(kept), 1)
    grown = lightgbm_trees(booster.model_to_string(), objective.outputs)
    made = C.appended(C.empty(exact=True), place_features(grown[: objective.outputs], order))
    return {"trees": Parts(made, examples=float(len(x)))}


def one_side_sample(
    objective: TreeLoss,
    margin: NDArray[np.float64],
    targets: NDArray[np.float64],
    shares: tuple[float, ...],
    random: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Gradient-based one-side sampling: the rows to keep, in order, and the weights of all rows.

    The ``top`` share of the rows with the largest ``sum of |g h|`` over the outputs is kept with weight 1, and of the others a random ``other`` share of all rows,
    with weight ``(1 - top) / other``: sums of gradients stay unbiased (Ke et al. 2017, algorithm 2; ``g h`` as LightGBM has it).

    Args:
        objective: the loss.
        margin: ``(rows, outputs)``.
        targets: ``(rows,)``.
        shares: ``(top, other)``.
        random: draws the others.
    """
    top, other = shares
    g, h = objective.gradients(margin.astype(np.float32), targets)
    order = np.argsort(-np.abs(g * h).sum(axis=1), kind="stable")
    most, few = max(1, int(top * len(order))), max(1, int(other * len(order)))
    rest = order[most:]
    drawn = random.choice(rest, min(few, len(rest)), replace=False)
    weights = np.ones(len(order))
    weights[drawn] = len(rest) / max(1, len(drawn))
    return np.sort(np.concatenate([order[:most], drawn])), weights
