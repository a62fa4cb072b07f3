"""FedCOMGATE (Haddadpour et al. 2021): compressed local SGD with gradient tracking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Stage
from atoll.learn.algorithm import Algorithm, Compressing, Gradient, LocalWork, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.learn.checks import require_positive
from atoll.stages import QSGD

from .one_gradient import require_stage

__all__ = ["FedCOMGATE"]


@dataclass(frozen=True, kw_only=True)
class FedCOMGATE(Algorithm, Compressing, Stateful):
    """Quantised local SGD with gradient tracking.

    Local steps ``w_k <- w_k - lr (g - delta_k)``; clients send ``Q(s_k)`` with ``s_k = (T / T_k) (w - w_k)``. With the mean ``d``, the server moves to
    ``w - server_lr d`` and each client corrects ``delta_k <- delta_k + (s_k - d) / (lr T)``.

    The paper has the same ``T`` local steps at every client, so ``steps=`` is required: if clients of other sizes took other numbers of
    steps, the mean move would not be a mean of gradients. A client that does ``T_k`` steps (a straggler, or one asked for less) scales its move
    to ``T``, so that ``sum_k p_k delta_k`` stays 0 and the fixed point stays the optimum. With exact replies, the method reaches it, like VRL-SGD.

    A client makes the correction at its next contact: it remembers what it sent and learns ``d`` from how far the model moved. All clients take part in
    every round. If a wrapper moves the model elsewhere (``ServerOptimised``, ``Upcycled``), the server also sends the model that ``d`` leads to.

    We deviate from the paper's listing, in which a client corrects by ``Q(s_k)``. Ours corrects by the value before quantisation, ``s_k``, as in the authors'
    code (FedTorch, ``fedgate_aggregation``), the baseline of FedAQ: a stage acts after ``finish``, so no algorithm sees ``Q(s_k)``. The
    quantisation errors then add up in ``sum_k delta_k``, which grows with the square root of the rounds, and the method ends near the optimum, not at it.

    Attributes:
        steps: local steps ``T``; required.
        compressor: ``Q``, unbiased in the theory.
        server_lr: step size of the server.
    """

    compressor: Stage = field(default_factory=QSGD)
    server_lr: float = 1.0
    citation: ClassVar[str] = (
        "Haddadpour, Kamani, Mokhtari, Mahdavi. Federated Learning with Compression: Unified Analysis and Sharp Guarantees. AISTATS 2021."
    )
    card: ClassVar[Card] = Card(
        family="compressed",
        everyone=True,
        example={"steps": 5},
        note="It needs every client in every round. With exact replies it is unbiased.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_stage(self.compressor, "FedCOMGATE")
        require_positive("FedCOMGATE", server_lr=self.server_lr)
        if self.steps is None:
            raise ConfigError(
                "steps=None: clients of different sizes would take different numbers of steps",
                where="FedCOMGATE",
                remedy="set steps=, the same for all clients, or use Scaffold, which takes any number of steps",
            )

    @property
    def _span(self) -> float:
        """``T``."""
        return float(self.steps or 1)

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply the compressor."""
        del phase
        return (self.compressor,)

    def init(self, params: Tree) -> Tree:
        """Start with the model, which is also where the last mean led."""
        return {"params": params, "landed": params}

    def client_init(self, params: Tree) -> Tree:
        """Start with no correction, and no round to correct for."""
        zero = T.zeros_like(params)
        return {"delta": zero, "sent": zero, "from": params, "present": 0.0}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model, and where the mean led if that differs."""
        same = all(map(np.array_equal, T.leaves(state["params"]), T.leaves(state["landed"])))
        return {**super().broadcast(state, phase), **({} if same else {"landed": state["landed"]})}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Correct for the last round, now that its mean is known, and start at the model."""
        landed = broadcast.get("landed", broadcast["params"])
        mean = T.scale(T.sub(client["from"], landed), 1.0 / self.server_lr)
        off = T.scale(T.sub(client["sent"], mean), client["present"] / (broadcast["lr"] * self._span))
        return {"params": broadcast["params"], "delta": T.add(client["delta"], off)}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g - delta``."""
        del broadcast
        return T.sub(grad(local["params"]), local["delta"]), local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the move of ``T`` steps; keep what the correction needs."""
        del client
        scale = self._span / (work.steps + (work.steps == 0))
        update = T.scale(T.sub(local["params"], broadcast["params"]), scale)
        kept = {"delta": local["delta"], "sent": T.scale(update, -1.0), "from": broadcast["params"]}
        return {"update": Mean(update, examples=work.examples)}, {**kept, "present": 1.0 * (work.steps > 0)}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update ``w <- w - server_lr d``."""
        del info, phase
        moved = T.add(state["params"], T.scale(sums["update"], self.server_lr))
        return {**state, "params": moved, "landed": moved}
