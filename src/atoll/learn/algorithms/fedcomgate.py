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
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.learn.checks import require_positive
from atoll.stages import QSGD

from .one_gradient import require_stage

__all__ = ["FedCOMGATE"]


@dataclass(frozen=True, kw_only=True)
class FedCOMGATE(Algorithm):
    """Quantised local SGD with gradient tracking.

    Local steps ``w_k <- w_k - lr (g - delta_k)``; clients send ``Q(s_k)`` with ``s_k = (T / T_k) (w - w_k)``; with the mean ``d`` the server goes to
    ``w - server_lr d`` and each client corrects ``delta_k <- delta_k + (s_k - d) / (lr T)``.

    The paper has the same ``T`` local steps at every client, so ``steps=`` must be given: where clients of other sizes would take other numbers of
    steps, the mean move is no mean of gradients. A client that does ``T_k`` of them (a straggler, or one that was asked for less) sends its move
    scaled to ``T``, so that ``sum_k p_k delta_k`` stays 0 and the fixed point stays the optimum: with exact replies it is reached, as by VRL-SGD.

    The correction is made when a client is asked again: it remembers what it sent and knows ``d`` from how far the model moved. Everyone takes part in
    every round. Where a wrapper moves the model elsewhere (``ServerOptimised``, ``Upcycled``), the model that ``d`` leads to travels too.

    We deviate from the paper's listing, where a client corrects by ``Q(s_k)``. Ours corrects by what it meant to send, ``s_k``, as the authors' code
    does (FedTorch, ``fedgate_aggregation``), which FedAQ was compared with: a stage comes after ``finish``, so that no algorithm sees ``Q(s_k)``. The
    errors of quantisation then add up in ``sum_k delta_k``, which grows with the square root of the rounds, and it ends beside the optimum.

    Attributes:
        steps: local steps ``T``; must be given.
        compressor: ``Q``, unbiased in the theory.
        server_lr: the server's step.
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
                remedy="give steps=, the same for all clients, or use Scaffold, which takes any number of steps",
            )

    @property
    def _span(self) -> float:
        """``T``."""
        return float(self.steps or 1)

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """The compressor."""
        del phase
        return (self.compressor,)

    def init(self, params: Tree) -> Tree:
        """The model, which is where the last mean led to."""
        return {"params": params, "landed": params}

    def client_init(self, params: Tree) -> Tree:
        """No correction, and no round to correct for."""
        zero = T.zeros_like(params)
        return {"delta": zero, "sent": zero, "from": params, "present": 0.0}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """The model, and where the mean led to if that is elsewhere."""
        same = all(map(np.array_equal, T.leaves(state["params"]), T.leaves(state["landed"])))
        return {**super().broadcast(state, phase), **({} if same else {"landed": state["landed"]})}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The correction for the last round, now that its mean is known."""
        landed = broadcast.get("landed", broadcast["params"])
        mean = T.scale(T.sub(client["from"], landed), 1.0 / self.server_lr)
        off = T.scale(T.sub(client["sent"], mean), client["present"] / (broadcast["lr"] * self._span))
        return {"params": broadcast["params"], "delta": T.add(client["delta"], off)}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """``g - delta``."""
        del broadcast
        return T.sub(grad(local["params"]), local["delta"]), local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The move of ``T`` steps; what is needed for the correction stays."""
        del client
        scale = self._span / (work.steps + (work.steps == 0))
        update = T.scale(T.sub(local["params"], broadcast["params"]), scale)
        kept = {"delta": local["delta"], "sent": T.scale(update, -1.0), "from": broadcast["params"]}
        return {"update": Mean(update, examples=work.examples)}, {**kept, "present": 1.0 * (work.steps > 0)}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """``w <- w - server_lr d``."""
        del info, phase
        moved = T.add(state["params"], T.scale(sums["update"], self.server_lr))
        return {**state, "params": moved, "landed": moved}
