"""What a plan costs under shares, before it runs: bytes and messages of the three parties, from the sizes of the leaves alone.

One party rehearses the plan on zeros (`atoll.secure.shares.ShareRehearsal`). Large plans are rehearsed at two smaller sizes: with ``n`` rows of the largest table, bytes are ``n (a log n + b)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from atoll.core import message as M
from atoll.core.message.words import word_dtype
from atoll.core.sealing import sealed_nbytes
from atoll.secure.shares import ShareRehearsal, Trio
from atoll.secure.tables import SharedTable, outward_rows

from ..slices import HERE, SlicedTables, SliceExtents, SliceSizes, empty_table, result_layout, sliced_rows
from .extents import Extents
from .kept_plan import KeptTables, held_relations, kept_layout, makes_relation
from .operators import TOLD, Operator, PlanLeaf, SecurePlan, held_places
from .tables import SecureTables

__all__ = [
    "WITHHELD",
    "RehearsedCuts",
    "RehearsedKeys",
    "SecureCost",
    "leaf_layout",
    "measure_extents",
    "predict_cost",
    "relayed_nbytes",
    "release_rows",
    "shared_layout",
    "sharing_nbytes",
    "shown_columns",
    "sliced_layout",
]

WITHHELD = "withheld"
"""The column of the number of groups that are left out."""

Layout = dict[str, "int | None"]
_LARGEST = 1 << 12
"""Rows of the largest table of a plan that is rehearsed as it is."""
_FEW = 1 << 6
"""Rows of the largest table of a plan that is rehearsed in several orders: of more rows, the steps of sorts differ between orders by 2 % at most."""
_RELAYED = 2
"""How often a byte between two sites is counted: the coordinator relays it."""


@dataclass(frozen=True)
class SecureCost:
    """What the three parties send.

    Attributes:
        nbytes: bytes of all of them, those of owners who share their rows too.
        messages: messages of one party, most of them one after the other.
        outward: bytes of the answer's rows, of the two parties that hand them out.
    """

    nbytes: float
    messages: float
    outward: float


class RehearsedKeys(Protocol):
    """Tables of a plan some of whose keys one party reads, so that each of the three sends something else."""

    extents: type[Extents]

    def make_tables(self, trio: Trio, leaves: Sequence[SharedTable]) -> SecureTables:
        """What computes the tables."""
        ...


class RehearsedCuts(Protocol):
    """Tables that become smaller by a part that is known, whatever their size."""

    def shrink(self, op: Operator, rows: int) -> int:
        """How many of an operator's rows are left."""
        ...

    async def resize(self, tables: SecureTables, op: Operator, table: SharedTable) -> SharedTable:
        """What the parties do to cut an operator's table."""
        ...


def leaf_layout(leaf: PlanLeaf, widths: Mapping[str, int]) -> Layout:
    """The columns of a leaf's shared table.

    Args:
        leaf: the leaf.
        widths: words of each column of text.
    """
    made: Layout = {}
    for column in leaf.columns:
        if column.number:
            made |= {column.name: None, f"{column.name}?": 1}
        else:
            made |= {f"{column.name}.{w}": 64 for w in range(widths.get(column.name, 1))} | {f"{column.name}?": 1}
    return made


def shared_layout(plan: SecurePlan, place: int, widths: Mapping[str, int]) -> Layout:
    """The columns of a leaf as sites share them: of a sliced one also which rows count."""
    sliced = sliced_rows(plan)
    made = leaf_layout(plan.leaves[place], widths)
    return made if sliced is None or place not in sliced.places else {**made, HERE: 1}


def sliced_layout(plan: SecurePlan, slices: SliceSizes, widths: Mapping[str, int]) -> Layout:
    """The columns of the rows that slices make."""
    return result_layout(slices.sliced, [leaf_layout(leaf, widths) for leaf in plan.leaves])


def measure_extents(plan: SecurePlan, sizes: Mapping[str, Sequence[int]], shrink: Callable[[Operator, int], int] | None = None, kind: type[Extents] = Extents, slices: SliceSizes | None = None, told: Mapping[int, int] | None = None, kept: Mapping[str, int] | None = None) -> Extents:  # fmt: skip
    """How many rows the plan's tables have, for the sizes of the leaves at each site, those of slices, and those of relations that are kept; see `Extents`."""
    totals = [max(1, sum(own)) for own in zip(*sizes.values(), strict=True)]
    found = kind(totals, shrink) if slices is None else SliceExtents(slices, totals, shrink)
    found.told, found.kept, held = told, kept, held_places(plan)
    found.largest = max((rows for place, rows in enumerate(totals) if place not in held), default=1)
    for root in (plan.root, plan.withheld):
        if root is not None:
            found.rows(root)
    return found


