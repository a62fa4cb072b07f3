"""What a plan costs under shares, before it runs: bytes and messages of the three parties, from the sizes of the leaves alone.

One party rehearses the plan on zeros (`atoll.secure.shares.ShareRehearsal`). Large plans are rehearsed at two smaller sizes, and each operator's part follows from these: of ``n`` rows its bytes are
``n (a log n + b)`` and those around its messages. The operators of a plan grow apart: of three tables, pairs of pairs do with the third power of what the leaves do.
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
from .operators import TOLD, Operator, PlanLeaf, SecurePlan, held_places, walk_operators
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
    smaller, part, runs = list(totals), run, list[dict[int, _Part]]()
    for most in (_LARGEST, _LARGEST // 4):
        begun = len(runs) == 0
        while (part.largest(smaller) > most or not begun) and max(smaller) > 1:
            smaller, part, begun = part.halve_leaves(smaller), part.halved(), True
        runs.append(part.measure(smaller))
    worked = run.size_parts(totals)
    made = {place: _extrapolate(worked[place], one, runs[1].get(place, one)) for place, one in runs[0].items()}
    outward = made.pop(_OUTWARD)
    return SecureCost(sum(nbytes for nbytes, _ in made.values()) + shared, sum(messages for _, messages in made.values()), outward[0])  # fmt: skip


def _extrapolate(n: int, one: _Part, other: _Part) -> tuple[float, float]:
    """Bytes and messages of an operator of some rows, from those of fewer."""
    frames = 3.0 * relayed_nbytes(M.nbytes(np.zeros(0, np.uint8)))
    (a, x), (b, y) = ((part.rows, max(0.0, part.nbytes - frames * part.messages)) for part in (one, other))
    if a <= b:
        return x * n / a + frames * one.messages, one.messages
    growth = max(0.0, one.messages - other.messages) / math.log2(a / b)
    messages = one.messages + growth * math.log2(max(1.0, n / a))
    slope = (x / a - y / b) / math.log(a / b)
    # Messages have 256 bytes at least, and are filled up: a row of few costs more.
    grown = n * (x / a + slope * math.log(n / a)) if slope >= 0 else x + max(0.0, x - y) / (a - b) * (n - a)
    return grown + frames * messages, messages


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


@dataclass
class _Part:
    """What a rehearsal sent for an operator.

    Attributes:
        rows: that the parties worked on.
        nbytes: bytes of all of them.
        messages: messages of one party.
    """

    rows: int
    nbytes: float = 0.0
    messages: float = 0.0


_REST, _OUTWARD = -1, -2
"""The places of what is sent beside operators, and of the rows of the answer."""


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

    def halve_leaves(self, totals: Sequence[int]) -> list[int]:
        """Half of the rows of the longest leaf, so that tables shrink in small steps; of all, where slices, sizes that are known and cuts shrink with them."""
        if self.slices is not None or self.noted or self.kept or self.cuts is not None:
            return [max(1, one // 2) for one in totals]
        longest = max(range(len(totals)), key=totals.__getitem__)
        return [max(1, one // 2) if place == longest else one for place, one in enumerate(totals)]

    def largest(self, totals: Sequence[int]) -> int:
        """Rows of the largest table."""
        return self._extents(totals).largest

    def size_parts(self, totals: Sequence[int]) -> dict[int, int]:
        """Place of each part of the plan, its operators and what is beside them -> rows that the parties work on."""
        extents = self._extents(totals)
        roots = [one for one in (self.plan.root, self.plan.withheld) if one is not None]
        found = {id(op): extents.size_of(op) for root in roots for op in walk_operators(root)}
        return {**found, _REST: sum(extents.rows(root) for root in roots), _OUTWARD: extents.rows(self.plan.root)}

    def _extents(self, totals: Sequence[int]) -> Extents:
        shrink = None if self.cuts is None else self.cuts.shrink
        told = {int(name.removeprefix(TOLD)): int(sizes[0]) for name, sizes in (self.noted or {}).items() if name.startswith(TOLD)}  # fmt: skip
        return measure_extents(self.plan, {"all": totals}, shrink, Extents if self.keys is None else self.keys.extents, self.slices, told, self.kept)  # fmt: skip

    def measure(self, totals: Sequence[int]) -> dict[int, _Part]:
        """What the parties send for each part of the plan."""
        parts = {place: _Part(rows) for place, rows in self.size_parts(totals).items()}
        places = (1,) if self.keys is None else (0, 1, 2)
        for place in places:
            weight, spent = 3.0 / len(places), dict[int, tuple[float, float]]()
            rehearsal, outward = self._play(totals, place, place, spent)
            rest = [whole - sum(one[k] for one in spent.values()) for k, whole in enumerate((rehearsal.sent, rehearsal.messages))]  # fmt: skip
            for at, (nbytes, messages) in {**spent, _REST: (rest[0], rest[1])}.items():
                parts[at].nbytes += weight * nbytes
                parts[at].messages = max(parts[at].messages, messages)
            if place < 2:
                parts[_OUTWARD].nbytes += 2.0 / len(places[:2]) * sum(M.nbytes(one) for one in outward)
        return {at: part for at, part in parts.items() if at in (_REST, _OUTWARD) or at in spent}

    def play(self, totals: Sequence[int], seed: int = 0) -> SecureCost:
        """What the parties send for leaves of some rows: one of them stands for all, unless each sends something else."""
        if self.keys is None:
            rehearsal, part = self._play(totals, seed, 1)
            return SecureCost(rehearsal.nbytes, rehearsal.messages, sum(2.0 * M.nbytes(one) for one in part))
        runs = [self._play(totals, seed + place, place) for place in range(3)]
        outward = sum(M.nbytes(one) for _, parts in runs[:2] for one in parts)
        return SecureCost(sum(one.sent for one, _ in runs), max(one.messages for one, _ in runs), outward)

    def _play(self, totals: Sequence[int], seed: int, place: int, spent: dict[int, tuple[float, float]] | None = None) -> tuple[ShareRehearsal, Any]:  # fmt: skip
        rehearsal = ShareRehearsal(relayed_nbytes, seed, place, self.noted)
        trio = rehearsal.trio

        slices = self.slices

        def rows(place: int, n: int) -> int:
            return n if slices is None or place not in slices.sliced.places else len(slices.leaf_places(place))

        def tables(leaves: Sequence[SharedTable]) -> SecureTables:
            found = make_tables(leaves)
            found.watch = None if spent is None else _watch_parts(rehearsal, spent)
            return found

        def make_tables(leaves: Sequence[SharedTable]) -> SecureTables:
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


def _watch_parts(rehearsal: ShareRehearsal, spent: dict[int, tuple[float, float]]) -> Callable[[Operator, bool], None]:
    """What notes the bytes and messages of each operator without those of what it is made of; for `SecureTables.watch`."""
    stack: list[list[float]] = []

    def watch(op: Operator, done: bool) -> None:
        now = [float(rehearsal.sent), float(rehearsal.messages)]
        if not done:
            stack.append([*now, 0.0, 0.0])
            return
        *begun, below, waited = stack.pop()
        whole = [after - before for after, before in zip(now, begun, strict=True)]
        spent[id(op)] = whole[0] - below, whole[1] - waited
        if stack:
            stack[-1][2] += whole[0]
            stack[-1][3] += whole[1]

    return watch
