"""One bit per entry: signs, with one or two magnitudes a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.requests.stage import Estimated

from .packed import Packed, pack, packed_bytes, unpack, wire_scale
from .rows import Groups, Per, template_of

__all__ = ["OneBit", "Sign"]


@dataclass(frozen=True)
class OneBit(Packed, Estimated):
    """Send the sign, and for each group the mean of its non-negative entries and the mean of its negative entries.

    Seide, Fu, Droppo, Li, Yu 2014, "1-Bit Stochastic Gradient Descent". This is the nearest vector with two values: the projection leaves
    ``||C(x) - x||^2 <= (1 - 1/n) ||x||^2``. Biased: use it inside ``ErrorFeedback``.

    On the wire: 64 bits a group and 1 bit an entry.

    Attributes:
        per: which entries share the two means.
    """

    per: Per = "tensor"
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._check_per()

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return the two means, and the signs."""
        del public, keys
        below = rows < 0
        count = groups.reduce(np.add, below.astype(rows.dtype))
        low = groups.reduce(np.add, np.where(below, rows, 0)) / count.clip(min=1)
        high = groups.reduce(np.add, np.where(below, 0, rows)) / (groups.sizes - count).clip(min=1)
        return {"low": wire_scale(low), "high": wire_scale(high), "signs": pack(below, 1)}

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Return one of the two means for each entry."""
        del public
        below = unpack(parts["signs"], 1, groups.size).astype(bool)
        return np.where(below, groups.spread(parts["low"], dtype), groups.spread(parts["high"], dtype))

    def wire_bits(self, value: Tree) -> int:
        """``64 groups + 8 ceil(entries / 8)``."""
        groups = self.groups(template_of(value))
        return 64 * len(groups) + 8 * packed_bytes(groups.size, 1)

    def delta(self, value: Tree) -> float:
        """``1/n`` for the largest group."""
        return 1.0 / max(1, int(self.groups(template_of(value)).sizes.max(initial=0)))


@dataclass(frozen=True)
class Sign(Packed, Estimated):
    """The sign times the group's mean magnitude: ``C(x)_B = (||x_B||_1 / |B|) sign(x_B)``, with ``sign(0) = 1``.

    Zheng, Huang, Kwok 2019, "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback", equation 4. A contraction with
    ``delta = ||x||_1^2 / (n ||x||_2^2) >= 1/n``; biased. Without a scale (``scaled=False``) it is signSGD's message: ``n`` bits and no scale.

    On the wire: 32 bits a group (none without a scale) and 1 bit an entry.

    Attributes:
        per: which entries share a magnitude.
        scaled: whether the magnitude is sent; otherwise entries decode to -1 and 1.
    """

    per: Per = "tensor"
    scaled: bool = True
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._check_per()

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return the mean magnitudes, and the signs."""
        del public, keys
        signs = {"signs": pack(rows < 0, 1)}
        if not self.scaled:
            return signs
        return {"scale": wire_scale(groups.reduce(np.add, np.abs(rows)) / groups.sizes.clip(min=1)), **signs}

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Return plus or minus the magnitude."""
        del public
        below = unpack(parts["signs"], 1, groups.size).astype(bool)
        scale = groups.spread(parts["scale"], dtype) if self.scaled else np.ones((), dtype)
        return np.where(below, -scale, scale)

    def wire_bits(self, value: Tree) -> int:
        """``32 groups + 8 ceil(entries / 8)``; without the first term when not scaled."""
        groups = self.groups(template_of(value))
        return (32 * len(groups) if self.scaled else 0) + 8 * packed_bytes(groups.size, 1)

    def delta(self, value: Tree) -> float | None:
        """``1/n`` for the largest group; unknown without a scale."""
        return 1.0 / max(1, int(self.groups(template_of(value)).sizes.max(initial=0))) if self.scaled else None
