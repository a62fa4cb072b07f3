"""Boosting of forests: each party grows trees on its own rows with XGBoost, and the round's trees are added together.

Each party starts a round from the same ensemble, grows ``trees`` trees, and sends them. The server adds all of them, each scaled by the party's share of
the rows (``share="examples"``) or by one over the number of parties (``"equal"``): at full rate, ``N`` equal trees would overshoot ``N``-fold. With one
party this is ordinary boosting, to the bit. ``scheme="lightgbm"`` does the same with LightGBM, see `atoll.trees.leafwise`. A forest is one round of many trees at a rate of 1, grown on samples of rows and features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Parts
from atoll.core.algebra.rng import name_order
from atoll.core.extras import need
from atoll.core.requests.task import task
from atoll.data.missing import known_rows

from . import columns as C
from .histogram import first_guess
from .model_files import trees_of
from .objectives import TreeLoss
from .parties import PartyCache, features_of
from .tree import Ensemble, Tree, base_score

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation

    from .job import Trees
    from .tree import Scores

__all__ = ["grow_apart", "grow_trees", "margins_of", "place_features"]


@task
def grow_trees(island: Any, message: dict[str, Any]) -> dict[str, Parts]:
    """The trees of one round at one party, and its number of rows as their weight."""
    xgboost = need("xgboost", "trees", "Trees(scheme='bagging')", where="atoll.trees")
    data = known_rows(island.data, "trees")
    x, y = features_of(data), np.asarray(data["y"])
    objective = TreeLoss(message["objective"], int(message["outputs"]))
    order = np.asarray(message["order"])
    margins = margins_of(data, x, message, _start(message))
    rows = xgboost.DMatrix(x[:, order], objective.targets(y), base_margin=margins)
    settings = {**message["settings"], "objective": objective.name, "seed": int(island.rng.generator().integers(2**31))}
    if objective.outputs > 1:
        settings["num_class"] = objective.outputs
    booster = xgboost.train({**settings, "tree_method": "hist", "nthread": 1}, rows, 1)
    made = C.appended(C.empty(), place_features(trees_of(bytes(booster.save_raw("json"))), order))
    return {"trees": Parts(made, examples=float(len(x)))}


def place_features(trees: Iterable[Tree], order: NDArray[np.int64]) -> list[Tree]:
    """Return trees of a table whose columns were put into an order as trees of the table as it is.

    Args:
        trees: the trees.
        order: column ``k`` of theirs is column ``order[k]`` of the table.
    """
    return [
        replace(tree, feature=np.where(tree.feature < 0, -1, order[tree.feature]).astype(tree.feature.dtype))
        for tree in trees
    ]


async def grow_apart(
    fed: Federation, job: Trees, objective: TreeLoss, features: tuple[str, ...], scores: Scores
) -> Ensemble:
    """The program of ``scheme="bagging"``, ``"lightgbm"`` and ``"forest"``: the labels, then one contact a round."""
    leafwise = job.scheme == "lightgbm"
    asked = _leafwise() if leafwise else grow_trees
    state = await fed.restore({"base": None, "rows": 0, "trees": C.empty(exact=leafwise), "rounds": []})
    if state["base"] is None:
        base, rows = await first_guess(fed, job, objective)
        state = {**state, "base": base, "rows": rows}
        await fed.checkpoint(state)
    for number in range(len(state["rounds"]), job.most_rounds):
        if fed.ending:
            break
        message = {
            "objective": objective.name, "outputs": objective.outputs, "base": state["base"],
            "trees": state["trees"], "order": name_order(features),
            **({"settings": job.lightgbm_settings(), "one_side": job.one_side, "round": number} if leafwise else {"settings": job.xgboost_settings()}),
        }  # fmt: skip
        found = await fed.sum(fed.parties, asked, message, quorum=job.least, at=number)
        replies = list(found["trees"])
        weights = np.array([part.weight if job.share == "examples" else 1.0 for part in replies])
        shares = (weights / weights.sum()).astype(state["trees"]["value"].dtype)
        grown = [
            tree if share == 1 else _scaled(tree, share)
            for part, share in zip(replies, shares, strict=True)
            for tree in C.trees_in(part.value)
        ]
        trees = C.appended(state["trees"], grown)
        before = C.trees_in(state["trees"]) if scores.fresh else []
        state = {**state, "trees": trees, "rounds": [*state["rounds"], C.count(trees)]}
        fed.record({"trees": C.count(trees), "parties": len(replies), **scores.of(grown, state["base"], before)})
        await fed.checkpoint(state)
    rounds = [int(end) for end in state["rounds"]]
    library = "lightgbm" if leafwise else "xgboost"
    return Ensemble(objective, np.asarray(state["base"]), features, C.trees_in(state["trees"]), rounds, library)


def _leafwise() -> Any:
    from .leafwise import grow_leafwise

    return grow_leafwise


def _scaled(tree: Tree, share: Any) -> Tree:
    return replace(tree, value=tree.value * share)


@dataclass
class _Margins:
    base: bytes
    margin: NDArray[Any]
    trees: int
    digest: bytes


_KEPT: PartyCache[_Margins] = PartyCache()


def margins_of(data: Any, x: NDArray[Any], message: dict[str, Any], start: NDArray[Any]) -> NDArray[Any]:
    """The margins of a party's rows, ``(rows, outputs)``: those of its last round with the new trees added, if they are still in memory.

    Args:
        data: the party's rows.
        x: their features.
        message: of the round.
        start: the margins before the first tree, ``(outputs,)``, in the precision of all margins.
    """
    columns, base = message["trees"], np.asarray(message["base"])

    def fits(kept: _Margins) -> bool:
        same = kept.base == base.tobytes() and kept.margin.dtype == start.dtype and kept.trees <= C.count(columns)
        return same and kept.digest == C.digest(columns, kept.trees)

    def make() -> _Margins:
        return _Margins(base.tobytes(), np.tile(start, (len(x), 1)), 0, C.digest(columns, 0))

    kept = _KEPT.get(data, fits, make)
    rows = x.astype(np.float32, copy=False)
    for tree in C.trees_in(columns, kept.trees):
        kept.margin[:, tree.group] += tree.value[tree.leaves(rows)]
    kept.trees, kept.digest = C.count(columns), C.digest(columns, C.count(columns))
    return kept.margin


def _start(message: dict[str, Any]) -> NDArray[np.float32]:
    """The margins before the first tree as XGBoost finds them from the base score of the model file: the last bit can differ from ours."""
    base = np.asarray(message["base"])
    if len(base) > 1:
        return base.astype(np.float32)
    xgboost = need("xgboost", "trees", "Trees(scheme='bagging')", where="atoll.trees")
    objective = TreeLoss(message["objective"])
    settings = {"objective": objective.name, "base_score": base_score(objective, base)}
    one = xgboost.DMatrix(np.zeros((1, 1), np.float32), np.zeros(1))
    made: NDArray[np.float32] = xgboost.train(settings, one, 0).predict(one, output_margin=True)
    return made
