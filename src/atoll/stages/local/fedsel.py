"""FedSel: a client chooses one of its largest entries privately, and reports it privately."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.event import Event
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import WithMemory
from atoll.privacy.events import RandomisedResponse

from ..remembering import one_of
from ..rows import lay_out, numpy_leaf, put_back
from .base import Randomiser, Rows, require_positive
from .response import response

__all__ = ["FedSel", "chosen"]


@dataclass(frozen=True)
class FedSel(Randomiser, WithMemory):
    """Report ``entries`` entries, each chosen among the largest by a private choice and reported by randomised response.

    The choice (perturbed sampling): with probability ``p = e^a k / (d - k + e^a k)`` a uniform one of the ``k`` largest of ``d`` magnitudes, else a uniform
    one of the others. Whether an entry is among the largest changes its chance by a factor of ``e^a`` exactly, so that the choice is ``a``-private. The report:
    one bit by randomised response with ``b``, see `RandomisedSigns`. ``(a + b) entries = epsilon`` and ``a = share (a + b)``. What was not reported waits in a
    private residual and is added to the next round's update. Liu, Cao, Yoshikawa, Chen 2020, "FedSel: Federated SGD under Local Differential Privacy with Top-k
    Dimension Selection", sections 4 and 5. We deviate: several entries are chosen one after the other, each among those that are left.

    The server gets the reported value without a factor for the choice: the mean of a reply is not the update, as with every choice of the largest.

    Attributes:
        limit: largest magnitude of a reported entry.
        epsilon: of one release.
        fraction: ``k / d``.
        entries: how many are reported; a value with fewer reports all of them, each with its share of epsilon.
        share: part of epsilon for the choice, in (0, 1).
        decay: factor on the residual from round to round, in [0, 1].
        unit: ``"user"`` or ``"island"``.
    """

    limit: float = 0.1
    epsilon: float = 1.0
    fraction: float = 0.1
    entries: int = 1
    share: float = 0.5
    decay: float = 1.0
    unit: Literal["user", "island"] = "user"
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(self, "limit", "epsilon")
        if not (self.entries >= 1 and 0 < self.fraction <= 1 and 0 < self.share < 1 and 0 <= self.decay <= 1):
            raise ConfigError(
                f"entries={self.entries}, fraction={self.fraction}, share={self.share}, decay={self.decay}",
                where="FedSel",
                remedy="use at least one entry, a fraction in (0, 1], a share in (0, 1) and a decay in [0, 1]",
            )

    def fresh(self, value: Tree) -> Tree:
        """Return a zero residual."""
        return {"residual": T.map(lambda leaf: np.zeros_like(numpy_leaf(leaf))[()], value)}

    def remember(self, value: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Encode a block of one."""
        sent, kept = self.remember_block(one_of(value), one_of(memory), context)
        return T.map(lambda leaf: leaf[0], sent), T.map(lambda leaf: leaf[0], kept)

    def remember_block(self, block: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Report from the update plus the residual; what was reported leaves the residual."""
        rows, like = lay_out(T.add(T.map(numpy_leaf, block), T.scale(memory["residual"], self.decay)))
        draws = [secret.generator() for secret in context.secrets()]
        sent = self.randomise(np.asarray(rows, np.float64), draws)
        return put_back(sent, like), {"residual": put_back(np.where(sent != 0, 0.0, rows), like)}

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Choose and report entries."""
        found = np.zeros_like(rows)
        count = min(self.entries, rows.shape[1])
        each = self.epsilon / self.entries  # as the ledger has it: a value with fewer entries costs less
        for row, out, draw in zip(rows, found, draws, strict=True):
            at = chosen(np.abs(np.nan_to_num(row)), self.fraction, count, self.share * each, draw)
            out[at] = response(row[at], self.limit, (1 - self.share) * each, draw)
        return found

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return the choices and the reports: randomised response is the worst of all that is equally private."""
        del sensitivity
        each = self.epsilon / self.entries
        parts = (self.share * each, (1 - self.share) * each)
        return tuple(RandomisedResponse(unit=self.unit, epsilon=part, count=self.entries) for part in parts)


def chosen(sizes: Rows, fraction: float, count: int, epsilon: float, draw: np.random.Generator) -> np.ndarray:
    """Choose ``count`` different places by perturbed sampling, each ``epsilon``-private; ``sizes`` are magnitudes, ``(entries,)``."""
    left = np.arange(len(sizes))
    found = np.empty(count, np.int64)
    for i in range(count):
        k = min(len(left), max(1, int(fraction * len(left))))
        order = np.argpartition(sizes[left], len(left) - k)
        others, top = order[: len(left) - k], order[len(left) - k :]
        grown = math.exp(epsilon) * k
        among = top if not len(others) or draw.random() < grown / (len(others) + grown) else others
        at = int(among[draw.integers(len(among))])
        found[i] = left[at]
        left = np.delete(left, at)
    return found
