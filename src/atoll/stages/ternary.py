"""Three values: minus, zero, plus."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.requests.stage import Estimated

from .bits import pack_trits, unpack_trits
from .packed import Packed, wire_scale
from .rows import Groups, Per, template_of, uniforms

__all__ = ["Ternary"]


@dataclass(frozen=True)
class Ternary(Packed, Estimated):
    """``m sign(x_i)`` with probability ``|x_i| / m``, else 0, where ``m = max |x|`` of the group.

    Wen, Xu, Yan, Wu, Wang, Chen, Li 2017, "TernGrad", equation 3. Unbiased; ``E ||Q(x) - x||^2 = m ||x||_1 - ||x||^2 <= (sqrt(n) - 1)/2 ||x||^2``.

    On the wire: 32 bits a group, and five entries a byte (1.6 bits each).

    Attributes:
        per: which entries share a magnitude.
    """

    per: Per = "tensor"
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check_per()

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return the largest magnitudes, and the trits."""
        del public
        scale = wire_scale(groups.reduce(np.maximum, np.abs(rows)).astype(np.float64), up=True)
        safe = groups.spread(np.where(scale > 0, scale, 1.0), rows.dtype)
        sent = uniforms(keys, groups.size, rows.dtype) * safe < np.abs(rows)
        trits = np.where(sent, np.where(rows < 0, 2, 1), 0).astype(np.uint8)
        return {"scale": scale, "trits": pack_trits(trits)}

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Multiply the trits by the magnitude."""
        del public
        trits = unpack_trits(parts["trits"], groups.size)
        return np.array([0, 1, -1], dtype=dtype)[trits] * groups.spread(parts["scale"], dtype)

    def wire_bits(self, value: Tree) -> int:
        """``32 groups + 8 ceil(entries / 5)``."""
        groups = self.groups(template_of(value))
        return 32 * len(groups) + 8 * -(-groups.size // 5)

    def omega(self, value: Tree) -> float:
        """``(sqrt(n) - 1)/2`` for the largest group: ``max |x| ||x||_1 <= (1 + sqrt(n))/2 ||x||^2``."""
        return (math.sqrt(max(1, int(self.groups(template_of(value)).sizes.max(initial=0)))) - 1) / 2
