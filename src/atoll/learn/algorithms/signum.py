"""Signs of gradients with majority vote: SignSGD and SIGNUM (Bernstein et al. 2018, 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Vote
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Gradient, LocalWork, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.learn.transforms import Momentum

from .one_gradient import OneGradient

__all__ = ["SignSGD", "Signum"]


@dataclass(frozen=True, kw_only=True)
class SignSGD(OneGradient):
    """Clients vote on the sign of every coordinate: ``w <- w - lr * sign(sum_k sign(g_k))``.

    One gradient per round, of the whole data or of one mini-batch. A vote has no weights. A client sends one of three values per coordinate (a
    gradient may be exactly zero), or 1 bit if no value is zero.

    Attributes:
        lr: step length in every coordinate.
        batch_size: rows of the gradient; ``None`` is all.
    """

    lr: float = 1e-3
    citation: ClassVar[str] = (
        "Bernstein, Zhao, Azizzadenesheli, Anandkumar. signSGD with Majority Vote is Communication Efficient and Fault Tolerant. "
        "ICLR 2019."
    )
    card: ClassVar[Card] = Card(note="Its steps have a fixed length, so it circles the optimum within about lr.")

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Vote."""
        del broadcast, work
        return {"vote": Vote(T.sign(local["v"]))}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Take a step of length ``lr`` in every coordinate with a majority."""
        del info, phase
        return {**state, "params": T.sub(state["params"], T.scale(sums["vote"], self.lr))}


@dataclass(frozen=True, kw_only=True)
class Signum(SignSGD, Stateful):
    """SignSGD on a momentum that stays at the client: ``m_k <- beta m_k + (1 - beta) g_k``, and the vote is on ``sign(m_k)``.

    With ``beta=0`` it is SignSGD.

    Attributes:
        beta: share of the momentum that remains per round, in [0, 1).
    """

    beta: float = 0.9
    citation: ClassVar[str] = (
        "Bernstein, Wang, Azizzadenesheli, Anandkumar. signSGD: Compressed Optimisation for Non-Convex Problems. ICML 2018."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        Momentum(self.beta)

    def client_init(self, params: Tree) -> Tree:
        """Start with ``m_k = 0``."""
        return Momentum(self.beta).init(params)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model and the client's momentum."""
        return {**super().start(broadcast, client), "memory": client}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return the momentum."""
        v, local = super().direction(local, grad, broadcast)
        rule = Momentum(self.beta, damped=True)
        v, memory = rule.apply(v, local["memory"], local["params"], broadcast["params"])
        return v, {**local, "memory": memory}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Vote, and keep the momentum."""
        return super().finish(local, broadcast, client, work)[0], local["memory"]
