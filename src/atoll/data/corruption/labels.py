"""Wrong labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atoll.core.errors import DataError

from .base import Columns, Corruption, CorruptionScope

__all__ = ["Mislabel"]


@dataclass(frozen=True)
class Mislabel(Corruption):
    """Flip a share of the client's labels, each to one of the other classes with equal probability.

    Attributes:
        fraction: share of the rows to flip; exactly ``round(fraction * rows)``.
    """

    fraction: float = 0.5
    name: ClassVar[str] = "mislabelled"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Flip labels in ``y``."""
        y = columns["y"].copy()
        rows = rng.permutation(len(y))[: round(self.fraction * len(y))]
        if scope.sample.task == "binary":
            y[rows] = -y[rows] if scope.sample.y.min() < 0 else 1 - y[rows]
        else:
            classes = int(scope.classes or 2)
            y[rows] = (y[rows] + rng.integers(1, classes, len(rows))) % classes
        return {"y": y}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        if scope.sample.task not in ("classification", "binary") or (scope.classes or 0) < 2:
            raise DataError(
                f"there is no other class to flip to in a {scope.sample.task} task",
                where=f"corruption 'mislabelled' of {scope.sample.name!r}",
                remedy="use it with two classes or more",
            )
        if not 0.0 <= self.fraction <= 1.0:
            raise DataError(
                f"fraction={self.fraction}", where="corruption 'mislabelled'", remedy="choose it between 0 and 1"
            )
