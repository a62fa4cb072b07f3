"""Momentum federated learning (Liu, Chen, Chen, Zhang 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.learn.card import Card
from atoll.learn.checks import require_share
from atoll.learn.transforms import Momentum, Transform

from .accelerated import Transformed
from .fedavg import FedAvg

__all__ = ["MFL", "LocalMomentum"]

_LIU = "Liu, Chen, Chen, Zhang. Accelerating Federated Learning via Momentum Gradient Descent. IEEE TPDS 2020."
_FRAME = "Advancements in Federated Learning: Models, Methods, and Privacy (survey), Algorithm 4 (local acceleration) with momentum."


@dataclass(frozen=True, kw_only=True)
class MFL(Transformed, FedAvg):
    """Local momentum steps, with momenta averaged like the models: ``m_k <- gamma m_k + g``, ``y <- y - lr m_k``.

    Both ``w`` and ``m`` are sent and returned, weighted by examples. With ``gamma=0``, it is FedAvg.

    Attributes:
        gamma: momentum, in [0, 1).
    """

    gamma: float = 0.5
    memory: ClassVar[str] = "server"  # type: ignore[misc]  # fixed by the method
    citation: ClassVar[str] = _LIU
    card: ClassVar[Card] = Card(note="It converges faster than FedAvg, to the same kind of biased fixed point.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share(type(self).__name__, gamma=self.gamma)

    def chain(self) -> tuple[Transform, ...]:
        """Momentum."""
        return (Momentum(self.gamma),)


@dataclass(frozen=True, kw_only=True)
class LocalMomentum(Transformed, FedAvg):
    """Local momentum steps; the momentum starts at zero in every round, or stays at the client.

    An instance of the survey's local acceleration framework, which names no paper for it. `MFL` also averages the momenta.

    Attributes:
        gamma: momentum, in [0, 1).
        memory: ``"round"`` resets it, ``"client"`` keeps it as private state.
        nesterov: use Nesterov's look-ahead form.
    """

    gamma: float = 0.5
    memory: str = "round"
    nesterov: bool = False
    citation: ClassVar[str] = _FRAME
    card: ClassVar[Card] = Card(note="Momentum never leaves the client.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share(type(self).__name__, gamma=self.gamma)

    def chain(self) -> tuple[Transform, ...]:
        """Momentum."""
        return (Momentum(self.gamma, nesterov=self.nesterov),)
