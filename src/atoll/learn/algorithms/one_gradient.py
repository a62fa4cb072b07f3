"""One gradient per client and round: the base of methods that send gradients, whole, compressed or as signs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Stage
from atoll.learn.algorithm import Algorithm, Compressing, Gradient, LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.stages import QSGD

__all__ = ["OneGradient", "QuantisedSGD", "require_stage", "require_unbiased", "require_weight"]


def require_stage(stage: object, where: str) -> None:
    """Refuse a compressor that is not a stage.

    Raises:
        ConfigError: it is not a stage.
    """
    if not isinstance(stage, Stage):
        raise ConfigError(f"compressor={stage!r}", where=where, remedy="use a stage such as QSGD(127)")


def require_unbiased(stage: object, where: str) -> None:
    """Refuse a compressor with an error that does not vanish on average, or that is not a stage.

    Raises:
        ConfigError: it is not a stage, or is biased.
    """
    require_stage(stage, where)
    if isinstance(stage, Stage) and not stage.unbiased:
        raise ConfigError(
            f"{type(stage).__name__} is biased, but {where} needs an unbiased compressor",
            where=where,
            remedy="use an unbiased stage such as QSGD, RandomK or OptimalSparse, or MemSGD, which feeds errors back",
        )


@dataclass(frozen=True, kw_only=True)
class OneGradient(Algorithm):
    """Clients send the gradient of their data, or of one mini-batch, and the server takes a step: ``w <- w - lr * mean g_k``.

    Attributes:
        lr: the server's learning rate.
        batch_size: rows of the gradient; ``None`` is all.
    """

    batch_size: int | None = None
    steps: int | None = 1
    partial: ClassVar[bool] = False
    card: ClassVar[Card] = Card(part=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs != 1 or self.steps != 1:
            raise ConfigError(
                f"epochs={self.epochs}, steps={self.steps}",
                where=type(self).__name__,
                remedy="leave them out: it takes one gradient per round",
            )

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model and no gradient yet."""
        del client
        return {"params": broadcast["params"], "v": T.zeros_like(broadcast["params"])}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Store the direction; the model stays unchanged."""
        v, local = self.direction(local, grad, broadcast)
        return {**local, "v": v}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the direction."""
        del broadcast
        return {"gradient": Mean(local["v"], examples=work.examples)}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update ``w <- w - lr * mean``."""
        del info, phase
        return {**state, "params": T.sub(state["params"], T.scale(sums["gradient"], self.lr))}


@dataclass(frozen=True, kw_only=True)
class QuantisedSGD(OneGradient, Compressing):
    """SGD with randomly quantised gradients: ``w <- w - lr * mean Q(g_k)``.

    With one level, an entry takes 2 bits up. With another unbiased compressor, such as ``OptimalSparse(1.0)`` (Wangni et al. 2018), ``Ternary()`` (Wen et
    al. 2017) or ``RandomK(0.1)``, it is that paper's SGD. If clients disagree, compression keeps it from the optimum; see ``DIANA``.

    Attributes:
        lr: the server's learning rate.
        batch_size: rows of the gradient; ``None`` is all.
        compressor: an unbiased stage.
    """

    compressor: Stage = field(default_factory=lambda: QSGD(1))
    citation: ClassVar[str] = (
        "Alistarh, Grubic, Li, Tomioka, Vojnovic. QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding. NeurIPS 2017."
    )
    card: ClassVar[Card] = Card(
        family="compressed", note="The compression error does not vanish, so it stalls near the optimum."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_unbiased(self.compressor, type(self).__name__)

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply the compressor."""
        del phase
        return (self.compressor,)


def require_weight(l1: float, where: str) -> None:
    """Refuse a negative weight of the L1 norm.

    Raises:
        ConfigError: it is negative or not finite.
    """
    if not (l1 >= 0 and math.isfinite(l1)):
        raise ConfigError(f"l1={l1}", where=where, remedy="use a finite number of at least 0")
