"""LightGBM's model files: written without LightGBM, and read.

A text of ``name=value`` lines, as LightGBM 4 writes it (``Booster.save_model``). It sends ``x <= threshold`` left, in double precision; a `Tree` sends ``x < threshold`` left,
so that thresholds here are the next larger numbers. A feature that no training row lacked counts as 0 where it is missing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from .objectives import LOGISTIC, SOFTMAX, SQUARED
from .tree import Ensemble, Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["OBJECTIVES", "lightgbm_model", "lightgbm_trees"]

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
    }  # fmt: skip
    first = {tree.group: t for t, tree in reversed(list(enumerate(ensemble.trees)))}
    trees = [
        f"Tree={t}\n{_lines(_section(tree, float(ensemble.base[tree.group]) if first[tree.group] == t else 0.0))}\n\n"
        for t, tree in enumerate(ensemble.trees)
    ]
    return "\n".join(["tree", _lines(header), "", *trees, "end of trees", ""]).encode()


def _lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}={value}" for name, value in values.items())


def _section(tree: Tree, extra: float) -> dict[str, Any]:
    inner = tree.feature >= 0
    # Inner nodes and leaves are numbered apart; a leaf's number is written as its complement.
    number = np.where(inner, np.cumsum(inner) - 1, ~(np.cumsum(~inner) - 1))
    left = tree.left[inner].astype(np.int64)
    made: dict[str, Any] = {"num_leaves": int((~inner).sum()), "num_cat": 0}
    if inner.any():
        made |= {
            "split_feature": _row(tree.feature[inner]),
            "split_gain": _row(tree.gain[inner]),
            "threshold": _row(np.nextafter(tree.threshold[inner].astype(np.float64), -np.inf)),
            "decision_type": _row(_NAN + _LEFT * tree.default_left[inner].astype(int)),
            "left_child": _row(number[left]),
            "right_child": _row(number[left + 1]),
        }
    weights = {"leaf_weight": _row(tree.hessian[~inner])} if inner.any() else {}
    return {**made, "leaf_value": _row(tree.value[~inner] + extra), **weights, "is_linear": 0, "shrinkage": 1}


def _row(values: Iterable[Any]) -> str:
    return " ".join(f"{float(value):.17g}" for value in values)


def lightgbm_trees(text: str, outputs: int = 1) -> Sequence[Tree]:
    """The trees of a LightGBM model, in double precision; children are numbered next to each other, a level at a time."""
    body = text.partition("end of trees")[0]
    sections = re.split(r"^Tree=\d+\n", body, flags=re.M)[1:]
    return [_read(section, t % outputs) for t, section in enumerate(sections)]


def _read(section: str, group: int) -> Tree:
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
        if splits:
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
