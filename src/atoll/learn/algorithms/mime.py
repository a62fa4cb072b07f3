"""Mime, MimeLite and MimeSVRG (Karimireddy et al. 2020): a centralised optimiser applied in local steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, nearest

from ..algorithm import Algorithm, Gradient, LocalWork, Phased, RoundInfo
from ..card import Card
from .full_gradient import FullGradient

__all__ = ["Mime", "MimeLite", "MimeSVRG"]


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

    def begin_moments(self, statistics: Tree, gradient: Tree) -> Tree:
        """Return the second moment from the first gradient: ``v = c^2``. From zero, the first step would be ``c / eps``."""
        return {**statistics, "v": T.square(gradient)} if self.adaptive else statistics

    def direction(self, gradient: Tree, statistics: Tree) -> Tree:
        """Return ``U``."""
        if self.name in ("sgdm", "adam"):
            gradient = T.add(T.scale(gradient, 1.0 - self.beta1), T.scale(statistics["m"], self.beta1))
        if not self.adaptive:
            return gradient
        return T.map(lambda g, root: g / (root + self.eps), gradient, T.sqrt(statistics["v"]))

    def refresh_moments(self, statistics: Tree, gradient: Tree, *, counted: bool = False) -> Tree:
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


# ---------------------------------------------------------------- Mime, MimeLite and MimeSVRG (Karimireddy et al. 2020)


@dataclass(frozen=True, kw_only=True)
class Mime(Algorithm, Phased):
    """Local steps ``v = U(g_j(y) - g_j(x) + c, s)`` with the global gradient ``c`` and an optimiser with constant statistics ``s``.

    First exchange: the cohort's full gradients at ``x``, ``c = sum_S n_k grad F_k(x) / sum_S n_k``. Second: the local steps (``g_j`` at both
    points on the same mini-batch), the mean of the updates, then ``s <- V(c, s)``. With all clients and full gradients, the fixed point is
    the optimum; a sampled cohort leaves an error floor, because ``c`` is the cohort's. No client state.

    Attributes:
        optimiser: sgd, sgdm, adam or adagrad; see ``FrozenOptimiser``.
        beta1: momentum ``b1``.
        beta2: decay ``b2`` of Adam's second moment.
        eps: added to the root of the second moment.
        warm: start the second moment at the first ``c^2``; from zero, the first step is ``c / eps``, and the training diverges.
    """

    optimiser: str = "sgdm"
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    warm: bool = True
    phases: ClassVar[tuple[str, ...]] = ("anchor", "train")
    pooled: ClassVar[str] = "the mean of all gradients"
    citation: ClassVar[str] = (
        "Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Mime: Mimicking Centralized Stochastic Algorithms in Federated "
        "Learning. arXiv:2008.03606, 2020."
    )
    card: ClassVar[Card] = Card(unbiased=True, note="With a sampled cohort it stops at an error floor. In a star only.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rule()

    def _rule(self) -> FrozenOptimiser:
        return FrozenOptimiser(self.optimiser, self.beta1, self.beta2, self.eps)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the full gradient, or the local steps."""
        return (FullGradient(reply=True),) if phase == "anchor" else (self,)

    def init(self, params: Tree) -> Tree:
        """Start with the model, the statistics, and no gradient yet."""
        return {
            "params": params,
            "statistics": self._rule().zero(params),
            "gradient": T.zeros_like(params),
            "cold": self.warm and self._rule().adaptive,
            "begun": False,
        }

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model; for the local steps also ``c`` and ``s``."""
        sent = {"params": state["params"], "lr": self.lr}
        if phase == "anchor":
            return sent
        return {**sent, "gradient": state["gradient"], "statistics": state["statistics"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``U(g_j(y) - g_j(x) + c, s)``."""
        change = T.sub(grad(local["params"]), grad(broadcast["params"]))
        return self._rule().direction(T.add(change, broadcast["gradient"]), broadcast["statistics"]), local

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Keep ``c``; or move the model, and then the statistics."""
        if phase == "anchor":
            began = (
                self._rule().begin_moments(state["statistics"], sums["gradient"])
                if state["cold"]
                else state["statistics"]
            )
            return {**state, "gradient": sums["gradient"], "statistics": began, "cold": False, "begun": state["cold"]}
        moved = super().fold(state, sums, info, phase)
        return {**moved, "statistics": self._after(state, state["gradient"]), "begun": False}

    def _after(self, state: Tree, gradient: Tree) -> Tree:
        """Return ``V(c, s)``; if the second moment started at this round's ``c^2``, it already contains it."""
        return self._rule().refresh_moments(state["statistics"], gradient, counted=state["begun"])


@dataclass(frozen=True, kw_only=True)
class MimeLite(Mime):
    """Mime without the correction: ``v = U(g_j(y), s)``, so that only the optimiser's statistics are global.

    The full gradient at ``x`` is sent with the update, in the same contact. Only a first round that needs it beforehand (for the first
    second moment) asks for it separately. Local drift stays as in FedAvg.
    """

    phases: ClassVar[tuple[str, ...]] = ("train",)
    pooled: ClassVar[str] = ""  # it corrects no steps; statistics are linear in it
    card: ClassVar[Card] = Card(note="It keeps FedAvg's drift.")

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return one phase; two in a first round that starts a second moment."""
        return ("anchor", "train") if state["cold"] else ("train",)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the full gradient, and the local steps."""
        return super().passes(phase) if phase == "anchor" else (FullGradient(), self)

    def init(self, params: Tree) -> Tree:
        """Start with the model and the statistics."""
        return {name: value for name, value in super().init(params).items() if name != "gradient"}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model; for the local steps also ``s``."""
        sent = {"params": state["params"], "lr": self.lr}
        return sent if phase == "anchor" else {**sent, "statistics": state["statistics"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``U(g_j(y), s)``."""
        return self._rule().direction(grad(local["params"]), broadcast["statistics"]), local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the update, and the full gradient at ``x``."""
        update = T.sub(local["params"], broadcast["params"])
        mean = {"update": update, "gradient": client["anchor"]}
        return {name: Mean(value, examples=work.examples) for name, value in mean.items()}, None

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Move the model, and then the statistics."""
        gradient, rule = sums["gradient"], self._rule()
        if phase == "anchor":
            return {
                **state,
                "statistics": rule.begin_moments(state["statistics"], gradient),
                "cold": False,
                "begun": True,
            }
        params = T.add(state["params"], sums["update"])
        return {**state, "params": params, "statistics": self._after(state, gradient), "begun": False}


@dataclass(frozen=True, kw_only=True)
class MimeSVRG(Mime):
    """Mime with plain SGD, ``v = g_j(y) - g_j(x) + c``: SVRG with the cohort's anchor gradient. Also called MimeSGD."""

    optimiser: str = "sgd"
