"""Stages: what happens to an update on its way out — clip, weight, quantise, add noise — and is undone at the sum.

A stage has a party half (``encode``) and a server half (``decode``). Stages form a chain, applied in order at the party and undone in reverse:
*value* stages see the client's own value, then the aggregate's weight is applied, then *summand* stages see what will be added up.
``decode`` runs once on the sum; for a stage that is not summable it runs on every reply, and a secure reducer refuses such a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from . import tree as T
from .aggregate import Aggregate, Total
from .errors import CompositionError
from .rng import Rng
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Chain", "Identity", "Stage"]


@dataclass(frozen=True)
class Stage:
    """Base of all stages; the base itself changes nothing.

    Attributes:
        on: ``"value"`` stages act before weighting, ``"summand"`` stages after it.
        summable: whether ``decode(sum of encodings)`` equals the sum of the decoded.
        linear: whether encoding is linear in the value.
        unbiased: whether decoding is right on average.
    """

    on: ClassVar[Literal["value", "summand"]] = "value"
    summable: ClassVar[bool] = True
    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def public(self, rng: Rng) -> Tree:
        """Round parameters that every party gets and everyone may know: a scale, a seed, a codebook."""
        del rng
        return None

    def encode(self, value: Tree, public: Tree, rng: Rng) -> Tree:
        """The party half."""
        del public, rng
        return value

    def encode_block(self, block: Tree, public: Tree, keys: NDArray[np.uint64]) -> Tree:
        """The party half for a block of clients with a leading client axis; override it where a loop would be slow."""
        rows = [
            self.encode(T.map(lambda leaf, c=c: leaf[c], block), public, Rng(int(key))) for c, key in enumerate(keys)
        ]
        return T.map(lambda *leaves: T.stack(leaves), *rows)

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """The server half: on the sum of ``n`` replies, or on one (``n = 1``)."""
        del public, n
        return total

    def bits(self, value: Tree) -> int | None:
        """Exact size of the encoded value in bits; ``None`` when only measuring tells."""
        return sum(8 * int(np.prod(np.shape(leaf))) * int(leaf.dtype.itemsize) for leaf in T.leaves(value))

    def sensitivity(self, before: float | None) -> float | None:
        """Largest L2 change one client can cause after this stage, given that before it; ``None`` is unbounded."""
        return before

    @property
    def name(self) -> str:
        """The stage's name in messages and records."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    def settings(self) -> dict[str, Any]:
        """The stage's fields, as plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Identity(Stage):
    """Changes nothing."""


def _undo(rows: Sequence[tuple[int, Stage, Tree]], value: Tree, n: int) -> Tree:
    for _, stage, known in reversed(rows):
        value = stage.decode(value, known, n)
    return value


class Chain:
    """Stages in order, and how they act on aggregates.

    Args:
        stages: value stages first, then summand stages.

    Raises:
        CompositionError: a value stage stands behind a summand stage.
    """

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self.stages = tuple(stages)
        seen: Stage | None = None
        for stage in self.stages:
            if stage.on == "summand":
                seen = stage
            elif seen is not None:
                raise CompositionError(
                    f"{type(stage).__name__} acts on the client's value and stands behind {type(seen).__name__}, which acts on the summand",
                    where="uplink",
                    remedy=f"put {type(stage).__name__} before {type(seen).__name__}",
                )
        self.value_stages = tuple(s for s in self.stages if s.on == "value")
        self.summand_stages = tuple(s for s in self.stages if s.on == "summand")

    def __bool__(self) -> bool:
        return bool(self.stages)

    def require_summable(self, why: str) -> None:
        """Refuse stages whose encodings cannot be added up.

        Raises:
            CompositionError: one of them is not summable.
        """
        for stage in self.stages:
            if not stage.summable:
                raise CompositionError(
                    f"{type(stage).__name__} is not summable: its encodings cannot be added up, and {why} sees only sums",
                    where="uplink",
                    remedy="use a summable stage, or a plain reducer",
                )

    def public(self, rng: Rng) -> list[Tree]:
        """The round parameters of every stage."""
        return [stage.public(rng.child(i, stage.name)) for i, stage in enumerate(self.stages)]

    def _pairs(self, public: Sequence[Tree]) -> tuple[list[tuple[int, Stage, Tree]], list[tuple[int, Stage, Tree]]]:
        rows = [(i, stage, public[i] if public else None) for i, stage in enumerate(self.stages)]
        return [r for r in rows if r[1].on == "value"], [r for r in rows if r[1].on == "summand"]

    def encode(self, aggregate: Aggregate, public: Sequence[Tree], rng: Rng) -> tuple[Total, Tree]:
        """One client's aggregate as a total of one, and what of it crosses the link.

        A chain that is summable leaves the total of a summable aggregate encoded; otherwise each reply is decoded here, on arrival.
        """
        if aggregate.metric or not self.stages:
            return aggregate.total(), aggregate.value
        before, after = self._pairs(public)
        if after and not aggregate.summable:
            raise CompositionError(
                f"{type(after[0][1]).__name__} acts on summands, and {aggregate.kind!r} replies are not summed",
                where="uplink",
                remedy="use stages that act on values",
            )
        sent = aggregate.value
        for i, stage, known in before:
            sent = stage.encode(sent, known, rng.child("stage", i))
        value = sent if self.summable and aggregate.summable else _undo(before, sent, 1)
        total = aggregate.with_value(value).total()
        summand = total.value
        for i, stage, known in after:
            sent = summand = stage.encode(summand, known, rng.child("stage", i))
        if after and not self.summable:
            summand = _undo(after, summand, 1)
        return replace(total, value=summand), sent

    def encode_block(self, aggregate: Aggregate, public: Sequence[Tree], keys: NDArray[np.uint64]) -> Aggregate:
        """A block of clients' aggregates with the value stages applied."""
        if aggregate.metric:
            return aggregate
        value = aggregate.value
        for i, stage, known in self._pairs(public)[0]:
            stage_keys = np.array([Rng(int(k)).child("stage", i).key for k in keys], dtype=np.uint64)
            value = stage.encode_block(value, known, stage_keys)
        return aggregate.with_value(value)

    def decode(self, total: Total, public: Sequence[Tree]) -> Total:
        """Undo the stages on a sum, in reverse."""
        if total.metric or not self.stages or total.kind == "parts" or not self.summable:
            return total
        before, after = self._pairs(public)
        return replace(total, value=_undo([*before, *after], total.value, total.n))

    @property
    def summable(self) -> bool:
        """Whether all stages are."""
        return all(stage.summable for stage in self.stages)
