"""Upcycled-FL: in every second round, only the server works (Yin, Zhang, Zhang and Liu, "Federated Learning with Reduced Information Leakage and Computation")."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.learn.algorithm import Movable, Phased, RoundInfo
from atoll.learn.card import Card
from atoll.learn.wrapped import Moving

__all__ = ["Upcycled"]

_GROWTH: dict[str, Callable[[int], float]] = {"constant": lambda m: 1.0, "linear": float, "sqrt": math.sqrt}


@dataclass(frozen=True, kw_only=True)
class Upcycled(Moving):
    """Any algorithm, with a round of only the server after ``period - 1`` of its own: ``W <- W + eta (W - W_before)``.

    ``W_before`` is what the clients received in the last round with data. With ``eta = mu / (mu + lambda)`` and FedProx with exact solves, it is
    the aggregate of every client's minimiser of its objective linearised at its last model, plus ``lambda/2 ||w - w_k||^2`` and the proximal
    term. Gradients are reused, so the server contacts no client, sends nothing and spends no privacy. In general, ``eta`` is a free coefficient.
    A pair of rounds equals one round of the base with server learning rate ``1 + eta`` if the server adds the mean update: compare with that.

    The base's ``extrapolates`` names the other entries of the server's state that move along; integers never do. Clients cannot tell. Control variates and the
    like (the base's ``tied``) are then ``1 + eta`` times what clients keep, which still has the optimum as its fixed point. With a growing ``lambda_`` or
    a longer period, the changes would be multiplied by different numbers, which does not, so the model moves without them.

    Attributes:
        base: the algorithm inside.
        coefficient: ``eta``, 0 or more; or set ``mu`` and ``lambda_``. Without any of the three it is 0.5.
        mu: weight of the proximal term.
        lambda_: weight of the quadratic term of the linearised objective, in the first extrapolation.
        schedule: growth of ``lambda_`` over the extrapolations ``m = 1, 2, ...``: ``"constant"``, ``"linear"`` (times m) or ``"sqrt"`` (times the square root of
            m); likewise for a coefficient, as ``lambda/mu = 1/eta - 1``.
        period: rounds from one extrapolation to the next.
    """

    coefficient: float | None = None
    mu: float | None = None
    lambda_: float | None = None
    schedule: str = "constant"
    period: int = 2
    citation: ClassVar[str] = (
        "Yin, Zhang, Zhang, Liu. Federated Learning with Reduced Information Leakage and Computation. TMLR 2025."
    )
    card: ClassVar[Card] = Card(
        example={"coefficient": 0.5},
        family="wrapper",
        note="Two rounds equal one round of the base with server learning rate 1 + eta, where that is defined.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "citation", f"{self.base.citation} {type(self).citation}".strip())
        given = self.mu is not None, self.lambda_ is not None
        if not any(given) and self.coefficient is None:
            object.__setattr__(self, "coefficient", 0.5)
        if given != (self.coefficient is None,) * 2:
            _refuse(self, "set either a coefficient, or both mu and lambda_", "coefficient", "mu", "lambda_")
        if (
            self.mu is not None
            and self.lambda_ is not None
            and not (math.isfinite(self.mu) and self.mu >= 0 < self.lambda_)
        ):
            _refuse(self, "use mu >= 0 and lambda_ > 0", "mu", "lambda_")
        if self.coefficient is not None and not (self.coefficient >= 0 and math.isfinite(self.coefficient)):
            _refuse(self, "use 0 or more", "coefficient")
        if self.schedule not in _GROWTH:
            _refuse(self, f"use one of {', '.join(_GROWTH)}", "schedule")
        if self.schedule != "constant" and self.eta(1) > 1:
            _refuse(self, "use at most 1: above 1, there is no lambda to grow", "coefficient", "schedule")
        if self.period < 2:
            _refuse(self, "use at least 2 rounds", "period")
        if self.schedule != "constant" or self.period > 2:
            # A client's own part of a sum does not know the extrapolations: different shares would be in the server's part only.
            object.__setattr__(self, "extrapolates", tuple(n for n in self.extrapolates if n not in self.tied))

    def eta(self, m: int) -> float:
        """Return the coefficient of the ``m``-th extrapolation, from 1: ``1 / (1 + (lambda/mu) growth(m))``."""
        first = self.coefficient
        if self.mu is not None and self.lambda_ is not None:
            first = self.mu / (self.mu + self.lambda_)
        if not first or self.schedule == "constant":
            return first or 0.0
        return 1.0 / (1.0 + (1.0 / first - 1.0) * _GROWTH[self.schedule](m))

    @property
    def moves(self) -> tuple[str, ...]:
        """Return the entries to extrapolate."""
        return self.extrapolates

    def init(self, params: Tree) -> Tree:
        """Start with the base's state, the entries to extrapolate before the round, and the number of rounds done."""
        state = super().init(params)
        inner = self.inner(state)
        missing = [name for name in self.extrapolates if name not in inner]
        if missing:
            raise CompositionError(
                f"{type(self.base).__name__} keeps no {', '.join(missing)}",
                where="Upcycled",
                remedy="correct the base's `extrapolates`",
            )
        return {**state, "before": self._parts(inner), "turn": 0}

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return the base's phases; none if the next round is the server's."""
        return () if self._alone(state["turn"]) else super().plan(state)

    def contacts(self, rounds: int) -> int | None:
        """Return the number of rounds, except the server's own."""
        return facet(self.base, Phased).contacts(rounds - rounds // self.period)

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does, which counts only rounds with data."""
        return super().fold(state, sums, self._count_round(info, state), phase)

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance as the base does after a round with data; otherwise extrapolate."""
        turn, inner = state["turn"], self.inner(state)
        if self._alone(turn):
            moved = _beyond(self._parts(inner), state["before"], self.eta((turn + 1) // self.period))
            inner = facet(self.base, Movable).moved({**inner, **moved})
        else:
            inner = facet(self.base, Phased).advance(inner, self._count_round(info, state))
        kept = state["before"] if self._alone(turn + 1) else self._parts(inner)
        return {**self.around(state, inner), "before": kept, "turn": turn + 1}

    def _alone(self, turn: int) -> bool:
        return (turn + 1) % self.period == 0

    def _count_round(self, info: RoundInfo, state: Tree) -> RoundInfo:
        turn = state["turn"]
        return replace(info, round=turn + 1 - turn // self.period)

    def _parts(self, inner: Tree) -> Tree:
        return {name: inner[name] for name in self.extrapolates}


def _refuse(algorithm: Upcycled, remedy: str, *names: str) -> None:
    what = ", ".join(f"{name}={getattr(algorithm, name)!r}" for name in names)
    raise ConfigError(what, where="Upcycled", remedy=remedy)


def _beyond(now: Tree, before: Tree, eta: float) -> Tree:
    """Return ``now + eta (now - before)``; other than floating-point leaves stay."""

    def one(a: Any, b: Any) -> Any:
        if np.asarray(a).dtype.kind != "f":
            return a
        return a + np.asarray(eta * (a - b), dtype=np.asarray(a).dtype)[()]

    return T.map(one, now, before)
