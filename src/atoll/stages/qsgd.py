"""Random quantisation with one scale a group: QSGD, also called low-precision quantisation, and its three values, minus, zero, plus."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Estimated

from .packed import Packed, pack, pack_trits, packed_bytes, unpack, unpack_trits, wire_scale
from .rows import Groups, Per, template_of, uniforms

__all__ = ["QSGD", "Ternary"]


@dataclass(frozen=True)
class QSGD(Packed, Estimated):
    """Encode each entry as its sign and one of ``levels + 1`` magnitudes, at random so that the mean is preserved.

    ``Q(x)_i = ||x||_2 sign(x_i) (l_i + b_i) / s`` with ``l_i = floor(s |x_i| / ||x||_2)`` and ``b_i`` 1 with probability
    ``s |x_i| / ||x||_2 - l_i``. Alistarh, Grubic, Li, Tomioka, Vojnovic 2017, "QSGD", section 3.1; Youn, Kumar, Abernethy 2022, example 1.
    Unbiased, with ``E ||Q(x) - x||^2 <= min(n/s^2, sqrt(n)/s) ||x||^2`` (lemma 3.1) for groups of ``n`` entries.

    On the wire: 32 bits a norm, and ``1 + ceil(log2(s + 1))`` bits an entry: 127 levels are 8 bits, 7 are 4, 1 is 2.

    Attributes:
        levels: number of positive magnitudes ``s``.
        per: which entries share a norm: ``"tensor"``, ``"model"``, or the number of entries in a bucket.
    """

    levels: int = 127
    per: Per = "tensor"
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (isinstance(self.levels, Integral) and 1 <= self.levels < 1 << 31):
            raise ConfigError(f"levels={self.levels}", where="QSGD", remedy="use a whole number from 1 to 2^31 - 1")
        self._check_per()

    @property
    def width(self) -> int:
        """Bits per entry."""
        return 1 + int(self.levels).bit_length()

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return the norms, and the signed levels."""
        del public
        norms = wire_scale(groups.norms(rows), up=True)
        dtype = (
            np.float64 if self.levels > 4096 else rows.dtype
        )  # float32 is too coarse for fractions of so fine a level
        unit = self.levels / np.where(norms > 0, norms, 1.0).astype(np.float64)
        exact = np.abs(rows, dtype=dtype) * groups.spread(unit, dtype)
        exact += uniforms(keys, groups.size, dtype)
        level = np.minimum(exact, self.levels).astype(np.uint32 if self.levels > 127 else np.uint8)
        level |= np.where(rows < 0, 1 << (self.width - 1), 0).astype(level.dtype)
        return {"norms": norms, "codes": pack(level, self.width)}

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Multiply the levels by their step."""
        del public
        codes = unpack(parts["codes"], self.width, groups.size)
        top = 1 << (self.width - 1)
        size = (codes & np.array(top - 1, dtype=codes.dtype)).astype(dtype)
        size *= groups.spread(parts["norms"].astype(np.float64) / self.levels, dtype)
        return np.where(codes >= top, -size, size)

    def wire_bits(self, value: Tree) -> int:
        """``32 groups + 8 ceil(entries width / 8)``."""
        groups = self.groups(template_of(value))
        return 32 * len(groups) + 8 * packed_bytes(groups.size, self.width)

    def omega(self, value: Tree) -> float:
        """``min(n/s^2, sqrt(n)/s)`` for the largest group."""
        n = int(self.groups(template_of(value)).sizes.max(initial=0))
        return min(n / self.levels**2, math.sqrt(n) / self.levels)


# ---------------------------------------------------------------- three values: minus, zero, plus


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
