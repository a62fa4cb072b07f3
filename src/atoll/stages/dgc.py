"""Deep gradient compression: momentum that works with sparsification."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import StageContext

from .packed import Packed, index_width, pack
from .remembering import Remembering, one_of
from .rows import Groups, lay_out
from .topk import at_places, check_fraction, kept_of, largest

__all__ = ["DGC"]


@dataclass(frozen=True)
class DGC(Remembering, Packed):
    """Send the largest entries of an accumulated velocity, with momentum correction, local clipping, momentum factor masking and warm-up.

    ``g <- g min(1, clip / ||g||)``; ``u <- m u + g``; ``v <- v + u``; send the largest entries of ``|v|``, and set ``u`` and ``v`` to 0 there. Lin, Han,
    Mao, Wang, Dally 2018, "Deep Gradient Compression", algorithm 1 (vanilla momentum) and section 3; for ``N`` clients the paper clips at
    ``threshold / sqrt(N)``. In the first ``warmup`` replies of a client the share falls geometrically from 1/4 to ``fraction``.

    With ``momentum=0``, no clip and no warm-up it is ``ErrorFeedback(TopK(fraction))``.

    On the wire: an entry's index (``ceil(log2 entries)`` bits) and its value.

    Attributes:
        fraction: share sent, at least one entry.
        momentum: ``m``, in [0, 1).
        clip: largest L2 norm of the incoming update; ``None`` does not clip.
        warmup: number of a client's replies until the share is ``fraction``.
        masking: whether ``u`` is set to 0 where entries were sent.
    """

    fraction: float = 0.001
    momentum: float = 0.9
    clip: float | None = None
    warmup: int = 0
    masking: bool = True
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fraction(self.fraction, "DGC")
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"momentum={self.momentum}", where="DGC", remedy="use a number in [0, 1)")
        if self.clip is not None and not (self.clip > 0 and math.isfinite(self.clip)):
            raise ConfigError(f"clip={self.clip}", where="DGC", remedy="use a finite number above 0, or None")
        if self.warmup < 0:
            raise ConfigError(f"warmup={self.warmup}", where="DGC", remedy="use at least 0 replies")

    def share(self, sent: int) -> float:
        """The share for a client that has sent this many replies: ``max(fraction, 1/4 (4 fraction)^(sent/warmup))``."""
        if sent >= self.warmup or self.fraction >= 0.25:
            return self.fraction
        return float(max(self.fraction, 0.25 * (4 * self.fraction) ** (sent / self.warmup)))

    def fresh(self, value: Tree) -> Tree:
        """Return zero velocity, zero accumulation and no replies."""
        rows, _ = lay_out(one_of(value))
        return {"u": np.zeros_like(rows[0]), "v": np.zeros_like(rows[0]), "sent": np.int64(0)}

    def remember_block(self, block: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Accumulate, send the largest entries, and clear what was sent."""
        rows, like = lay_out(block)
        size, width = rows.shape[1], index_width(rows.shape[1])
        groups = Groups((0,), size)
        if self.clip is not None:
            norms = groups.norms(rows)
            rows = rows * (self.clip / np.maximum(norms, self.clip)).astype(rows.dtype)
        u = self.momentum * memory["u"] + rows
        v = memory["v"] + u
        chosen: list[Any] = [None] * len(rows)
        for sent in np.unique(
            memory["sent"]
        ).tolist():  # clients at the same step of the warm-up send the same number of entries
            at = np.flatnonzero(memory["sent"] == sent)
            for i, index in zip(at.tolist(), largest(v[at], groups, self.share(int(sent))), strict=True):
                chosen[i] = index
        values = [row[index] for row, index in zip(v, chosen, strict=True)]
        for i, index in enumerate(chosen):
            v[i, index] = 0
            if self.masking:
                u[i, index] = 0
        same = len({len(index) for index in chosen}) == 1
        join: Any = np.stack if same else T.Ragged
        parts = {"index": join([pack(index, width) for index in chosen]), "values": join(values)}
        return {"like": like, **parts}, {"u": u, "v": v, "sent": memory["sent"] + 1}

    def unpack(self, parts: Any, groups: Groups, dtype: Any, public: Tree) -> Any:
        """Put the values at their indices."""
        del public
        return at_places(parts, groups.size, dtype)

    def wire_bits(self, value: Tree) -> int:
        """Bits of a client's first reply: ``k`` indices and values."""
        rows, _ = lay_out(one_of(value))
        k = kept_of(rows.shape[1], self.share(0))
        return 8 * (k * rows.dtype.itemsize + -(-k * index_width(rows.shape[1]) // 8))
