"""Optimisers with constant statistics during a round: the base optimisers of Mime."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, nearest

__all__ = ["FrozenOptimiser"]

_KNOWN = ("sgd", "sgdm", "adam", "adagrad")


@dataclass(frozen=True)
class FrozenOptimiser:
    """The operators ``U`` (direction) and ``V`` (statistics) of Karimireddy et al. 2020, "Mime", Table 1.

    =========  =============================================  ==================================================
    name       ``U(g, s)``                                     ``V(c, s)``
    =========  =============================================  ==================================================
    sgd        ``g``                                           none
    sgdm       ``(1 - b1) g + b1 m``                           ``m <- (1 - b1) c + b1 m``
    adam       ``((1 - b1) g + b1 m) / (sqrt(v) + eps)``       and ``v <- (1 - b2) c^2 + b2 v``
    adagrad    ``g / (sqrt(v) + eps)``                         ``v <- v + c^2``
    =========  =============================================  ==================================================

    Attributes:
        name: sgd, sgdm, adam or adagrad.
        beta1: ``b1`` in [0, 1).
        beta2: ``b2`` in [0, 1).
        eps: ``eps``, positive.
    """

    name: str
    beta1: float
    beta2: float
    eps: float

    def __post_init__(self) -> None:
        if self.name not in _KNOWN:
            raise ConfigError(
                f"optimiser={self.name!r} is not known.{nearest(str(self.name), _KNOWN)}",
                where="optimiser",
                remedy=f"use one of {', '.join(_KNOWN)}",
            )
        if not (0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0):
            raise ConfigError(
                f"beta1={self.beta1}, beta2={self.beta2}", where="optimiser", remedy="use numbers in [0, 1)"
            )
        if not self.eps > 0:
            raise ConfigError(f"eps={self.eps}", where="optimiser", remedy="use a small positive number such as 1e-8")

    @property
    def adaptive(self) -> bool:
        """Whether the optimiser divides by a second moment."""
        return self.name in ("adam", "adagrad")

    def zero(self, params: Tree) -> Tree:
        """Return the statistics before the first gradient."""
        first = {"m": T.zeros_like(params)} if self.name in ("sgdm", "adam") else {}
        return {**first, "v": T.zeros_like(params)} if self.adaptive else first

    def begun(self, statistics: Tree, gradient: Tree) -> Tree:
        """Return the second moment from the first gradient: ``v = c^2``. From zero, the first step would be ``c / eps``."""
        return {**statistics, "v": T.square(gradient)} if self.adaptive else statistics

    def direction(self, gradient: Tree, statistics: Tree) -> Tree:
        """Return ``U``."""
        if self.name in ("sgdm", "adam"):
            gradient = T.add(T.scale(gradient, 1.0 - self.beta1), T.scale(statistics["m"], self.beta1))
        if not self.adaptive:
            return gradient
        return T.map(lambda g, root: g / (root + self.eps), gradient, T.sqrt(statistics["v"]))

    def refreshed(self, statistics: Tree, gradient: Tree, *, counted: bool = False) -> Tree:
        """Return ``V``; with ``counted``, the second moment already contains this gradient and stays unchanged."""
        fresh = dict(statistics)
        if "m" in fresh:
            fresh["m"] = T.add(T.scale(gradient, 1.0 - self.beta1), T.scale(fresh["m"], self.beta1))
        if counted:
            return fresh
        if self.name == "adam":
            fresh["v"] = T.add(T.scale(T.square(gradient), 1.0 - self.beta2), T.scale(fresh["v"], self.beta2))
        if self.name == "adagrad":
            fresh["v"] = T.add(fresh["v"], T.square(gradient))
        return fresh
