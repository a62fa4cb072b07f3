"""Tokenised text: the dictionaries that tokenisers give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest

from ..dataset import Dataset

__all__ = ["from_tokens"]


@checked_call
def from_tokens(
    tokens: Mapping[str, Any],
    *,
    inputs: Sequence[str] = ("input_ids", "attention_mask"),
    target: str = "labels",
    ignore: int = -100,
    task: str | None = None,
    classes: int | None = None,
    labels: Sequence[str] = (),
    name: str = "text",
    citation: str = "",
) -> Dataset:
    """Make a data set from what a tokeniser gives, such as ``tokeniser(texts, padding=True, return_tensors="np")``, and the targets.

    The inputs are stacked in the column ``x``, int64 ``(rows, inputs, length)``, for a model in `atoll.torch.NamedInputs`. Targets ``(rows, length)``
    are a class for each token (``task="tokens"``): those that equal ``ignore`` have no label, and count neither in the loss nor in the accuracy.

    Args:
        tokens: maps a name to an array ``(rows, length)``, and the target to ``(rows,)`` or ``(rows, length)``; lists and tensors work too.
        inputs: the names that the model takes, in order.
        target: name of the targets; without such a key the rows are unlabelled.
        ignore: the target of tokens without a label, such as padding.
        task: see `Dataset`; inferred from the targets when omitted.
        classes: number of classes; inferred when omitted.
        labels: names of the classes.
        name: name of the data set.
        citation: its publication.

    Raises:
        DataError: an input is missing, not made of whole numbers, or its rows have unequal lengths.
    """
    where = f"tokens {name!r}"
    found = [_numbers(tokens, one, where) for one in inputs]
    shapes = {one: column.shape for one, column in zip(inputs, found, strict=True)}
    if len(set(shapes.values())) > 1:
        said = ", ".join(f"{one} {shape}" for one, shape in shapes.items())
        raise DataError(
            f"the inputs have different shapes: {said}", where=where, remedy="tokenise all of them together"
        )
    columns: dict[str, Any] = {"x": np.stack(found, axis=1)}
    if target in tokens:
        columns["y"] = np.asarray(tokens[target])
        if columns["y"].ndim == 2 and task in (None, "tokens"):
            task, there = "tokens", columns["y"] != ignore
            columns |= {"y": np.where(there, columns["y"], 0), "labelled": there}
    return Dataset(columns, task=task, classes=classes, labels=labels, name=name, citation=citation)


def _numbers(tokens: Mapping[str, Any], name: str, where: str) -> np.ndarray[Any, Any]:
    if name not in tokens:
        known = list(tokens)
        raise DataError(
            f"no key {name!r}.{nearest(name, known)}",
            where=where,
            remedy=f"name the model's inputs with inputs=[...]; the keys are {', '.join(map(str, known))}",
        )
    try:
        column = np.asarray(tokens[name])
    except ValueError:
        column = np.zeros(0, dtype=object)
    if column.dtype.kind == "O":
        raise DataError(
            f"{name!r} has rows of unequal length",
            where=where,
            remedy="tokenise with padding, as in tokeniser(texts, padding=True, truncation=True)",
        )
    if column.ndim != 2 or column.dtype.kind not in "iub":
        raise DataError(
            f"{name!r} has shape {column.shape} and type {column.dtype}",
            where=where,
            remedy="give whole numbers, one row for each text",
        )
    return column.astype(np.int64)
