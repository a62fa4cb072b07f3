"""How fast a method closes the gap to a known optimum: problems that show an order, and slopes fitted to runs.

On strongly convex problems of a few scales gradient methods converge linearly, whatever weaker rate is claimed, and no
order in rounds can be seen. `wide` has curvatures of many scales, log-uniform: then gradient descent closes the gap as
``1/R`` and an accelerated method as ``1/R^2``, from the first rounds to those of the smallest curvature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.models.quadratic import Quadratic, minimiser, quadratics

if TYPE_CHECKING:
    from atoll.data import Islands

__all__ = ["alike", "ends", "evenness", "floor", "gaps", "order", "slope", "slopes", "wide", "with_mean"]

Array = np.ndarray[Any, np.dtype[Any]]


def wide(dim: int = 40, least: float = 1e-5, clients: int = 4, *, apart: bool = True, bent: bool = True) -> Islands:
    """Return diagonal quadratics whose mean has curvatures log-uniform in ``[least, 1]`` and its minimum at ones.

    Args:
        dim: dimensions.
        least: smallest curvature.
        clients: of them.
        apart: minima differ from client to client.
        bent: curvatures differ too, by a factor of about 1.6, so that local steps drift.
    """
    draw, values = np.random.default_rng(0), np.logspace(np.log10(least), 0.0, dim)
    shares = np.exp(0.5 * bent * draw.normal(size=(clients, dim)))
    shares /= shares.mean(axis=0)
    off = float(apart) * draw.normal(size=(clients, dim))
    off -= (shares * off).mean(axis=0)
    return _islands([np.diag(values * share) for share in shares], values * shares * (1.0 + off))


def alike(clients: int, dim: int = 100) -> Islands:
    """Return the same quadratic at every client, with curvatures evenly from 0.1 to 1: the remaining gap is noise."""
    values, target = np.linspace(0.1, 1.0, dim), np.random.default_rng(0).normal(size=dim)
    return _islands([np.diag(values)] * clients, [values * target * np.sqrt(20 / dim)] * clients)


def with_mean(clients: int, dim: int) -> Islands:
    """Return the suite's quadratics, fewer and smaller."""
    made = quadratics(clients, dim)
    shards = [made.shard(k) for k in range(clients)]
    return _islands([np.asarray(s.x) for s in shards], [np.asarray(s.y) for s in shards])


def _islands(matrices: Sequence[Array], targets: Sequence[Array] | Array) -> Islands:
    """Return clients, with their mean as the server's test set: its loss is the objective."""
    from atoll.data import Dataset, Islands

    made = [Dataset({"x": x, "y": y}, task="regression") for x, y in zip(matrices, targets, strict=True)]
    mean = Dataset({"x": np.mean(matrices, axis=0), "y": np.mean(targets, axis=0)}, task="regression")
    return Islands.from_datasets({f"client-{k}": part for k, part in enumerate(made)}, test=mean)


def gaps(algorithm: Any, islands: Islands, rounds: int, noise: float = 0.0) -> Array:
    """Return ``f - f*`` after each round, with all clients in each; ``noise`` as in `Quadratic`."""
    import atoll

    model = Quadratic(len(islands.shard(0)), noise)
    job = atoll.Training(model=model, algorithm=algorithm, selection=atoll.Everyone(), rounds=rounds)
    seen = atoll.simulate(job, islands, engine="inline", seed=0).metrics.column("test/loss")
    return np.asarray(seen, dtype=np.float64) - minimiser(islands)[1]


def slope(x: Sequence[float] | Array, y: Sequence[float] | Array) -> float:
    """Return the slope of the least-squares line through ``(x, log y)``."""
    return float(np.polyfit(np.asarray(x, np.float64), np.log(np.asarray(y, np.float64)), 1)[0])


def order(values: Array, first: int = 10) -> float:
    """Return ``p`` in ``gap ~ R^p``, from round ``first`` on; rounds whose gap is lost in rounding do not count."""
    kept = np.flatnonzero(values > 1e-12 * values[0])
    rounds = kept[kept >= first - 1]
    return slope(np.log(rounds + 1.0), values[rounds])


def evenness(rounds: Sequence[int], values: Sequence[float] | Array) -> float:
    """Return the decrease of the logarithm per round between the last two of three points, over that between the first two: 1 if linear, less if slower."""
    fallen = -np.diff(np.log(np.asarray(values, np.float64))) / np.diff(rounds)
    return float(fallen[1] / fallen[0])


def ends(make: Callable[[int], Any], islands: Islands, settings: Sequence[int], rounds: int) -> float:
    """Return ``p`` in ``gap ~ s^p`` after the same rounds, over settings ``s``, such as local steps."""
    return slope(np.log(settings), [gaps(make(s), islands, rounds)[-1] for s in settings])


def floor(make: Callable[[int], Any], rounds: int, clients: int) -> float:
    """Return the mean gap of the second half of a run with gradient noise of deviation 1."""
    return float(gaps(make(rounds), alike(clients), rounds, noise=1.0)[rounds // 2 :].mean())


def slopes(make: Callable[[float], Any], settings: Sequence[float], islands: Islands, first: int, last: int) -> float:
    """Return ``p`` in ``r ~ s^p`` for the decrease ``r`` of the logarithm of the gap per round, over settings ``s``, such as step sizes."""
    rounds = np.arange(first, last + 1)
    found = [-slope(rounds, gaps(make(s), islands, last)[first - 1 :]) for s in settings]
    return slope(np.log(settings), found)
