"""Federated SGD (McMahan et al. 2017, section 2): one full-batch gradient per client and round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.errors import ConfigError
from atoll.learn.card import Card

from .one_gradient import OneGradient

__all__ = ["FedSGD"]


@dataclass(frozen=True, kw_only=True)
class FedSGD(OneGradient):
    """Clients send the gradient of their whole data at the global model; the server takes the step.

    ``w <- w - lr * sum_k (n_k / sum_j n_j) grad F_k(w)``. Equals FedAvg with one full-batch step.

    Attributes:
        lr: the server's learning rate.
    """

    citation: ClassVar[str] = (
        "McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data. AISTATS 2017."
    )
    card: ClassVar[Card] = Card(unbiased=True, note="Gradient descent, one step per round.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None:
            raise ConfigError(
                f"batch_size={self.batch_size}",
                where="FedSGD",
                remedy="leave it out: FedSGD takes one full-batch gradient; for mini-batches use FedAvg",
            )
