"""Weights by what each client contributed: Shapley values of cached updates, and cheaper measures.

In the game of a round, a set of clients is worth what the model gains if only their updates are averaged. Nothing is trained again: the round's updates
are reused. The Shapley value is the only division of the gain that distributes all of it, treats equal clients equally, gives nothing to clients that add nothing, and
adds up over rounds (Shapley 1953). It is exact in ``2^n`` evaluations, or estimated by random orders of arrival, each truncated when the missing worth is small
(truncated Monte Carlo, Ghorbani and Zou 2019).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean, Part
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.results import Combined

from ..algorithm import Algorithm, RoundInfo
from ..wrapped import dry_reply
from .base import ONE_BY_ONE, Aggregation
from .keep_local import SingleReplies

__all__ = ["Valued", "alignment", "exact_shapley", "leave_one_out", "round_game", "truncated_shapley"]


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


# ---------------------------------------------------------------- the mean over the clients that replied


_MEASURES = ("aligned", "missing", "shapley")


@dataclass(frozen=True)
class Valued(Aggregation):
    """`Renormalised`, plus ``contributions`` in every round's row: name of each client in the mean -> its value; see `atoll.learn.aggregation.valued`.

    The game uses only the mean update ``u(A)`` of a set of clients. Its worth is how much lower the loss of ``w + u(A)`` is than that of ``w``
    on the server's own test rows, whatever the algorithm's server does with the mean. Training does not depend on it.

    The server holds all replies of a round at once and must see them, so a secure reducer refuses this operator.

    Attributes:
        measure: ``"aligned"``: the cosine between a client's update and the mean, which needs no rows; ``"missing"``: the loss of worth without it,
            one evaluation per client; ``"shapley"``: exact for up to 10 clients, from random orders of arrival above, ``orders`` times as many evaluations.
        orders: number of orders of arrival, at least 2.
    """

    measure: Literal["aligned", "missing", "shapley"] = "aligned"
    orders: int = 20

    def __post_init__(self) -> None:
        if self.measure not in _MEASURES or self.orders < 2:
            raise ConfigError(
                f"measure={self.measure!r}, orders={self.orders}",
                where="Valued",
                remedy=f"use one of {', '.join(_MEASURES)}, and at least 2 orders",
            )

    def check_rows(self, there: bool) -> None:
        """Refuse a measure that evaluates models if there are no test rows."""
        if self.measure != "aligned" and not there:
            raise self._no_rows()

    def _no_rows(self) -> ConfigError:
        return ConfigError(
            f"measure={self.measure!r} evaluates models, but the server has no test rows",
            where="aggregation=Valued",
            remedy="use measure='aligned', or a data set with test rows",
        )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and single replies."""
        return (*super().needs, *ONE_BY_ONE)

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with its update as a single reply."""
        return SingleReplies(base=base)

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse an algorithm without a mean update of the model."""
        if not isinstance(dry_reply(base, params).get("update"), Mean):
            raise CompositionError(
                f"{type(base).__name__} does not reply with the mean update of a model, of which Valued could value the parts",
                where="aggregation=Valued",
                remedy="use Renormalised, or an algorithm such as FedAvg",
            )

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return the mean update; single updates are kept until they are valued."""
        if combined.kinds.get("update") != "parts":
            return combined.value, memory
        parts: list[Part] = combined.value["update"]
        whole, mean = sum(float(part.weight) for part in parts) or 1.0, T.scale(parts[0].value, 0.0)
        for part in parts:
            mean = T.add(mean, T.scale(part.value, float(part.weight) / whole))
        return {**combined.value, "update": mean}, {"params": params, "parts": parts, "round": info.round}

    def measured(
        self, memory: Tree, utility: Callable[[Tree], float] | None, name: Callable[[int], str]
    ) -> tuple[dict[str, Any], Tree]:
        """Return each client's contribution, and an empty memory."""
        if memory is None:
            return {}, None
        parts: list[Part] = memory["parts"]
        weights, values = np.array([float(part.weight) for part in parts]), np.zeros(len(parts))
        counts = np.flatnonzero(weights > 0)  # a client without examples contributes nothing
        if len(counts):
            moves, weights = np.stack([_flat(parts[i].value) for i in counts]), weights[counts]
            aligned = self.measure == "aligned"
            values[counts] = alignment(moves, weights) if aligned else self._play_game(memory, moves, weights, utility)
        return {"contributions": {name(part.sender): float(v) for part, v in zip(parts, values, strict=True)}}, None

    def _play_game(self, memory: Tree, moves: Any, weights: Any, utility: Callable[[Tree], float] | None) -> Any:
        if utility is None:
            raise self._no_rows()
        params = memory["params"]
        game = round_game(_flat(params), moves, weights, lambda w: utility(_shape_tree(w, params)))
        if self.measure == "missing":
            return leave_one_out(game, len(moves))
        if len(moves) <= 10:
            return exact_shapley(game, len(moves))
        rng = Rng(0).child("contributions", memory["round"]).generator()
        return truncated_shapley(game, len(moves), rng, orders=self.orders)[0]


def _flat(tree: Tree) -> Any:
    return np.concatenate([np.ravel(np.asarray(leaf, dtype=np.float64)) for _, leaf in sorted(T.items(tree))])


def _shape_tree(vector: Any, like: Tree) -> Tree:
    """Return the inverse of ``_flat``, in the form and types of a tree."""
    left = iter(np.split(vector, np.cumsum([np.size(leaf) for _, leaf in sorted(T.items(like))])[:-1]))
    leaves = {
        path: next(left).reshape(np.shape(leaf)).astype(np.asarray(leaf).dtype) for path, leaf in sorted(T.items(like))
    }
    return T.rebuild(like, [leaves[path] for path, _ in T.items(like)])