def shown_columns(plan: SecurePlan, table: SharedTable) -> SharedTable:
    """The columns of the last table that are opened: words, numbers, and the bits beside them."""
    return table.keep_columns(plan.shown_of(table.columns))


async def release_rows(plan: SecurePlan, tables: SecureTables) -> tuple[SharedTable, Any, Any]:
    """The answer's table, this party's part of its rows, and of the number of groups that are left out; ``None`` if none can be.

    Args:
        plan: the plan.
        tables: what makes its tables.
    """
    made = shown_columns(plan, await tables.make(plan.root))
    few = None
    if plan.withheld is not None:
        few = await outward_rows((await tables.make(plan.withheld)).keep_columns([WITHHELD]), ordered=True)
    return made, await outward_rows(made, ordered=plan.ordered), few


def predict_cost(plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], parties: Sequence[str], cuts: RehearsedCuts | None = None, keys: RehearsedKeys | None = None, noted: Mapping[str, Sequence[int]] | None = None, slices: SliceSizes | None = None, orders: int = 4) -> SecureCost:  # fmt: skip
    """What a plan costs.

    Args:
        plan: the plan.
        sizes: rows of each leaf at each site.
        widths: words of each column of text.
        parties: the three parties.
        cuts: tables that the parties cut; ``None`` for none.
        keys: tables whose keys a party reads; ``None`` for none.
        noted: sizes that they opened on the way, by name; by default usual ones.
        slices: how many rows slices have; ``None`` for a plan without.
        orders: how many orders of few rows are rehearsed: one is enough where the sizes are guesses.
    """
    extents = measure_extents(plan, sizes)
    run = _Rehearsals(plan, widths, cuts, keys, noted, slices, {op.relation: extents.rows(op) for op in held_relations(plan)})  # fmt: skip
    largest = run.largest([max(1, sum(own)) for own in zip(*sizes.values(), strict=True)])
    places = [place for place in range(len(plan.leaves)) if place not in held_places(plan)]
    shared = sum(sharing_nbytes(shared_layout(plan, place, widths), own[place], owner in parties) for place in places for owner, own in sizes.items() if own[place])  # fmt: skip
    if slices is not None:
        layout = sliced_layout(plan, slices, widths)
        shared += sum(sharing_nbytes(layout, slices.result_rows(owner), owner in parties) for owner in sizes if slices.result_rows(owner))  # fmt: skip
    totals = [max(1, sum(own)) for own in zip(*sizes.values(), strict=True)]
    if largest <= _LARGEST:
        # Few rows are sorted in a number of steps that varies: the mean of several orders is nearer.
        few = largest <= (
            _FEW if cuts is None else _LARGEST // 4
        )  # what is left of tables that are cut may be few rows
        drawn = [run.play(totals, seed) for seed in range(orders if few and keys is None else 1)]
        sent, messages = (sum(values) / len(drawn) for values in zip(*((one.nbytes, one.messages) for one in drawn), strict=True))  # fmt: skip
        return SecureCost(sent + shared, messages, drawn[0].outward)
    runs = []
    for shrunk in (_LARGEST, _LARGEST // 4):
        smaller, part = list(totals), run
        while (rows := part.largest(smaller)) > shrunk and max(smaller) > 1:
            smaller, part = [max(1, one // 2) for one in smaller], part.halved()
        runs.append((rows, part.play(smaller)))
    (n, one), (m, other) = runs
    bytes_, outward = (_extrapolate(largest, (n, a), (m, b)) for a, b in ((one.nbytes, other.nbytes), (one.outward, other.outward)))  # fmt: skip
    growth = (one.messages - other.messages) / max(1e-9, math.log2(n / m)) if n > m else 0.0
    return SecureCost(bytes_ + shared, one.messages + growth * math.log2(largest / n), outward)


def _extrapolate(n: int, one: tuple[int, float], other: tuple[int, float]) -> float:
    (a, x), (b, y) = one, other
    if a <= b:
        return x * n / a
    slope = (x / a - y / b) / math.log(a / b)
    return n * (x / a + slope * math.log(n / a))


def relayed_nbytes(nbytes: int) -> int:
    """Bytes that a message between two sites counts, sealed and relayed."""
    return _RELAYED * sealed_nbytes(nbytes)


def sharing_nbytes(layout: Layout, rows: int, among: bool) -> int:
    """Bytes that an owner sends to share its rows: two seeds, and what is missing twice."""
    rest = rows * (1 + sum(word_dtype(64 if bits is None else bits).itemsize for bits in layout.values()))
    seed, whole = bytes(32), np.zeros(rest, np.uint8)
    messages: list[list[Any]] = [[seed, seed], [seed, whole], [whole, seed]]
    sent = [relayed_nbytes(M.nbytes(one)) for one in messages]
    return sum(sent[1:]) if among else sum(sent)


@dataclass(frozen=True)
class _Rehearsals:
    """The protocol of one party, on zeros; see `predict_cost`."""

    plan: SecurePlan
    widths: Mapping[str, int]
    cuts: RehearsedCuts | None
    keys: RehearsedKeys | None
    noted: Mapping[str, Sequence[int]] | None
    slices: SliceSizes | None = None
    kept: Mapping[str, int] = field(default_factory=dict)

    def halved(self) -> _Rehearsals:
        """The same of half of the slices, if there are several, of half of the pairs of joins whose size was opened, and of half of the rows of relations that are kept."""
        slices = self.slices if self.slices is None or len(self.slices.keys) < 2 else self.slices.every(2)
        noted = {name: [max(1, one // 2) for one in sizes] if name.startswith(TOLD) else sizes for name, sizes in (self.noted or {}).items()}  # fmt: skip
        return replace(self, slices=slices, noted=noted, kept={name: max(1, rows // 2) for name, rows in self.kept.items()})  # fmt: skip

    def largest(self, totals: Sequence[int]) -> int:
        """Rows of the largest table."""
        shrink = None if self.cuts is None else self.cuts.shrink
        told = {int(name.removeprefix(TOLD)): int(sizes[0]) for name, sizes in (self.noted or {}).items() if name.startswith(TOLD)}  # fmt: skip
        return measure_extents(self.plan, {"all": totals}, shrink, Extents if self.keys is None else self.keys.extents, self.slices, told, self.kept).largest  # fmt: skip

    def play(self, totals: Sequence[int], seed: int = 0) -> SecureCost:
        """What the parties send for leaves of some rows: one of them stands for all, unless each sends something else."""
        if self.keys is None:
            rehearsal, part = self._play(totals, seed, 1)
            return SecureCost(rehearsal.nbytes, rehearsal.messages, sum(2.0 * M.nbytes(one) for one in part))
        runs = [self._play(totals, seed + place, place) for place in range(3)]
        outward = sum(M.nbytes(one) for _, parts in runs[:2] for one in parts)
        return SecureCost(sum(one.sent for one, _ in runs), max(one.messages for one, _ in runs), outward)

    def _play(self, totals: Sequence[int], seed: int, place: int) -> tuple[ShareRehearsal, Any]:
        rehearsal = ShareRehearsal(relayed_nbytes, seed, place, self.noted)
        trio = rehearsal.trio

        slices = self.slices

        def rows(place: int, n: int) -> int:
            return n if slices is None or place not in slices.sliced.places else len(slices.leaf_places(place))

        def tables(leaves: Sequence[SharedTable]) -> SecureTables:
            if slices is not None:
                layout, counts = sliced_layout(self.plan, slices, self.widths), map(slices.result_rows, slices.counts)
                return SlicedTables(trio, leaves, slices, [empty_table(trio, layout, n) for n in counts if n])
            relations = held_relations(self.plan)
            if relations:
                return KeptTables(trio, leaves, {op.relation: empty_table(trio, kept_layout(op, self.widths), self.kept[op.relation]) for op in relations})  # fmt: skip
            resize = None if self.cuts is None else self.cuts.resize
            return SecureTables(trio, leaves, resize) if self.keys is None else self.keys.make_tables(trio, leaves)

        async def work() -> Any:
            held = held_places(self.plan)
            leaves = [empty_table(trio, leaf_layout(leaf, self.widths), 1 if place in held else rows(place, n)) for place, (leaf, n) in enumerate(zip(self.plan.leaves, totals, strict=True))]  # fmt: skip
            if makes_relation(self.plan):
                await tables(leaves).make(self.plan.root)
                return ()
            return (await release_rows(self.plan, tables(leaves)))[1:]

        return rehearsal, rehearsal.play(work())
