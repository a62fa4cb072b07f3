"""Aggregates: what a party replies when only a combination of all replies may be seen.

A reply to ``Federation.sum`` is a dict of named aggregates. Each becomes a *summand*. Summands add up (a commutative monoid), so trees of
aggregators, masking and late arrivals need no extra code. ``Total.result`` turns the sum into what the program sees:

====================  =======================  =========================
aggregate             summand of client k      result
====================  =======================  =========================
``Mean(value, w)``    ``w_k * value_k``        ``sum / sum_k w_k``
``Sum(value)``        ``value_k``              ``sum``
``Vote(value)``       ``sign(value_k)``        ``sign(sum)``
``Parts(value, w)``   not summable             each single reply
====================  =======================  =========================

The purpose of a value is its *role*:

============  =====================================================  ==================
role          use of the combined value                              uplink stages
============  =====================================================  ==================
``update``    the algorithm folds it into the model (the default)    act on it
``side``      the algorithm folds it: a count, a step size, a loss   leave it alone
``metric``    a number for the round's row                           leave it alone
``report``    a selection rule looks at it                           leave it alone
``buffer``    running statistics of a model, averaged                act on it
``counter``   how far a model's counters moved; see `learn.round`     leave it alone
============  =====================================================  ==================
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from ..calls import checked_call
from ..errors import AtollError, CompositionError, ConfigError, MessageError
from . import tree as T

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Aggregate",
    "Mean",
    "Part",
    "Parts",
    "ROLES",
    "Role",
    "Sum",
    "Total",
    "Totals",
    "Vote",
    "add_into",
    "finite",
    "kept_apart",
    "merge_totals",
    "pieces",
    "rejoin_parts",
    "reorder_parts",
    "sign_parts",
    "stack_replies",
]


Role = Literal["update", "side", "metric", "report", "buffer", "counter"]
"""The purpose of a value in a reply."""
ROLES: tuple[Role, ...] = ("update", "side", "metric", "report", "buffer", "counter")
STAGED: frozenset[Role] = frozenset({"update", "buffer"})


@dataclass(frozen=True)
class Aggregate:
    """One named value of a reply, with the rule that combines replies.

    Attributes:
        value: a tree; for one client in its own shapes, for a block of clients with a leading client axis.
        role: the purpose of the value; see the table above.

    Raises:
        ConfigError: the role is unknown.
    """

    value: T.Tree
    role: Role = field(default="update", kw_only=True)
    kind: ClassVar[str] = ""
    summable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"role={self.role!r}", where=type(self).__name__, remedy=f"use one of {', '.join(ROLES)}")

    @property
    def staged(self) -> bool:
        """Whether the value may leave beside a stage that guards a reply: it is no measurement."""
        return self.role in STAGED

    @property
    def encoded(self) -> bool:
        """Whether uplink stages change the value. Buffers, such as running statistics, cross as they are: what a clip or a sparsifier leaves of a variance serves no model."""
        return self.role == "update"

    @property
    def weight(self) -> Any:
        """The weight of the reply: a float, or one float per client of a block."""
        return 1.0

    def summand(self) -> T.Tree:
        """The summand of this one client."""
        return self.value

    def block_sum(self, keep: Any = None, senders: Any = None) -> Total:
        """Sum a block of clients along the leading axis.

        Args:
            keep: 0/1 per client, shape ``(clients,)``; ``None`` keeps all.
            senders: positions of the clients, ``(clients,)``, for replies that are not summed.
        """
        del senders
        count = len(T.leaves(self.value)[0])
        weights = np.ones(count) if keep is None else np.asarray(keep, dtype=np.float64)
        scaled = weights * np.asarray(self.weight, dtype=np.float64)
        factor = scaled if self.kind == "mean" else weights  # a vote or a sum counts each client once
        value = self.summand() if self.kind == "vote" else self.value
        add = _weighted_sum if self.kind == "mean" else _sum
        summed = T.map(lambda leaf: add(leaf, factor), value)
        return Total(self.kind, summed, float(scaled.sum()), int(weights.sum()), self.role)

    def block_totals(self) -> Total:
        """The total of each client of a block: a total whose value and weight have a leading client axis."""
        count = len(T.leaves(self.value)[0])
        weights = np.array(np.broadcast_to(np.asarray(self.weight, dtype=np.float64), (count,)))
        value = T.map(lambda leaf: _times(leaf, weights), self.value) if self.kind == "mean" else self.summand()
        return Total(self.kind, value, weights, 1, self.role)

    def total(self) -> Total:
        """The total of this one reply."""
        return Total(self.kind, self.summand(), float(self.weight), 1, self.role)

    def row(self, i: int) -> Self:
        """Client ``i`` of a block, with its own weight."""
        weight = float(np.ravel(np.asarray(self.weight))[i]) if np.ndim(self.weight) else self.weight
        return self.with_value(T.map(lambda leaf: leaf[i], self.value), weight)

    def part(self, keep: np.ndarray) -> Self:
        """Some clients of a block, with their own weights."""
        weight = np.asarray(self.weight)[keep] if np.ndim(self.weight) else self.weight
        return self.with_value(T.map(lambda leaf: leaf[keep], self.value), weight)

    def with_value(self, value: T.Tree, weight: Any = None) -> Self:
        """The same aggregate with another value, and another weight if one is given and the kind has weights."""
        made = object.__new__(type(self))  # runs for every reply, and `replace` takes ten times as long
        made.__dict__.update(self.__dict__, value=value)
        if weight is not None and "examples" in made.__dict__:
            made.__dict__["examples"] = weight
        return made


def stack_replies(rows: Sequence[Aggregate]) -> Aggregate:
    """Stack single replies into one aggregate of a block."""
    value = T.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *(row.value for row in rows))
    return rows[0].with_value(value, np.array([float(row.weight) for row in rows]))


def _weighted_sum(leaf: Any, weights: np.ndarray) -> Any:
    """``sum_c weights[c] * leaf[c]``, in the leaf's own library and dtype.

    A client of weight 0 is left out, so that its NaN cannot spread.
    """
    if isinstance(leaf, np.ndarray):
        if not weights.all():
            leaf, weights = leaf[weights != 0], weights[weights != 0]
        dtype = leaf.dtype if leaf.dtype.kind == "f" else np.float64
        return np.tensordot(weights.astype(dtype), leaf.astype(dtype, copy=False), axes=1)[()]
    torch = T.namespace(leaf)
    if not weights.all():
        rows = torch.as_tensor(np.flatnonzero(weights), device=leaf.device)
        leaf, weights = leaf[rows], weights[weights != 0]
    factors = torch.as_tensor(weights, dtype=leaf.dtype, device=leaf.device)
    return torch.tensordot(factors, leaf, dims=1)


def _sum(leaf: Any, weights: np.ndarray) -> Any:
    """The same for weights of 0 and 1. Integers stay integers: unsigned ones add modulo 2^bits, as masked words must."""
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iu":
        return (leaf if weights.all() else leaf[weights != 0]).sum(axis=0, dtype=leaf.dtype)
    return _weighted_sum(leaf, weights)


def _times(leaf: Any, weights: np.ndarray) -> Any:
    """``weights[c] * leaf[c]``: each row as ``T.scale`` would return it."""
    shape = (len(weights), *(1,) * (np.ndim(leaf) - 1))
    if isinstance(leaf, np.ndarray):
        dtype = leaf.dtype if leaf.dtype.kind == "f" else np.float64
        return leaf * weights.astype(dtype).reshape(shape)
    torch = T.namespace(leaf)
    return leaf * torch.as_tensor(weights, dtype=leaf.dtype, device=leaf.device).reshape(shape)


@checked_call
@dataclass(frozen=True)
class Mean(Aggregate):
    """A weighted mean: ``sum_k w_k value_k / sum_k w_k``, usually weighted by examples."""

    examples: Any = 1.0
    kind: ClassVar[str] = "mean"

    @property
    def weight(self) -> Any:
        """The weight ``w_k``."""
        return self.examples

    def summand(self) -> T.Tree:
        """``w_k * value_k``."""
        return T.scale(self.value, float(self.examples))  # a NumPy scalar would widen float32 leaves


@checked_call
@dataclass(frozen=True)
class Sum(Aggregate):
    """A plain sum over clients."""

    kind: ClassVar[str] = "sum"


@checked_call
@dataclass(frozen=True)
class Vote(Aggregate):
    """A majority vote on the sign of each entry."""

    kind: ClassVar[str] = "vote"

    def summand(self) -> T.Tree:
        """``sign(value_k)``."""
        return T.sign(self.value)


@checked_call
@dataclass(frozen=True)
class Parts(Aggregate):
    """Single replies, for a fold that must see each of them; a secure reducer refuses them."""

    examples: Any = 1.0
    kind: ClassVar[str] = "parts"
    summable: ClassVar[bool] = False

    @property
    def weight(self) -> Any:
        """The weight of the reply."""
        return self.examples

    def total(self) -> Total:
        """A total whose list has only this part."""
        return Total(self.kind, [Part(self.value, float(self.weight))], float(self.weight), 1, self.role)

    def block_sum(self, keep: Any = None, senders: Any = None) -> Total:
        """The parts of a block, in order."""
        values = [T.leaves(self.value)[0]] if not T.leaves(self.value) else T.leaves(self.value)
        count = len(values[0])
        weights = np.broadcast_to(np.asarray(self.weight, dtype=np.float64), (count,))
        by = [-1] * count if senders is None else senders.tolist()
        rows = zip(T.unstack_trees(self.value, count), weights.tolist(), by, strict=True)
        parts = [Part(*row) for row in (rows if keep is None else compress(rows, keep))]
        return Total(self.kind, parts, float(sum(p.weight for p in parts)), len(parts), self.role)


@dataclass(frozen=True)
class Part:
    """One client's own reply in ``Parts``.

    Attributes:
        value: the value that the client sent.
        weight: its weight.
        sender: position of the client in the roster; -1 until the federation sets it.
        of: kind of the aggregate, if replies that add up are stored separately for later; see ``kept_apart``.
    """

    value: T.Tree
    weight: float
    sender: int = -1
    of: str = "parts"


@dataclass(frozen=True)
class Total:
    """A running sum of summands: the monoid behind every aggregate.

    Attributes:
        kind: the aggregate's kind.
        value: the sum of summands (for ``parts``, the list of parts).
        weight: the sum of weights, a float; for clients of a block that are not summed, one a client.
        n: number of replies in the sum.
        role: the purpose of the value.
        owned: whether nothing else uses its arrays, so that the result can reuse their memory.
    """

    kind: str
    value: Any
    weight: Any
    n: int
    role: Role = "update"
    owned: bool = field(default=False, compare=False)

    @property
    def staged(self) -> bool:
        """Whether the value may leave beside a stage that guards a reply."""
        return self.role in STAGED

    @property
    def encoded(self) -> bool:
        """Whether uplink stages acted on the value; see `Aggregate.encoded`."""
        return self.role == "update"

    def merge(self, other: Total) -> Total:
        """Add two totals of the same aggregate.

        Raises:
            CompositionError: their kinds differ.
        """
        if other.kind != self.kind:
            raise CompositionError(
                f"a total of kind {self.kind!r} cannot be merged with one of kind {other.kind!r}",
                remedy="make all clients reply with the same aggregates",
            )
        value = self.value + other.value if self.kind == "parts" else T.add(self.value, other.value)
        return Total(self.kind, value, self.weight + other.weight, self.n + other.n, self.role)

    def result(self) -> Any:
        """The combined value."""
        if self.kind == "mean":
            if not self.weight:
                return self.value
            return (
                T.map(_scaled_in_place(1.0 / self.weight), self.value)
                if self.owned
                else T.scale(self.value, 1.0 / self.weight)
            )
        if self.kind == "vote":
            return T.sign(self.value)
        return self.value


def _scaled_in_place(factor: float) -> Any:
    """Return a function that multiplies float arrays in place, with the same bits as ``T.scale``."""

    def scale_leaf(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.kind == "f":
            return np.multiply(leaf, leaf.dtype.type(factor), out=leaf)
        return T.scale(leaf, factor)

    return scale_leaf


Totals = dict[str, Total]
"""Named totals; the empty dict is zero."""


def sign_parts(totals: Totals, senders: Sequence[int]) -> Totals:
    """Set the sender's position on each part, given the senders in the order of the parts."""

    def sign_total(total: Total) -> Total:
        if total.kind != "parts" or len(total.value) != len(senders) or all(part.sender >= 0 for part in total.value):
            return total
        pairs = zip(total.value, senders, strict=True)
        return replace(total, value=[Part(part.value, part.weight, int(position), part.of) for part, position in pairs])

    return {name: sign_total(total) for name, total in totals.items()}


