"""Random entries, whose indices follow from a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Estimated, Guarding, StageContext

from .coded.words import coded
from .packed import Packed
from .rows import Groups, numpy_leaf, template, template_of
from .topk import check_fraction, kept_of, scatter

__all__ = ["RandomK"]


@dataclass(frozen=True)
class RandomK(Packed, Guarding, Estimated):
    """``k`` entries drawn at random, times ``n/k``; the others are zero. Indices are not sent: they follow from a seed.

    Unbiased with ``E ||C(x) - x||^2 = (n/k - 1) ||x||^2``; without the factor (``scaled=False``) a contraction with ``delta = k/n``, for
    ``ErrorFeedback``. Stich, Cordonnier, Jaggi 2018; Konečný et al. 2016 ("random mask").

    ``shared``: all clients use the round's public seed, so that their values add up. The stage is then linear, summable and fit for secure sums,
    but the clients' errors do not average out.

    ``per="tensor"``, with a shared seed, draws ``k`` of the ``n`` entries of each layer, as random pruning underneath secure sums does (Prasad et al. 2022,
    "Reconciling Security and Communication Efficiency in Federated Learning"). Biases, normalisation layers (leaves with fewer than two axes) and
    leaves with fewer than ``least`` entries are sent whole. The kept values of a layer are a column ``(k, 1)``, so that ``ScalarQuantizer`` behind it codes them
    as a layer, with a scale of its own.

    On the wire: the values in the update's own precision, and a 64-bit seed unless the seed is shared.

    Attributes:
        fraction: share of the entries to send, ``k = max(1, floor(fraction n))``.
        scaled: whether to multiply by ``n/k``.
        shared: whether all clients use one seed.
        per: ``"model"`` draws among all entries, ``"tensor"`` in each layer.
        least: entries that a pruned layer must have.
        seed: draws the same entries in every round instead of new ones. Needs ``shared``.
    """

    fraction: float = 0.01
    scaled: bool = True
    shared: bool = False
    per: Literal["model", "tensor"] = "model"
    least: int = 10
    seed: int | None = None

    def __post_init__(self) -> None:
        check_fraction(self.fraction, "RandomK")
        if self.seed is not None and not self.shared:
            raise ConfigError(f"seed={self.seed}", where="RandomK", remedy="use shared=True, or leave the seed out")
        if self.per not in ("model", "tensor") or (self.per == "tensor" and not self.shared):
            remedy = "use 'model', or 'tensor' with shared=True"
            raise ConfigError(f"per={self.per!r}, shared={self.shared}", where="RandomK", remedy=remedy)
        for name, promise in (
            ("unbiased", self.scaled and self.seed is None),
            ("summable", self.shared),
            ("linear", self.shared),
        ):
            object.__setattr__(self, name, promise)

    def public(self, rng: Rng) -> Tree:
        """Return the seed, if it is shared."""
        if self.seed is not None:
            return self.seed
        return rng.key if self.shared else None

    def _places(self, key: int, size: int) -> Any:
        draw = np.random.Generator(np.random.PCG64(key))
        return np.sort(draw.choice(size, kept_of(size, self.fraction), replace=False, shuffle=False))

    # ------------------------------------------------------------------ layer by layer

    def _pruned(self, shape: tuple[int, ...]) -> bool:
        return coded(shape, "matrices", self.least)

    def _layer_places(self, public: Tree, layer: int, size: int) -> Any:
        return self._places(Rng(public).child("layer", layer).key, size)

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Pack each client's vector, or keep some entries of each layer."""
        if self.per == "model":
            return super().encode_block(block, context)
        arrays = T.map(numpy_leaf, block)
        values = []
        for i, leaf in enumerate(T.leaves(arrays)):
            if self._pruned(leaf.shape[1:]):
                rows = leaf.reshape(len(leaf), -1)
                place = self._layer_places(context.public, i, rows.shape[1])
                leaf = (rows[:, place] * rows.dtype.type(self._factor(rows.shape[1])))[:, :, None]
            values.append(leaf)
        return {"like": template(arrays), "values": values}

    def decode_block(self, block: Tree, public: Tree, memory: Tree = None) -> Tree:
        """Put the values at their indices."""
        if self.per == "model":
            return super().decode_block(block, public, memory)
        like, leaves = block["like"], []
        for i, (leaf, form) in enumerate(zip(block["values"], T.leaves(like), strict=True)):
            shape = form.shape[2:]
            if self._pruned(shape):
                size = math.prod(shape)
                index = np.broadcast_to(self._layer_places(public, i, size), (len(leaf), leaf.shape[1]))
                leaf = scatter(len(leaf), size, index, leaf[:, :, 0], form.dtype).reshape(len(leaf), *shape)
            leaves.append(np.asarray(leaf, dtype=form.dtype))
        return T.rebuild(like, leaves)

    def _factor(self, size: int) -> float:
        return size / kept_of(size, self.fraction) if self.scaled else 1.0

    def _layers(self, value: Tree) -> list[tuple[int, int, int]]:
        """Entries of each layer, entries that are sent, and bytes an entry."""
        forms = [(leaf.shape[1:], leaf.itemsize) for leaf in T.leaves(template_of(value))]
        sizes = [(math.prod(shape), self._pruned(shape), item) for shape, item in forms]
        return [(size, kept_of(size, self.fraction) if pruned else size, item) for size, pruned, item in sizes]

    # ------------------------------------------------------------------ all entries as one vector

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return the values, and the seed of their indices."""
        factor = self._factor(groups.size)
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
        if self.per == "tensor":
            return sum(8 * item * kept for _, kept, item in self._layers(value))
        like = template_of(value)
        each = np.result_type(*[leaf.dtype for leaf in T.leaves(like)]).itemsize
        return 8 * each * kept_of(self.groups(like).size, self.fraction) + (0 if self.shared else 64)

    def sensitivity(self, before: float | None) -> float | None:
        """Return that before it, times a bound of ``n/k`` if values are scaled: all of a client's change may be in the entries that stay."""
        if before is None or not self.scaled or self.fraction == 1:
            return before
        return 2 * before / self.fraction  # floor(fraction n) is at least half of fraction n

    def omega(self, value: Tree) -> float | None:
        """``n/k - 1``, the largest of all layers; ``None`` without the factor, or if the entries stay the same."""
        if self.seed is not None:
            return None
        if self.per == "tensor":
            return max((n / k - 1 for n, k, _ in self._layers(value) if n), default=0.0) if self.scaled else None
        n = self.groups(template_of(value)).size
        return n / kept_of(n, self.fraction) - 1 if self.scaled else None

    def delta(self, value: Tree) -> float | None:
        """``k/n``, the smallest of all layers, without the factor; else, or if the entries stay the same, ``None``."""
        if self.seed is not None:
            return None
        if self.per == "tensor":
            return None if self.scaled else min((k / n for n, k, _ in self._layers(value) if n), default=1.0)
        n = self.groups(template_of(value)).size
        return None if self.scaled else kept_of(n, self.fraction) / n
