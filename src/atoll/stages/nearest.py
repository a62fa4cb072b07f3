"""Rounding to the nearest multiple of a step, by a rule that the sender can compute too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from .packed import Packed, pack, packed_bytes, unpack
from .rows import Groups, Per, template_of

__all__ = ["Nearest", "nearest"]

_LEAST = 2.0**-120
"""Scales below this count as zero, since they would leave the range of 32 bits."""


@dataclass(frozen=True)
class Nearest(Packed):
    """Round each entry to the nearest of ``2 levels + 1`` numbers ``l s / levels``; ``s`` is the smallest power of two not below the largest magnitude.

    Rounding is deterministic, sends only ``s`` and the ``l``, and leaves a value that was already rounded unchanged. So a client that rounds with
    `nearest` before it sends knows what the server decodes, and both can keep the same estimate. **Biased**; ``max |Q(x) - x| <= max |x| / levels``.

    On the wire: 32 bits a scale, and ``1 + ceil(log2(levels + 1))`` bits an entry: 127 levels are 8 bits.

    Attributes:
        levels: number of positive magnitudes.
        per: which entries share a scale.
    """

    levels: int = 127
    per: Per = "tensor"
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (isinstance(self.levels, Integral) and 1 <= self.levels < 1 << 15):
            raise ConfigError(f"levels={self.levels}", where="Nearest", remedy="use a whole number from 1 to 32767")
        self._check_per()

    @property
    def width(self) -> int:
        """Bits per entry."""
        return 1 + int(self.levels).bit_length()

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return the scales, and signed levels."""
        del public, keys
        share, power = np.frexp(groups.reduce(np.maximum, np.abs(rows)).astype(np.float64))
        scale = np.where(share > 0, np.ldexp(1.0, np.where(share > 0.5, power, power - 1)), 0.0)
        scale = np.where(np.isfinite(share), np.where(scale < _LEAST, 0.0, scale), np.inf)
        unit = self.levels / np.where(scale > 0, scale, np.inf)
        level = np.rint(rows * groups.spread(unit, np.float64)).clip(-self.levels, self.levels)
        return {"scale": scale.astype(np.float32), "codes": pack((level + self.levels).astype(np.uint32), self.width)}

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Multiply the levels by their step."""
        del public
        level = unpack(parts["codes"], self.width, groups.size).astype(dtype) - self.levels
        return level * groups.spread(parts["scale"].astype(np.float64) / self.levels, dtype)

    def wire_bits(self, value: Tree) -> int:
        """``32 groups + 8 ceil(entries width / 8)``."""
        groups = self.groups(template_of(value))
        return 32 * len(groups) + 8 * packed_bytes(groups.size, self.width)


def nearest(leaf: Any, levels: int) -> Any:
    """Return what a server decodes from an array sent through ``Nearest(levels)``; works on NumPy and PyTorch."""
    xp, largest = T.namespace(leaf), abs(leaf).max()
    counts = largest > _LEAST
    scale = 2.0 ** xp.ceil(xp.log2(T.where(counts, largest, largest * 0 + 1)))
    found = xp.round(leaf / scale * levels) * (scale / levels)
    return T.where(counts, found, leaf * 0)