def reorder_parts(total: Total, order: Sequence[int]) -> Total:
    """The same total with its single replies in another order; a sum has none."""
    if total.kind != "parts" or len(total.value) != len(order):
        return total
    return replace(total, value=[total.value[i] for i in order])


def kept_apart(total: Total, sender: int) -> Total:
    """Wrap one reply's total in a part with its sender, to store it separately and add it up later."""
    if total.kind == "parts":
        return replace(total, value=[replace(part, sender=sender) for part in total.value])
    return replace(total, kind="parts", value=[Part(total.value, total.weight, sender, total.kind)])


def rejoin_parts(total: Total) -> Total:
    """The inverse of ``kept_apart``, for one reply."""
    part: Part = total.value[0]
    return total if part.of == "parts" else replace(total, kind=part.of, value=part.value)


def merge_totals(parts: Iterable[Mapping[str, Total]]) -> Totals:
    """Merge named totals in the given order.

    Raises:
        MessageError: values under one name have different shapes.
    """
    merged: Totals = {}
    for part in parts:
        if not merged:
            merged = dict(part)
            continue
        for name, total in part.items():
            try:
                merged[name] = merged[name].merge(total) if name in merged else total
            except (ValueError, TypeError) as error:
                if isinstance(error, AtollError):
                    raise
                raise MessageError(
                    f"replies under {name!r} do not add up: {error}",
                    where="the sum of a cohort",
                    remedy="let every party reply with the same names, and arrays of the same shapes and dtypes; a metric that it cannot compute is NaN",
                ) from error
    return merged


