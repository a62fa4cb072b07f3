"""A trained model predicts the rows of tables: scores become classes and probabilities, and a made-again model shows that it is the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.tree import Tree
from atoll.core.errors import AtollError, CheckpointError
from atoll.data.model_columns import ModelColumns, RowPredictions, TableModel

from ..learner import Learner, SupportsScores, link_of

__all__ = ["columns_in", "metadata_of", "require_same_scores", "table_model_of"]

_COLUMNS, _LINK, _SCORES = "columns", "link", "scores"
"""Names in the metadata of ``model.safetensors``."""
_PROBABLE = ("softmax", "log", "probability")
"""Scores from which probabilities follow; see `atoll.learn.learner.SupportsLink`."""
_CLOSE, _FEW = 1e-4, 8
"""How near scores must be on another machine, and how many a file holds."""


def table_model_of(
    learner: Learner, params: Tree, columns: ModelColumns | None, title: str, metadata: Mapping[str, str] | None = None
) -> TableModel | None:
    """Return a trained model as one that predicts rows of tables; ``None`` if its learner has no scores, or its data no columns, or its parameters are several models.

    What the scores are says `atoll.learn.learner.SupportsLink`. The class is that of the largest score, or the sign of a single one says it.

    Args:
        learner: the learner.
        params: its parameters.
        columns: the columns that it was trained on.
        title: of the model.
        metadata: of a file that the model was read from: its loss may be known there alone.
    """
    if columns is None or not isinstance(learner, SupportsScores):
        return None
    found = _scores_of_two(learner, params, columns)  # first: a learner may learn from it what its scores are
    if found is None:
        return None
    link = (metadata or {}).get(_LINK, link_of(learner))
    classed = columns.task in ("classification", "binary") and link != "value"
    outputs = int(np.prod(found.shape[1:]))
    if classed and outputs > len(columns.classes):
        more = tuple(str(k) for k in range(len(columns.classes), outputs))
        columns = replace(columns, classes=(*columns.classes, *more))
    known = columns if classed else replace(columns, classes=())

    def answer(rows: Any, where: str) -> RowPredictions:
        matrix = known.matrix(rows, where)
        scores = np.asarray(learner.scores(params, matrix)) if len(matrix) else np.zeros_like(found[:0])
        if classed:
            return _classify(scores.reshape(len(scores), outputs), known, link)
        return RowPredictions(scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores)

    return TableModel(title, known, answer, classed and link in _PROBABLE)


def _classify(scores: NDArray[Any], columns: ModelColumns, link: str) -> RowPredictions:
    if scores.shape[1] == 1:
        place = (scores[:, 0] > (0.5 if link == "probability" else 0)).astype(np.int64)
        first = 1 - scores if link == "probability" else np.zeros_like(scores)
        scores = np.concatenate([first, scores], axis=1)
    else:
        place = scores.argmax(axis=1)
    if link not in _PROBABLE:
        return RowPredictions(columns.values[place])
    if link == "probability":
        return RowPredictions(columns.values[place], scores)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True) if link == "softmax" else scores)
    return RowPredictions(
        columns.values[place], weights / weights.sum(axis=1, keepdims=True) if link == "softmax" else weights
    )


def _scores_of_two(learner: SupportsScores, params: Tree, columns: ModelColumns) -> NDArray[Any] | None:
    """The scores of a row of zeros and a row of ones; ``None`` if the model cannot take such rows."""
    shape = columns.shape or (len(columns.features),)
    rows = np.stack([np.zeros(shape), np.ones(shape)]).astype(columns.dtype)
    try:
        with np.errstate(all="ignore"):
            one, two = (np.asarray(learner.scores(params, some)) for some in (rows[:1], rows))
            # Parameters of several models, stacked, give other shapes.
            return two if one.ndim and (len(one), len(two)) == (1, 2) else None
    except (AtollError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # the user's own code, which was made for other rows


def metadata_of(learner: Learner, params: Tree, columns: ModelColumns | None) -> dict[str, str]:
    """Return what a file of parameters says beside them: the columns, and the scores of two made-up rows."""
    if columns is None or not isinstance(learner, SupportsScores):
        return {}
    found = _scores_of_two(learner, params, columns)
    known = {_COLUMNS: columns.packed(), _LINK: link_of(learner)}
    if found is None or not np.isfinite(found).all():
        return known
    return {**known, _SCORES: json.dumps([float(f"{value:.6g}") for value in found.reshape(-1)[:_FEW].tolist()])}


def columns_in(metadata: Mapping[str, str], where: str) -> ModelColumns | None:
    """Return the columns that a file's metadata say; ``None`` without any.

    Raises:
        DataError: they cannot be read.
    """
    return ModelColumns.unpacked(metadata[_COLUMNS], where) if _COLUMNS in metadata else None


def require_same_scores(
    learner: Learner, params: Tree, columns: ModelColumns, metadata: Mapping[str, str], where: str
) -> None:
    """Refuse a model that was made again with the parameters of a file, and does not score as it did when the file was written.

    That happens if its code has changed, or if it has numbers that the file does not hold, such as frozen weights that it draws.

    Raises:
        CheckpointError: the scores of two made-up rows differ.
    """
    if _SCORES not in metadata or not isinstance(learner, SupportsScores):
        return
    told, found = np.array(json.loads(metadata[_SCORES])), _scores_of_two(learner, params, columns)
    same = found is not None and np.allclose(found.reshape(-1)[:_FEW], told, _CLOSE, _CLOSE)
    if not same:
        raise CheckpointError(
            "the model that its settings make is not the one that was trained: it scores other than it did",
            where=where,
            remedy="name the code that trained it with model='module:name'; numbers that training does not change, such as frozen weights, it must load itself",
        )
