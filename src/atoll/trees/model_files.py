"""Files of models: XGBoost's JSON and LightGBM's text, written and read.

LightGBM's model files: written without LightGBM, and read.

A text of ``name=value`` lines, as LightGBM 4 writes it (``Booster.save_model``). It sends ``x <= threshold`` left, in double precision; a `Tree` sends ``x < threshold`` left,
so that thresholds here are the next larger numbers. A feature that no training row lacked counts as 0 where it is missing.

XGBoost's model files: written without XGBoost, and read.

XGBoost, "Introduction to Model IO": a JSON document with a list of trees. What it does not need to predict (categories, statistics of deleted nodes) is empty.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError
from atoll.data.model_columns import ModelColumns

from .objectives import LOGISTIC, SOFTMAX, SQUARED, TreeLoss
from .tree import Ensemble, Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "OBJECTIVES",
    "ensemble_of",
    "lightgbm_model",
    "lightgbm_trees",
    "model_file",
    "model_file_name",
    "trees_of",
    "xgboost_model",
]


_OWN = "atoll"
"""Where a file holds `ModelColumns`: an attribute of XGBoost's, a line of LightGBM's header. Both libraries pass over it."""


# LightGBM's model files: written without LightGBM, and read.


OBJECTIVES = {LOGISTIC: "binary", SQUARED: "regression", SOFTMAX: "multiclass"}
"""LightGBM's names of the losses."""

_LEFT, _KIND, _NAN = 2, 12, 8
"""Bits of a decision: missing rows go left; what counts as missing; NaN does."""


def lightgbm_model(ensemble: Ensemble) -> bytes:
    """The ensemble as a LightGBM model: ``lightgbm.Booster(model_file="model.txt")`` loads it.

    The margins before the first tree are in the leaves of the first tree of each output, as where LightGBM boosts from the average.
    """
    objective, outputs = ensemble.objective, ensemble.objective.outputs
    more = {LOGISTIC: " sigmoid:1", SOFTMAX: f" num_class:{outputs}", SQUARED: ""}[objective.name]
    names = [re.sub(r"[\s,:\[\]{}\"]", "_", name) for name in ensemble.features]
    header = {
        "version": "v4", "num_class": outputs, "num_tree_per_iteration": outputs, "label_index": 0,
        "max_feature_idx": len(names) - 1, "objective": OBJECTIVES[objective.name] + more,
        "feature_names": " ".join(names), "feature_infos": " ".join(["none"] * len(names)),
        **({_OWN: ensemble.columns.packed()} if ensemble.columns else {}),
    }  # fmt: skip
    first = {tree.group: t for t, tree in reversed(list(enumerate(ensemble.trees)))}
    trees = [
        f"Tree={t}\n{_format_lines(_section_of_tree(tree, float(ensemble.base[tree.group]) if first[tree.group] == t else 0.0))}\n\n"
        for t, tree in enumerate(ensemble.trees)
    ]
    return "\n".join(["tree", _format_lines(header), "", *trees, "end of trees", ""]).encode()


def _format_lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}={value}" for name, value in values.items())


def _section_of_tree(tree: Tree, extra: float) -> dict[str, Any]:
    inner = tree.feature >= 0
    # Inner nodes and leaves are numbered apart; a leaf's number is written as its complement.
    number = np.where(inner, np.cumsum(inner) - 1, ~(np.cumsum(~inner) - 1))
    left = tree.left[inner].astype(np.int64)
    made: dict[str, Any] = {"num_leaves": int((~inner).sum()), "num_cat": 0}
    if inner.any():
        made |= {
            "split_feature": _format_row(tree.feature[inner]),
            "split_gain": _format_row(tree.gain[inner]),
            "threshold": _format_row(np.nextafter(tree.threshold[inner].astype(np.float64), -np.inf)),
            "decision_type": _format_row(_NAN + _LEFT * tree.default_left[inner].astype(int)),
            "left_child": _format_row(number[left]),
            "right_child": _format_row(number[left + 1]),
        }
    weights = {"leaf_weight": _format_row(tree.hessian[~inner])} if inner.any() else {}
    return {**made, "leaf_value": _format_row(tree.value[~inner] + extra), **weights, "is_linear": 0, "shrinkage": 1}


def _format_row(values: Iterable[Any]) -> str:
    return " ".join(f"{float(value):.17g}" for value in values)


def lightgbm_trees(text: str, outputs: int = 1) -> Sequence[Tree]:
    """The trees of a LightGBM model, in double precision; children are numbered next to each other, a level at a time."""
    body = text.partition("end of trees")[0]
    sections = re.split(r"^Tree=\d+\n", body, flags=re.M)[1:]
    return [_read_section(section, t % outputs) for t, section in enumerate(sections)]