# ---------------------------------------------------------------------- sums in memory of their own


_PIECE = 1 << 20  # bytes


def pieces(into: NDArray[Any], leaf: NDArray[Any]) -> Iterable[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield both arrays piece by piece; pages of a mapped file under ``leaf`` are released after each."""
    if leaf.nbytes <= _PIECE or not leaf.flags.c_contiguous:
        yield into, leaf
        return
    mapped, ours, theirs = _mapping(leaf), into.reshape(-1), leaf.reshape(-1)
    step = max(1, _PIECE // leaf.itemsize)
    for start in range(0, len(theirs), step):
        yield ours[start : start + step], theirs[start : start + step]
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)


def finite(leaf: Any) -> bool:
    """Tell whether a number or every entry of an array is finite; integers always are."""
    array = np.asarray(leaf)
    if array.dtype.kind not in "fc":
        return True
    return all(bool(np.isfinite(part).all()) for part, _ in pieces(array, array))


def _mapping(array: NDArray[Any]) -> mmap.mmap | None:
    """Return the mapped file that an array views, if it does."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") else None


def add_into(sums: Totals, part: Mapping[str, Total]) -> None:
    """Add totals to those that are there already; the first of a name is copied.

    Raises:
        CompositionError: two totals of one name have different kinds.
    """
    for name, total in part.items():
        known = sums.get(name)
        sums[name] = _own(total) if known is None else _merge_pair(known, total)


