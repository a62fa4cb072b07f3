"""Wrong labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from atoll.core.errors import DataError, nearest
from atoll.core.validation import is_real

from .base import Columns, Corruption, CorruptionScope

__all__ = ["Mislabel"]


@dataclass(frozen=True)
class Mislabel(Corruption):
    """Replace a share of the client's labels by wrong ones.

    ``corrupt(islands, {Mislabel(0.4, kind="pairs"): 1.0})`` spoils labels at every client, ``{Mislabel(): 0.3}`` at 30 % of the clients, and a range,
    ``{Mislabel((0.0, 0.8)): 1.0}``, another share at each client.

    Attributes:
        fraction: share of the labels to replace; exactly ``round(fraction * labels)``. A range ``(low, high)`` draws one share for each client. Missing labels
            stay missing.
        kind: ``"symmetric"``: each of the other classes with equal probability; ``"pairs"``: the next class, ``(y + 1) mod C``, as between classes that
            people confuse.
    """

    fraction: float | tuple[float, float] = 0.5
    kind: Literal["symmetric", "pairs"] = "symmetric"
    name: ClassVar[str] = "mislabelled"

    def __post_init__(self) -> None:
        shares = self.fraction if isinstance(self.fraction, tuple | list) else (self.fraction, self.fraction)
        if len(shares) != 2 or not all(is_real(share) for share in shares) or not 0.0 <= shares[0] <= shares[1] <= 1.0:
            raise DataError(
                f"fraction={self.fraction!r}",
                where="corruption 'mislabelled'",
                remedy="choose it between 0 and 1, or a range (low, high) between them",
            )
        if self.kind not in ("symmetric", "pairs"):
            raise DataError(
                f"kind={self.kind!r}.{nearest(str(self.kind), ('symmetric', 'pairs'))}",
                where="corruption 'mislabelled'",
                remedy="use 'symmetric' or 'pairs'",
            )

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Replace labels in ``y``."""
        y = columns["y"].copy()
        there = np.arange(len(y)) if "labelled" not in columns else np.flatnonzero(columns["labelled"])
        rows = there[rng.permutation(len(there))]
        fraction = self.fraction if isinstance(self.fraction, float | int) else rng.uniform(*self.fraction)
        rows = rows[: round(fraction * len(rows))]
        if scope.sample.task == "binary":
            y[rows] = -y[rows] if scope.sample.y.min() < 0 else 1 - y[rows]
        else:
            classes = int(scope.classes or 2)
            step = 1 if self.kind == "pairs" else rng.integers(1, classes, len(rows))
            y[rows] = (y[rows] + step) % classes
        return {"y": y}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse data that the corruption does not support."""
        if scope.sample.task not in ("classification", "binary") or (scope.classes or 0) < 2:
            raise DataError(
                f"there is no other class to flip to in a {scope.sample.task} task",
                where=f"corruption 'mislabelled' of {scope.sample.name!r}",
                remedy="use it with two classes or more",
            )
