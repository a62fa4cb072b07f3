"""The mean over the clients that replied, and the contribution of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean, Part
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.results import Combined
from atoll.learn.algorithm import Algorithm, RoundInfo
from atoll.learn.server.contributions import alignment, exact_shapley, leave_one_out, round_game, truncated_shapley
from atoll.learn.wrapped import dry_reply

from .base import ONE_BY_ONE, Aggregation
from .keep_local import SingleReplies

__all__ = ["Valued"]

_MEASURES = ("aligned", "missing", "shapley")


@dataclass(frozen=True)
class Valued(Aggregation):
    """`Renormalised`, plus ``contributions`` in every round's row: name of each client in the mean -> its value; see `atoll.learn.server.contributions`.

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
            values[counts] = alignment(moves, weights) if aligned else self._played(memory, moves, weights, utility)
        return {"contributions": {name(part.sender): float(v) for part, v in zip(parts, values, strict=True)}}, None

    def _played(self, memory: Tree, moves: Any, weights: Any, utility: Callable[[Tree], float] | None) -> Any:
        if utility is None:
            raise self._no_rows()
        params = memory["params"]
        game = round_game(_flat(params), moves, weights, lambda w: utility(_shaped(w, params)))
        if self.measure == "missing":
            return leave_one_out(game, len(moves))
        if len(moves) <= 10:
            return exact_shapley(game, len(moves))
        rng = Rng(0).child("contributions", memory["round"]).generator()
        return truncated_shapley(game, len(moves), rng, orders=self.orders)[0]


def _flat(tree: Tree) -> Any:
    return np.concatenate([np.ravel(np.asarray(leaf, dtype=np.float64)) for _, leaf in sorted(T.items(tree))])


def _shaped(vector: Any, like: Tree) -> Tree:
    """Return the inverse of ``_flat``, in the form and types of a tree."""
    left = iter(np.split(vector, np.cumsum([np.size(leaf) for _, leaf in sorted(T.items(like))])[:-1]))
    leaves = {
        path: next(left).reshape(np.shape(leaf)).astype(np.asarray(leaf).dtype) for path, leaf in sorted(T.items(like))
    }
    return T.rebuild(like, [leaves[path] for path, _ in T.items(like)])
