"""How labels go wrong, from counts of neighbours' labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["check_transition", "estimate_transition"]


def check_transition(transition: Any, where: str) -> NDArray[np.float64]:
    """Return a transition matrix as an array.

    Raises:
        ConfigError: it is not square, or a row is no distribution.
    """
    try:
        made = np.asarray(transition, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"transition is no matrix: {error}", where=where, remedy=_REMEDY) from error
    if made.ndim != 2 or made.shape[0] != made.shape[1]:
        raise ConfigError(f"transition of shape {made.shape}", where=where, remedy=_REMEDY)
    wrong = ~(np.isfinite(made).all(axis=1) & (made >= 0).all(axis=1) & (abs(made.sum(axis=1) - 1.0) < 1e-6))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ConfigError(f"row {row} of transition is {made[row].tolist()}", where=where, remedy=_REMEDY)
    return made


_REMEDY = "give C rows of C probabilities, row c those of the labels of class c; each row adds up to 1"


def estimate_transition(triples: Any, *, iterations: int = 200, tolerance: float = 1e-5) -> NDArray[np.float64]:
    """Return the most likely transition matrix ``T[c, y] = P(label y | class c)``, given the labels of rows and of their two nearest neighbours.

    A latent class model: of a row's hidden class ``c``, of prior ``pi_c``, its label has the distribution ``T[c]`` and each neighbour's ``M[c]``, which are
    independent given ``c``. ``M`` differs from ``T`` since a neighbour may be of another class. Expectation maximisation (Dawid and Skene 1979):

        ``q_c(r, s, t) ~ pi_c T[c, r] M[c, s] M[c, t]``, then ``T[c, r] ~ sum_st N[r, s, t] q_c(r, s, t)``, likewise ``M`` and ``pi``.

    Three independent labels identify the matrices up to the order of the classes (Kruskal 1977); the start, half of the labels right, gives the order in which a
    class's most frequent label is its own. It also counts as one row of each class, so that a class without rows keeps it.

    Args:
        triples: the counts ``N``, ``[C, C, C]``, from `atoll.labels.objectives.label_triples`.
        iterations: the largest number of iterations.
        tolerance: it ends once no entry moves by more.

    Returns:
        ``[C, C]``; the identity if nothing is counted.
    """
    counts = np.asarray(triples, dtype=np.float64)
    classes = len(counts)
    own, one, two = np.nonzero(counts > 0)
    if not len(own):
        return np.eye(classes)
    weights, labels = counts[own, one, two], np.eye(classes)
    start = 0.5 * labels + 0.5 / classes
    mine = near = start
    prior = np.full(classes, 1.0 / classes)
    for _ in range(iterations):
        shares = prior[:, None] * mine[:, own] * near[:, one] * near[:, two]
        shares *= weights / shares.sum(axis=0)
        prior = (shares.sum(axis=1) + 1.0) / (weights.sum() + classes)
        before, mine = mine, _rows(shares @ labels[own] + start)
        near = _rows(shares @ (labels[one] + labels[two]) + start)
        if np.abs(mine - before).max() < tolerance:
            break
    return mine


def _rows(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows that add up to 1."""
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))
