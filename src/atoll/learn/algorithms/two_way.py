"""Two-way compressed Nesterov momentum with error feedback on both sides (Zheng, Huang, Kwok 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Stage
from atoll.learn.algorithm import Compressing, Gradient, LocalWork, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.stages import ErrorFeedback, Sign

from .one_gradient import OneGradient, require_stage

__all__ = ["TwoWaySGDM"]


@dataclass(frozen=True, kw_only=True)
class TwoWaySGDM(OneGradient, Compressing, Stateful):
    """Blockwise signs up and down, with momentum and error feedback on both sides.

    At a client, ``m <- b m + g``, ``p = lr (b m + g) + e``, send ``C(p)``, ``e <- p - C(p)``; at the server
    ``p~ = mean C(p) + e~``, send ``C(p~)``, ``e~ <- p~ - C(p~)``; and all parties take ``w <- w - C(p~)``.

    ``C(v)_B = (||v_B||_1 / |B|) sign(v_B)`` for each tensor ``B``: one bit per entry each way, 32 times less than float32.

    Attributes:
        lr: learning rate, inside the error feedback.
        momentum: ``b``, in [0, 1).
        compressor: ``C`` on the way up.
        down: ``C`` on the way down.
    """

    momentum: float = 0.9
    compressor: Stage = field(default_factory=Sign)
    down: Stage = field(default_factory=Sign)
    citation: ClassVar[str] = (
        "Zheng, Huang, Kwok. Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback. NeurIPS 2019."
    )
    card: ClassVar[Card] = Card(
        family="compressed", note="Momentum and error stay with the client. It circles the optimum within about lr."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_stage(self.compressor, "TwoWaySGDM")
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"momentum={self.momentum}", where="TwoWaySGDM", remedy="use a number in [0, 1)")

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply error feedback around the compressor."""
        del phase
        return (ErrorFeedback(self.compressor),)

    def downlink(self) -> Stage:
        """Apply the server's compressor; it keeps the error itself."""
        return self.down

    def client_init(self, params: Tree) -> Tree:
        """Start with no momentum."""
        return {"m": T.zeros_like(params)}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model and the client's momentum."""
        return {**super().start(broadcast, client), "m": client["m"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return Nesterov's direction, ``lr (b m + g)`` with the new ``m``."""
        g = grad(local["params"])
        m = T.add(T.scale(local["m"], self.momentum), g)
        return T.scale(T.add(T.scale(m, self.momentum), g), broadcast["lr"]), {**local, "m": m}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the direction; keep the momentum."""
        reply, _ = super().finish(local, broadcast, client, work)
        return reply, {"m": local["m"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update ``w <- w - mean p``: ``p`` includes the learning rate."""
        del info, phase
        return {**state, "params": T.sub(state["params"], sums["gradient"])}
