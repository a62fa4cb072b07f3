"""Affine quantisation between the smallest and the largest entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from .packed import Packed, pack, packed_bytes, unpack, wire_scale
from .rows import Groups, Per, template_of, uniforms

__all__ = ["MinMaxAffine"]


@dataclass(frozen=True)
class MinMaxAffine(Packed):
    """Quantise entries to integers of ``bits_each`` bits over the range of a tensor.

    Deterministic, as in the code of the FedAQ authors: with ``q_min = -2^(b-1)``, ``q_max = 2^(b-1) - 1``, ``scale = (max - min) / (q_max - q_min)``
    (0.001 where that is 0) and ``zero = trunc(clip(q_min - (min - mean)/scale))``, an entry becomes ``q = round(clip(zero + (x - mean)/scale))``
    and decodes to ``scale (q - zero) + mean``. Rounding to the nearest is **biased**, so theorems for unbiased compressors do not apply.

    Stochastic: ``q = floor((x - min)/scale + u)`` with ``u`` uniform in [0, 1), which is unbiased.

    On the wire: ``b`` bits an entry, and for each group three 32-bit numbers (scale, zero, mean), or two (scale, min) when stochastic.

    Attributes:
        bits_each: bits an entry ``b``, from 2 to 16.
        stochastic: whether to round at random, so that the mean is preserved.
        per: which entries share a range.
    """

    bits_each: int = 8
    stochastic: bool = False
    per: Per = "tensor"

    def __post_init__(self) -> None:
        if not 2 <= self.bits_each <= 16:
            raise ConfigError(f"bits_each={self.bits_each}", where="MinMaxAffine", remedy="use 2 to 16 bits")
        self._check_per()
        object.__setattr__(self, "unbiased", self.stochastic)

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return the numbers of each group, and the codes."""
        del public
        low, high = (groups.reduce(f, rows).astype(np.float64) for f in (np.minimum, np.maximum))
        steps, wide = (1 << self.bits_each) - 1, np.float64
        if self.stochastic:
            base = -wire_scale(-low, up=True)
            scale = wire_scale((high - base) / steps, up=True)
            exact = (rows - groups.spread(base, wide)) / groups.spread(np.where(scale > 0, scale, 1.0), wide)
            codes = np.floor(exact + uniforms(keys, groups.size, wide)).clip(0, steps)
            return {"scale": scale, "base": base, "codes": pack(codes.astype(np.uint32), self.bits_each)}
        least, most = -(1 << (self.bits_each - 1)), (1 << (self.bits_each - 1)) - 1
        mean = wire_scale(groups.reduce(np.add, rows) / groups.sizes.clip(min=1))
        scale = wire_scale((high - low) / steps)
        scale = np.where(scale > 0, scale, np.float32(0.001))
        zero = np.trunc((least - (low - mean) / scale.astype(wide)).clip(least, most))
        exact = groups.spread(zero, wide) + (rows - groups.spread(mean, wide)) / groups.spread(scale, wide)
        codes = np.rint(exact.clip(least, most)) - least
        return {
            "scale": scale,
            "zero": zero.astype(np.float32),
            "mean": mean,
            "codes": pack(codes.astype(np.uint32), self.bits_each),
        }

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Map the codes back to the range."""
        del public
        codes, wide = unpack(parts["codes"], self.bits_each, groups.size).astype(np.float64), np.float64
        if self.stochastic:
            return groups.spread(parts["scale"], wide) * codes + groups.spread(parts["base"], wide)
        offset = parts["zero"].astype(wide) + (1 << (self.bits_each - 1))
        return groups.spread(parts["scale"], wide) * (codes - groups.spread(offset, wide)) + groups.spread(
            parts["mean"], wide
        )

    def wire_bits(self, value: Tree) -> int:
        """``96 groups + 8 ceil(entries b / 8)``; 64 bits a group when stochastic."""
        groups = self.groups(template_of(value))
        return (64 if self.stochastic else 96) * len(groups) + 8 * packed_bytes(groups.size, self.bits_each)