def _own(total: Total) -> Total:
    """Return a total whose arrays belong to this sum alone."""
    if total.kind == "parts":
        return total
    return replace(total, value=T.map(_copy_leaf, total.value), owned=True)


def _merge_pair(sum_: Total, part: Total) -> Total:
    if sum_.kind == "parts" or sum_.kind != part.kind or not _alike(sum_.value, part.value):
        return sum_.merge(part)
    for into, leaf in zip(T.leaves(sum_.value), T.leaves(part.value), strict=True):
        _add_into(into, leaf)
    return replace(sum_, weight=sum_.weight + part.weight, n=sum_.n + part.n)


def _alike(a: Any, b: Any) -> bool:
    """Tell whether two trees have the same arrays in the same places, so that one can be added into the other."""
    ours, theirs = list(T.items(a)), list(T.items(b))
    return len(ours) == len(theirs) and all(
        p == q and isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.dtype == y.dtype and x.shape == y.shape
        for (p, x), (q, y) in zip(ours, theirs, strict=True)
    )


def _copy_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.ndim == 0:
        return leaf.copy()
    copy = np.empty_like(leaf, order="C")
    for into, of in pieces(copy, leaf):
        into[...] = of
    return copy


def _add_into(into: NDArray[Any], leaf: NDArray[Any]) -> None:
    for ours, theirs in pieces(into, leaf):
        np.add(ours, theirs, out=ours)
