"""Short forms of symmetric matrices: the upper triangle, the largest eigenpairs, the largest entries; on NumPy and PyTorch alike."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

__all__ = ["Form", "restore", "shorten"]

Form = Literal["full", "rank", "top"]


def shorten(matrix: Any, form: Form, count: int) -> Tree:
    """Return a symmetric matrix ``(d, d)`` in a short form.

    Args:
        matrix: the matrix.
        form: ``"full"``: the upper triangle, ``d(d+1)/2`` floats. ``"rank"``: the ``count`` eigenpairs of largest magnitude, ``(d+1) count``
            floats: the nearest matrix of that rank. ``"top"``: the ``count`` entries of largest magnitude of the upper triangle, and their positions.
        count: see ``form``; not used by ``"full"``.
    """
    xp, d = T.namespace(matrix), matrix.shape[-1]
    if form == "rank":
        values, axes = xp.linalg.eigh(matrix)
        order = xp.argsort(-abs(values))[:count]
        return {"axes": axes[:, order], "values": values[order]}
    rows, columns = np.triu_indices(d)
    upper = matrix.reshape(-1)[rows * d + columns]
    if form == "full":
        return {"upper": upper}
    order = xp.argsort(-abs(upper))[:count]
    return {"places": order, "values": upper[order]}


def restore(short: Tree, d: int) -> Any:
    """Return the symmetric matrix ``(d, d)`` that a short form describes."""
    if "axes" in short:
        return (short["axes"] * short["values"]) @ short["axes"].T
    upper = short["upper"] if "upper" in short else _placed(short["places"], short["values"], d * (d + 1) // 2)
    rows, columns = np.triu_indices(d)
    place = np.zeros((d, d), dtype=np.int64)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return upper[place.reshape(-1)].reshape(d, d)


def _placed(places: Any, values: Any, count: int) -> Any:
    """Return a vector with these values at these positions, and zeros elsewhere."""
    xp = T.namespace(values)
    if xp is np:
        found = np.zeros(count, dtype=values.dtype)
        found[places] = values
        return found
    return values.new_zeros(count).scatter(0, places, values)
