"""Random entries, whose indices follow from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree

from .packed import Packed
from .rows import Groups, template_of
from .topk import check_fraction, kept_of, scatter

__all__ = ["RandomK"]


@dataclass(frozen=True)
class RandomK(Packed):
    """``k`` entries drawn at random, times ``n/k``; the others are zero. Indices are not sent: they follow from a seed.

    Unbiased with ``E ||C(x) - x||^2 = (n/k - 1) ||x||^2``; without the factor (``scaled=False``) a contraction with ``delta = k/n``, for
    ``ErrorFeedback``. Stich, Cordonnier, Jaggi 2018; Konečný et al. 2016 ("random mask").

    ``shared``: all clients use the round's public seed, so that their values add up. The stage is then linear, summable and fit for secure sums,
    but the clients' errors do not average out.

    On the wire: the values in the update's own precision, and a 64-bit seed unless the seed is shared.

    Attributes:
        fraction: share of the entries to send, ``k = max(1, floor(fraction n))``.
        scaled: whether to multiply by ``n/k``.
        shared: whether all clients use one seed.
    """

    fraction: float = 0.01
    scaled: bool = True
    shared: bool = False

    def __post_init__(self) -> None:
        check_fraction(self.fraction, "RandomK")
        for name, promise in (("unbiased", self.scaled), ("summable", self.shared), ("linear", self.shared)):
            object.__setattr__(self, name, promise)

    def public(self, rng: Rng) -> Tree:
        """Return the seed, if it is shared."""
        return rng.key if self.shared else None

    def _places(self, key: int, size: int) -> Any:
        draw = np.random.Generator(np.random.PCG64(key))
        return np.sort(draw.choice(size, kept_of(size, self.fraction), replace=False, shuffle=False))

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return the values, and the seed of their indices."""
        factor = groups.size / kept_of(groups.size, self.fraction) if self.scaled else 1.0
        if self.shared:
            return {"values": rows[:, self._places(public, groups.size)] * factor}
        index = np.stack([self._places(key, groups.size) for key in keys.tolist()])
        seeds = np.asarray(keys, dtype=np.uint64)
        return {"values": np.take_along_axis(rows, index, axis=1) * factor, "seed": seeds[:, None]}

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Put the values at their indices."""
        values, size = parts["values"], groups.size
        if self.shared:
            index = np.broadcast_to(self._places(public, size), values.shape)
        else:
            index = np.stack([self._places(int(seed[0]), size) for seed in parts["seed"]])
        return scatter(len(values), size, index, values, dtype)

    def wire_bits(self, value: Tree) -> int:
        """``k (value bits)``, plus 64 unless the seed is shared."""
        like = template_of(value)
        each = np.result_type(*[leaf.dtype for leaf in T.leaves(like)]).itemsize
        return 8 * each * kept_of(self.groups(like).size, self.fraction) + (0 if self.shared else 64)

    def omega(self, value: Tree) -> float | None:
        """``n/k - 1``; ``None`` without the factor."""
        n = self.groups(template_of(value)).size
        return n / kept_of(n, self.fraction) - 1 if self.scaled else None

    def delta(self, value: Tree) -> float | None:
        """``k/n`` without the factor, else ``None``."""
        n = self.groups(template_of(value)).size
        return None if self.scaled else kept_of(n, self.fraction) / n
