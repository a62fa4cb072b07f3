"""Server optimisers on the mean update: FedAvgM, FedAdagrad, FedAdam, FedYogi.

Hsu, Qi, Brown 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification" (FedAvgM); Reddi et al. 2021,
"Adaptive Federated Optimization", Algorithm 2 (the others).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Algorithm, RoundInfo
from atoll.learn.card import Card
from atoll.learn.checks import require_positive, require_share
from atoll.learn.transforms import AdaGrad, Adam, Momentum, Transform, Yogi

__all__ = ["FedAdagrad", "FedAdam", "FedAvgM", "FedYogi"]

_REDDI = "Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive Federated Optimization. ICLR 2021."


@dataclass(frozen=True, kw_only=True)
class _ServerStep(Algorithm):
    """Local SGD; the server uses the mean update as a gradient: ``w <- w - server_lr * V(-mean update, memory)``."""

    server_lr: float = 1.0

    def rule(self) -> Transform:
        """Use the server's optimiser."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(type(self).__name__, server_lr=self.server_lr)

    def init(self, params: Tree) -> Tree:
        """Start with the model and the optimiser's memory."""
        return {"params": params, "optimiser": self.rule().init(params)}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Take the server's step."""
        del info, phase
        here = state["params"]
        v, memory = self.rule().apply(T.scale(sums["update"], -1.0), state["optimiser"], here, here)
        return {**state, "params": T.sub(here, T.scale(v, self.server_lr)), "optimiser": memory}


@dataclass(frozen=True, kw_only=True)
class FedAvgM(_ServerStep):
    """Server momentum: with ``g = -mean update``, ``m <- beta m + g`` and ``w <- w - server_lr (g + beta m)``.

    Without ``nesterov``, ``w <- w - server_lr m``, the form of the paper's Eq. 2. With ``momentum=0`` it is FedAvg.

    Attributes:
        momentum: ``beta``, in [0, 1).
        nesterov: use Nesterov's look-ahead form.
        server_lr: factor on the step.
    """

    momentum: float = 0.9
    nesterov: bool = True
    citation: ClassVar[str] = (
        "Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019."
    )
    card: ClassVar[Card] = Card(note="The effective step is up to 1/(1 - momentum) times as large as FedAvg's.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share("FedAvgM", momentum=self.momentum)

    def rule(self) -> Transform:
        """Momentum."""
        return Momentum(self.momentum, nesterov=self.nesterov)


@dataclass(frozen=True, kw_only=True)
class _Adaptive(_ServerStep):
    """The shared options of the adaptive methods."""

    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    citation: ClassVar[str] = _REDDI
    card: ClassVar[Card] = Card(
        note="It has FedAvg's fixed point: adaptivity at the server does not remove client drift."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share(type(self).__name__, beta1=self.beta1, beta2=self.beta2)
        require_positive(type(self).__name__, tau=self.tau)


@dataclass(frozen=True, kw_only=True)
class FedAdam(_Adaptive):
    """Adam at the server: ``m <- b1 m + (1-b1) D``, ``s <- b2 s + (1-b2) D^2``, ``w <- w + server_lr m / (sqrt(s) + tau)``.

    ``D`` is the mean update; there is no bias correction, as in the paper. ``m`` and ``s`` start at 0; the paper starts ``s`` at ``tau^2`` or more.

    Attributes:
        server_lr: step size of the server.
        beta1: share of the mean that remains per step.
        beta2: share of the mean square that remains per step.
        tau: degree of adaptivity, added to the root.
    """

    def rule(self) -> Transform:
        """Adam."""
        return Adam(self.beta1, self.beta2, self.tau, debias=False)


@dataclass(frozen=True, kw_only=True)
class FedYogi(_Adaptive):
    """Yogi at the server: FedAdam with ``s <- s - (1-b2) D^2 sign(s - D^2)``.

    Attributes:
        server_lr: step size of the server.
        beta1: share of the mean that remains per step.
        beta2: how slowly the mean square changes.
        tau: degree of adaptivity, added to the root.
    """

    def rule(self) -> Transform:
        """Yogi."""
        return Yogi(self.beta1, self.beta2, self.tau)


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(_ServerStep):
    """AdaGrad at the server: ``s <- s + D^2``, ``w <- w + server_lr m / (sqrt(s) + tau)``, ``m <- b1 m + (1-b1) D``.

    Attributes:
        server_lr: step size of the server.
        beta1: share of the mean that remains per step; 0, as in the paper's experiments, uses the update itself.
        tau: degree of adaptivity, added to the root.
    """

    server_lr: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3
    citation: ClassVar[str] = _REDDI
    card: ClassVar[Card] = Card(note="Its steps shrink with one over the square root of the number of rounds.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share("FedAdagrad", beta1=self.beta1)
        require_positive("FedAdagrad", tau=self.tau)

    def rule(self) -> Transform:
        """Use AdaGrad with a mean of the updates."""
        return _AdaGradM(self.tau, self.beta1)


@dataclass(frozen=True)
class _AdaGradM(AdaGrad):
    """AdaGrad with a mean of the directions as the numerator."""

    beta: float = 0.0

    def init(self, params: Tree) -> Tree:
        """Start with ``m = s = 0``."""
        return {**super().init(params), **({"m": T.zeros_like(params)} if self.beta else {})}

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        del y, x
        s = T.add(memory["s"], T.square(v))
        after = {"s": s}
        if self.beta:
            v = after["m"] = T.add(T.scale(memory["m"], self.beta), T.scale(v, 1.0 - self.beta))
        return T.map(lambda a, root: a / (root + self.eps), v, T.sqrt(s)), after
