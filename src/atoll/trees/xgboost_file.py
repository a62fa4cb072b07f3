"""XGBoost's model files: written without XGBoost, and read.

XGBoost, "Introduction to Model IO": a JSON document with a list of trees. What it does not need to predict (categories, statistics of deleted nodes) is empty.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .objectives import LOGISTIC, SOFTMAX, SQUARED
from .tree import Ensemble, Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["trees_of", "xgboost_model"]

_ROOT = 2147483647
_VERSION = [2, 1, 0]
"""The first version whose files newer ones read as they stand."""
_PARAMETERS: dict[str, dict[str, Any]] = {
    LOGISTIC: {"reg_loss_param": {"scale_pos_weight": "1"}},
    SQUARED: {"reg_loss_param": {"scale_pos_weight": "1"}},
    SOFTMAX: {"softmax_multiclass_param": {}},
}


def xgboost_model(ensemble: Ensemble) -> bytes:
    """The ensemble as an XGBoost model: ``xgboost.Booster(model_file="model.json")`` loads it.

    One number is XGBoost's base score. With several classes their margins before the first tree are in the leaves of the first trees.
    """
    objective, outputs = ensemble.objective, ensemble.objective.outputs
    several = outputs > 1
    first = {tree.group: t for t, tree in reversed(list(enumerate(ensemble.trees)))} if several else {}
    extra = {t: float(ensemble.base[group]) for group, t in first.items()}
    trees = [_tree(t, tree, len(ensemble.features), extra.get(t, 0.0)) for t, tree in enumerate(ensemble.trees)]
    parameters = _PARAMETERS[objective.name]
    if several:
        parameters = {"softmax_multiclass_param": {"num_class": str(outputs)}}
    starts = [0, *ensemble.rounds]
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": starts,
        "tree_info": [tree.group for tree in ensemble.trees],
        "trees": trees,
    }
    learner = {
        "attributes": {},
        "feature_names": list(ensemble.features),
        "feature_types": ["float"] * len(ensemble.features),
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": repr(ensemble.base_score),
            "boost_from_average": "1",
            "num_class": str(outputs if several else 0),
            "num_feature": str(len(ensemble.features)),
            "num_target": "1",
        },
        "objective": {"name": objective.name, **parameters},
    }
    return json.dumps({"learner": learner, "version": _VERSION}).encode()


def _tree(number: int, tree: Tree, features: int, extra: float) -> dict[str, Any]:
    n, inner = len(tree), tree.feature >= 0
    left = tree.left.astype(np.int64)
    parents = np.full(n, _ROOT, np.int64)
    for side in (0, 1):
        parents[left[inner] + side] = np.flatnonzero(inner)
    leaf = (tree.value + np.float32(extra)).astype(np.float32)
    nothing = [0] * n
    return {
        "base_weights": leaf.tolist(),
        "categories": [], "categories_nodes": [], "categories_segments": [], "categories_sizes": [],
        "default_left": tree.default_left.astype(int).tolist(),
        "id": number,
        "left_children": left.tolist(),
        "loss_changes": tree.gain.tolist(),
        "parents": parents.tolist(),
        "right_children": np.where(inner, left + 1, -1).tolist(),
        "split_conditions": np.where(inner, tree.threshold, leaf).astype(np.float32).tolist(),
        "split_indices": np.where(inner, tree.feature, 0).tolist(),
        "split_type": nothing,
        "sum_hessian": tree.hessian.tolist(),
        "tree_param": {"num_deleted": "0", "num_feature": str(features), "num_nodes": str(n), "size_leaf_vector": "1"},
    }  # fmt: skip


def trees_of(document: bytes) -> Sequence[Tree]:
    """The trees of an XGBoost model; children are numbered next to each other, in XGBoost's order."""
    model = json.loads(document)["learner"]["gradient_booster"]["model"]
    return [_read(tree, group) for tree, group in zip(model["trees"], model["tree_info"], strict=True)]


def _read(tree: dict[str, Any], group: int) -> Tree:
    left, right = tree["left_children"], tree["right_children"]
    order, children = [0], []
    for node in order:  # grows while it is walked
        if left[node] < 0:
            children.append(-1)
            continue
        children.append(len(order))
        order += [left[node], right[node]]
    at = np.array(order)
    inner = np.array(children) >= 0
    numbers = {
        name: np.array(tree[name], np.float32)[at]
        for name in ("split_conditions", "base_weights", "sum_hessian", "loss_changes")
    }
    return Tree(
        np.where(inner, np.array(tree["split_indices"])[at], -1).astype(np.int32),
        np.where(inner, numbers["split_conditions"], np.float32(0)),
        np.array(children, np.int32),
        np.where(inner, numbers["base_weights"], numbers["split_conditions"]),
        numbers["sum_hessian"],
        numbers["loss_changes"],
        np.array(tree["default_left"], np.bool_)[at] & inner,
        group,
    )
