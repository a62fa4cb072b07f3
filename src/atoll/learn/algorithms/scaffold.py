"""SCAFFOLD (Karimireddy et al. 2020): control variates remove the drift of local steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Movable, Phased, RoundInfo, Stateful
from atoll.learn.card import Card

from .fedavg import FedAvg
from .full_gradient import FullGradient

__all__ = ["Scaffold"]


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg, Phased, Stateful, Movable):
    """The difference of two control variates corrects each local step: ``v = g_k(y) - c_k + c``.

    After ``T`` steps from ``x`` to ``y`` the client's variate becomes ``grad F_k(x)`` (option 1) or ``c_k - c + (x - y) / (T lr)``
    (option 2). Server: ``x <- x + server_lr mean_S (y_k - x)``, ``c <- c + (1/N) sum_S (c_k' - c_k)``, so that ``c = (1/N) sum_k c_k``
    for any participation. The fixed point is the optimum of ``(1/N) sum_k F_k``: clients count equally, whatever their sizes.

    Client state: one model. Up and down: two models each. Option 2 treats ``v`` as the whole step: with local momentum around it, use option 1.

    Attributes:
        option: 1 (full gradient at ``x``, one more pass over the data) or 2 (from the local steps, free).
        by_examples: weight the clients' updates by examples; the fixed point stays the same.
    """

    option: int = 2
    by_examples: bool = False
    extrapolates: ClassVar[tuple[str, ...]] = ("params", "control")
    tied: ClassVar[tuple[str, ...]] = ("control",)
    citation: ClassVar[str] = (
        "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML 2020."
    )
    card: ClassVar[Card] = Card(
        unbiased=True, note="It minimises the mean of the clients' objectives, each with weight 1/N."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.option not in (1, 2):
            raise ConfigError(f"option={self.option!r}", where="Scaffold", remedy="use 1 (full gradient) or 2")

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the local steps; with option 1 the full gradient first."""
        del phase
        return (self,) if self.option == 2 else (FullGradient(beside=self), self)

    def init(self, params: Tree) -> Tree:
        """Start with the model, and ``c = 0``."""
        return {**super().init(params), "control": T.zeros_like(params)}

    def client_init(self, params: Tree) -> Tree:
        """Start with ``c_k = 0``."""
        return {"control": T.zeros_like(params)}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model and ``c``."""
        return {**super().broadcast(state, phase), "control": state["control"]}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model and the correction ``c - c_k``."""
        return {"params": broadcast["params"], "shift": T.sub(broadcast["control"], client["control"])}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g - c_k + c``."""
        del broadcast
        return T.add(grad(local["params"]), local["shift"]), local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the update and the change of ``c_k``; a client without rows sends zeros with no weight."""
        update = T.sub(local["params"], broadcast["params"])
        if self.option == 1:
            change = T.sub(client["anchor"], client["control"])
        else:
            # Option II of Eq. 4. A client without steps has no update either, so a divisor of 1 gives zeros and no NaN.
            taken = T.scale(update, -1.0 / ((work.steps + (work.steps < 1)) * broadcast["lr"]))
            change = T.sub(taken, broadcast["control"])
        present = 1.0 * (work.steps > 0)
        change = T.scale(change, present)
        weight = work.examples if self.by_examples else present
        reply = {"update": Mean(update, examples=weight), "control": Sum(change)}
        return reply, {"control": T.add(client["control"], change)}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update the model as in FedAvg; ``c`` moves by the sum of the changes over the population."""
        # Eq. 5: over all N clients, not over those that replied, because the others keep the c_k that is in c already.
        control = T.add(state["control"], T.scale(sums["control"], 1.0 / info.population))
        return {**super().fold(state, sums, info, phase), "control": control}
