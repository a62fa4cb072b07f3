"""The base of second-order methods: full local batches, and a loss with curvature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from atoll.core.capability import Need
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm
from atoll.learn.curvature import CURVED

from .full_gradient import FullGradient

__all__ = ["GRADIENT", "NewtonType"]

GRADIENT = FullGradient(reply=True)
"""The pass that sends the full gradient: one object, so that phases that share it are traced once."""


@dataclass(frozen=True, kw_only=True)
class NewtonType(Algorithm):
    """Base class of second-order methods. The Hessian covers all local rows, so there are no mini-batches, epochs or stragglers.

    Attributes:
        lr: the (first) step size of the server; 1 is Newton's method.
        steps: local iterations, each with Hessian-vector products.
    """

    lr: float = 1.0
    batch_size: int | None = None
    steps: int | None = 1
    partial: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None or self.epochs != 1 or self.stragglers is not None or self.steps is None:
            raise ConfigError(
                f"epochs={self.epochs}, steps={self.steps}, batch_size={self.batch_size}, stragglers={self.stragglers}",
                where=type(self).__name__,
                remedy="set only steps: the Hessian covers all local rows",
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and a loss with curvature."""
        return (*super().needs, CURVED)

    def _check(self, name: str, right: bool, remedy: str) -> None:
        """Refuse an option that is wrong or not finite."""
        value = getattr(self, name)
        if not right or not math.isfinite(value):
            raise ConfigError(f"{name}={value}", where=type(self).__name__, remedy=remedy)
