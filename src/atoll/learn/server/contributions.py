"""What each client contributed to a round: Shapley values of cached updates, and cheaper measures.

In the game of a round, a set of clients is worth what the model gains if only their updates are averaged. Nothing is trained again: the round's updates
are reused. The Shapley value is the only division of the gain that distributes all of it, treats equal clients equally, gives nothing to clients that add nothing, and
adds up over rounds (Shapley 1953). It is exact in ``2^n`` evaluations, or estimated by random orders of arrival, each truncated when the missing worth is small
(truncated Monte Carlo, Ghorbani and Zou 2019).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import ConfigError

__all__ = ["Game", "alignment", "exact_shapley", "leave_one_out", "round_game", "truncated_shapley"]

Floats = NDArray[np.float64]
Game = Callable[[tuple[int, ...]], float]
"""Returns the worth of a set of clients, given as their sorted indices; the set may be empty."""
_EXACT = 16


def round_game(model: ArrayLike, updates: ArrayLike, weights: ArrayLike, utility: Callable[[Floats], float]) -> Game:
    """Return the game of a round, which computes every worth once.

    ``v(A) = utility(w + sum_{i in A} p_i u_i / sum_{i in A} p_i) - utility(w)``.

    Args:
        model: ``w``, ``(d,)``.
        updates: ``u_i``, ``(clients, d)``.
        weights: ``p_i > 0``, ``(clients,)``.
        utility: the quality of a model: accuracy, or negative loss, on the server's own data.

    Raises:
        ConfigError: the shapes do not match, or a weight is not positive.
    """
    start, moves = np.asarray(model, dtype=np.float64), np.asarray(updates, dtype=np.float64)
    shares = np.asarray(weights, dtype=np.float64)
    if moves.ndim != 2 or moves.shape[1:] != start.shape or shares.shape != moves.shape[:1] or not (shares > 0).all():
        raise ConfigError(
            f"model {start.shape}, updates {moves.shape}, weights {shares.shape}",
            where="round_game",
            remedy="give (d,), (clients, d) and (clients,), with positive weights",
        )
    known: dict[tuple[int, ...], float] = {(): 0.0}
    before = utility(start)

    def worth(clients: tuple[int, ...]) -> float:
        if clients not in known:
            chosen = list(clients)
            known[clients] = utility(start + shares[chosen] @ moves[chosen] / shares[chosen].sum()) - before
        return known[clients]

    return worth


def exact_shapley(game: Game, clients: int) -> Floats:
    """Return ``phi_i = sum_A |A|! (n - |A| - 1)! / n! (v(A + i) - v(A))`` over all sets without i.

    Raises:
        ConfigError: there are more than 16 clients.
    """
    if clients > _EXACT:
        raise ConfigError(
            f"{clients} clients are {2.0**clients:.3g} sets", where="exact_shapley", remedy="use truncated_shapley"
        )
    found = np.zeros(clients)
    for size in range(clients):
        share = math.factorial(size) * math.factorial(clients - size - 1) / math.factorial(clients)
        for others in itertools.combinations(range(clients), size):
            for client in sorted(set(range(clients)) - set(others)):
                found[client] += share * (game(tuple(sorted((*others, client)))) - game(others))
    return found


def truncated_shapley(
    game: Game, clients: int, rng: np.random.Generator, *, orders: int = 100, tolerance: float = 0.0
) -> tuple[Floats, Floats]:
    """Estimate Shapley values by random orders of arrival.

    An order ends, with nothing for later clients, once the worth so far is within ``tolerance`` of that of all clients. With
    tolerance 0, the estimate is unbiased, and each order distributes the whole worth.

    Args:
        game: see `round_game`.
        clients: number of clients.
        rng: the random stream of the orders.
        orders: number of orders, at least 2.
        tolerance: absolute tolerance.

    Returns:
        The estimates, and the standard error of each, ``(clients,)``.

    Raises:
        ConfigError: ``orders`` is below 2, or the tolerance is negative.
    """
    if orders < 2 or tolerance < 0:
        raise ConfigError(
            f"orders={orders}, tolerance={tolerance}",
            where="truncated_shapley",
            remedy="use at least 2 orders and a tolerance of at least 0",
        )
    whole, gains = game(tuple(range(clients))), np.zeros((orders, clients))
    for order in range(orders):
        before, present = game(()), []
        for client in rng.permutation(clients).tolist():
            if tolerance and abs(whole - before) <= tolerance:
                break
            present.append(client)
            now = game(tuple(sorted(present)))
            gains[order, client], before = now - before, now
    return gains.mean(0), gains.std(0, ddof=1) / math.sqrt(orders)


def leave_one_out(game: Game, clients: int) -> Floats:
    """Return ``v(N) - v(N - i)``: the loss of worth without each client, in ``n + 1`` evaluations. Of two equal clients, neither is missed."""
    everyone = tuple(range(clients))
    return np.array([game(everyone) - game(everyone[:i] + everyone[i + 1 :]) for i in everyone])


def alignment(updates: ArrayLike, weights: ArrayLike) -> Floats:
    """Return ``<u_i, U> / (|u_i| |U|)`` with ``U`` the weighted mean update: without any evaluation; 0 for an update of zeros.

    Args:
        updates: ``(clients, d)``.
        weights: ``(clients,)``.
    """
    moves, shares = np.asarray(updates, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    mean = shares @ moves / shares.sum()
    norms = np.linalg.norm(moves, axis=1) * np.linalg.norm(mean)
    return np.asarray(np.divide(moves @ mean, norms, out=np.zeros(len(moves)), where=norms > 0))