def _read_section(section: str, group: int) -> Tree:
    given = dict(line.split("=", 1) for line in section.splitlines() if "=" in line)
    numbers = {name: np.array(value.split(), np.float64) for name, value in given.items()}
    splits = int(given["num_leaves"]) - 1
    left, right = (numbers.get(name, np.zeros(0)).astype(np.int64) for name in ("left_child", "right_child"))
    order, children = [0 if splits else -1], list[int]()
    for node in order:  # grows while it is walked
        if node < 0:
            children.append(-1)
            continue
        children.append(len(order))
        order += [int(left[node]), int(right[node])]
    at, places = np.array(order), np.array(children)
    inner = at >= 0

    def column(name: str, leaves: str = "") -> Any:
        made = np.zeros(len(at))
        if splits and name in numbers:  # what our own files leave out is not needed to predict
            made[inner] = numbers[name][at[inner]]
        if leaves in numbers and len(numbers[leaves]):
            made[~inner] = numbers[leaves][~at[~inner]]
        return made

    threshold, kind = column("threshold"), column("decision_type").astype(np.int64)
    default = np.where(kind & _KIND == _NAN, kind & _LEFT > 0, threshold >= 0)
    return Tree(
        np.where(inner, column("split_feature"), -1).astype(np.int32),
        np.where(inner, np.nextafter(threshold, np.inf), 0.0),
        places.astype(np.int32),
        column("internal_value", "leaf_value"),
        column("internal_weight", "leaf_weight"),
        column("split_gain"),
        default & inner,
        group,
    )


# XGBoost's model files: written without XGBoost, and read.


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
    trees = [_json_of_tree(t, tree, len(ensemble.features), extra.get(t, 0.0)) for t, tree in enumerate(ensemble.trees)]
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
        "attributes": {_OWN: ensemble.columns.packed()} if ensemble.columns else {},
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


def _json_of_tree(number: int, tree: Tree, features: int, extra: float) -> dict[str, Any]:
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
    return [_read_json_tree(tree, group) for tree, group in zip(model["trees"], model["tree_info"], strict=True)]


def _read_json_tree(tree: dict[str, Any], group: int) -> Tree:
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


def model_file(ensemble: Ensemble) -> bytes:
    """The ensemble as a model of its library.

    ``xgboost.Booster(model_file="model.json")`` loads it; if LightGBM grew the trees, ``lightgbm.Booster(model_file="model.txt")`` does.
    """
    return lightgbm_model(ensemble) if ensemble.library == "lightgbm" else xgboost_model(ensemble)


def model_file_name(library: str) -> str:
    """The usual name of such a file."""
    return "model.txt" if library == "lightgbm" else "model.json"


def ensemble_of(document: bytes, where: str) -> Ensemble:
    """Read a model file of XGBoost or LightGBM, of which `model_file` is the inverse to within rounding.

    Args:
        document: the content of the file.
        where: its name, for errors.

    Raises:
        DataError: the file is something else, or has an objective that is not one of ours.
    """
    try:
        return _read_xgboost(document, where) if document.lstrip()[:1] == b"{" else _read_lightgbm(document, where)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"no trees can be read: {type(error).__name__} {error}",
            where=where,
            remedy="give a model file of atoll trees, of XGBoost (JSON) or of LightGBM (text)",
        ) from error


def _read_xgboost(document: bytes, where: str) -> Ensemble:
    learner = json.loads(document)["learner"]
    named, told = learner["objective"]["name"], learner["learner_model_param"]
    objective = _require_objective(named, max(1, int(told["num_class"])), where)
    # One number; from XGBoost 3 on a list, with a number for each class.
    score = np.array([float(one) for one in str(told["base_score"]).strip("[]").split(",")])
    logistic = objective.name == LOGISTIC
    base = np.broadcast_to(np.log(score / (1 - score)) if logistic else score, objective.outputs).astype(np.float64)
    width = int(told["num_feature"])
    names = tuple(learner.get("feature_names") or (f"x{k}" for k in range(width)))
    trees = trees_of(document)
    return Ensemble(
        objective, base, names, trees, (len(trees),), "xgboost", _read_columns(learner["attributes"], where)
    )


def _read_lightgbm(document: bytes, where: str) -> Ensemble:
    text = document.decode()
    header = dict(line.split("=", 1) for line in text.partition("Tree=")[0].splitlines() if "=" in line)
    ours = {theirs: name for name, theirs in OBJECTIVES.items()}
    outputs = int(header["num_tree_per_iteration"])
    objective = _require_objective(ours.get(header["objective"].split()[0], ""), outputs, where)
    trees, columns = lightgbm_trees(text, outputs), _read_columns(header, where)
    names = columns.features if columns else tuple(header["feature_names"].split())
    return Ensemble(objective, np.zeros(outputs), names, trees, (len(trees),), "lightgbm", columns)


def _require_objective(name: str, outputs: int, where: str) -> TreeLoss:
    if name not in OBJECTIVES:
        raise DataError(
            f"the trees have the objective {name!r}", where=where, remedy=f"give trees of {', '.join(OBJECTIVES)}"
        )
    return TreeLoss(name, outputs if name == SOFTMAX else 1)


def _read_columns(told: Mapping[str, Any], where: str) -> ModelColumns | None:
    return ModelColumns.unpacked(str(told[_OWN]), where) if _OWN in told else None
