"""Slices of a plan by the values of a public column: rows of different values never meet (Bater et al. 2017, "SMCQL", section 5.2).

Where joins, groups and windows compare a column that everyone may read, such as the number of a patient, the rows of each value are a *slice*. Sites name the values that they have, and how many rows of each. So

* a slice whose rows all lie at one site that site computes by itself, in plaintext, and shares its result;
* the slices of several sites stay under shares: a join pairs the rows of one slice with each other, which costs no message, as everyone knows where they lie. Tables have as many rows as the slices have pairs, in place of all pairs.

The largest part of the plan that falls into slices is put below one `SlicedRows`; what is above it, such as groups of another column, the parties compute over all rows as before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.secure.shares import ShareRehearsal, Trio
from atoll.secure.tables import SharedTable, concatenate_tables

from .policy import QueryPolicy
from .secure.enclave import AccessTrace, EnclaveTable, EnclaveTables
from .secure.extents import Extents, fill_up
from .secure.frontier import bases_of
from .secure.operators import (
    Base,
    Compared,
    Connected,
    Expanded,
    Filtered,
    GroupedRows,
    JoinedRows,
    LeafRows,
    Looked,
    Operator,
    PlanLeaf,
    Ranked,
    SecurePlan,
    Stacked,
    Stored,
    Value,
    rewrite_operators,
    walk_operators,
)
from .secure.plan import make_secure_plan
from .secure.tables import SecureTables
from .statement import Catalog, SqlStatement

__all__ = [
    "HERE",
    "SliceExtents",
    "SliceSizes",
    "SlicedRows",
    "SlicedTables",
    "compute_alone",
    "empty_table",
    "make_sliced_plan",
    "place_rows",
    "read_keys",
    "result_layout",
    "slice_texts",
    "sliced_rows",
    "tell_slices",
]

HERE = "\0here"
"""The column that says which rows of a slice count: those behind them fill it up."""
_COUNTED = "SELECT count(*) "
_GUESSED_ROWS, _GUESSED_KEYS = 4, 32
"""Rows of a value at each site, and values that all sites have, and that one site alone has, as long as nobody has told them."""

Array = NDArray[Any]
Layout = dict[str, "int | None"]


@dataclass(frozen=True)
class SlicedRows(Operator):
    """Rows that sites and parties make slice by slice.

    Attributes:
        source: what makes the rows of one slice, or of several at once.
        columns: place of a leaf -> its column with the value of the slice, as pairs.
        names: the columns of tables that have it.
        bases: the columns of sites.
    """

    source: Operator
    columns: tuple[tuple[int, str], ...]
    names: frozenset[str] = frozenset()
    bases: tuple[Base, ...] = ()

    @property
    def places(self) -> list[int]:
        """The leaves that are sliced."""
        return [place for place, _ in self.columns]

    def compared_beside(self, op: JoinedRows | Looked) -> tuple[Compared, ...]:
        """What a join compares beside the values of slices."""
        return tuple(Compared(True, x, y) for x, y in op.pairs if not is_slice_pair((x, y), self.names, self.names))


def make_sliced_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
    """The plan of a statement under shares, in slices where joins, groups or windows compare public columns; see `make_secure_plan`."""
    plan = make_secure_plan(statement, catalog, policy)
    if plan.policy.min_count > 1:  # the rows of a value may be few
        return plan
    found = _Slicing(plan).largest(plan.root)
    if found is None:
        return plan
    part, sliced = found

    def changed(old: Operator, new: Operator) -> Operator:
        return sliced if old is part else new

    return replace(plan, root=rewrite_operators([plan.root], changed)[0])


def sliced_rows(plan: SecurePlan) -> SlicedRows | None:
    """What a plan computes in slices; ``None`` for nothing."""
    return next((one for one in walk_operators(plan.root) if isinstance(one, SlicedRows)), None)


# ---------------------------------------------------------------- which part of a plan

_Known = tuple[Mapping[int, str], frozenset[str]]
"""The column of each leaf by whose values rows fall into slices, and the columns of a table that have the value."""


class _Slicing:
    """Finds what falls into slices.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: SecurePlan) -> None:
        self._plan = plan
        self._known: dict[int, list[_Known]] = {}
        self._leaves = [self._of_leaf(place, leaf) for place, leaf in enumerate(plan.leaves)]

    def largest(self, op: Operator) -> tuple[Operator, SlicedRows] | None:
        """The uppermost operator all of whose rows fall into slices, with what takes its place; ``None`` if there is none."""
        inner = list(walk_operators(op))
        if any(isinstance(one, JoinedRows | Looked | GroupedRows | Ranked) for one in inner):
            for columns, names in self._slice(op):
                own = set(map(id, inner))
                used = {one.place for one in walk_operators(self._plan.root) if isinstance(one, LeafRows) and id(one) not in own}  # fmt: skip
                if not used & set(columns):
                    bases = sorted(base for place, name in columns.items() for base in self._bases(place, name))
                    shown = ", ".join(f"{table}.{column}" for table, column in dict.fromkeys(bases))
                    # Of rows that are also alike in another public column, that column says nothing of these slices.
                    alike = [
                        known for one in inner for more, known in self._slice(one) if more.items() <= columns.items()
                    ]
                    every = names.union(*alike)
                    what = f"add the rows of the values of {shown} that one site alone has, as it computed them"
                    return op, SlicedRows(op, tuple(sorted(columns.items())), every, tuple(dict.fromkeys(bases)), what=what)  # fmt: skip
        for name in ("left", "right", "source", "inner"):
            part = getattr(op, name, None)
            found = None if part is None else self.largest(part)
            if found is not None:
                return found
        return next((found for one in getattr(op, "sources", ()) if (found := self.largest(one)) is not None), None)

    def _bases(self, place: int, name: str) -> frozenset[Base]:
        leaf = self._plan.leaves[place]
        (text,) = (one.text for one in leaf.columns if one.name == name)
        return bases_of(self._plan, text, leaf.body, whole=False)

    def _are_public(self, bases: Collection[Base]) -> bool:
        return bool(bases) and all(self._plan.policy.table(table).column(column).level == "public" for table, column in bases)  # fmt: skip

    def _of_leaf(self, place: int, leaf: PlanLeaf) -> list[_Known]:
        """The columns by which a leaf can be sliced: whole numbers and text that are public, of rows that nothing private has joined."""
        if leaf.lone or not leaf.size.startswith(_COUNTED):
            return []
        joined = bases_of(self._plan, "1", leaf.size.removeprefix(_COUNTED), whole=True)
        if joined and not self._are_public(joined):
            return []
        found = [one.name for one in leaf.columns if not one.number and not one.row and one.code.kind in ("whole", "text")]  # fmt: skip
        return [({place: name}, frozenset({name})) for name in found if self._are_public(bases_of(self._plan, leaf_text(leaf, name), leaf.body, whole=False))]  # fmt: skip

    def _slice(self, op: Operator) -> list[_Known]:
        if id(op) not in self._known:
            self._known[id(op)] = list(self._sliced(op))
        return self._known[id(op)]

    def _sliced(self, op: Operator) -> list[_Known]:
        if isinstance(op, LeafRows):
            return self._leaves[op.place]
        if isinstance(op, JoinedRows) and op.side in ("inner", "left"):
            return self._paired(op.left, op.right, op.pairs, both=op.side == "inner")
        if isinstance(op, Looked):
            return self._paired(op.source, op.inner, op.pairs, both=False)
        if isinstance(op, Stacked):
            return self._stacked(op)
        if isinstance(op, Filtered):
            return self._slice(op.source)
        if isinstance(op, Expanded):
            return [(columns, names | {made.name for made, value in op.columns if isinstance(value, Stored) and value.name in names and not made.number}) for columns, names in self._slice(op.source)]  # fmt: skip
        if isinstance(op, GroupedRows | Ranked):
            by = {one.name for one in (op.keys if isinstance(op, GroupedRows) else op.partition)}
            kept = [(columns, names, names & by) for columns, names in self._slice(op.source)]
            return [(columns, alike if isinstance(op, GroupedRows) else names) for columns, names, alike in kept if alike]  # fmt: skip
        return []

    def _paired(self, left: Operator, right: Operator, pairs: Sequence[tuple[Value, Value]], *, both: bool) -> list[_Known]:  # fmt: skip
        """Two tables some of whose values are equal: those that the slices of both have."""
        found: list[_Known] = []
        for columns, names in self._slice(left):
            for more, others in self._slice(right):
                if any(is_slice_pair(pair, names, others) for pair in pairs) and all(columns.get(place, name) == name for place, name in more.items()):  # fmt: skip
                    found.append(({**columns, **more}, names | others if both else names))
        return found

    def _stacked(self, op: Stacked) -> list[_Known]:
        found: list[_Known] = []
        for k, column in enumerate(op.columns):
            merged: dict[int, str] = {}
            for source, row in zip(op.sources, op.inputs, strict=True):
                value = row[k]
                known = next((columns for columns, names in self._slice(source) if isinstance(value, Stored) and value.name in names and value.code.scale == column.code.scale), None)  # fmt: skip
                if known is None or any(merged.get(place, name) != name for place, name in known.items()):
                    break
                merged |= known
            else:
                if not column.number:
                    found.append((merged, frozenset({column.name})))
        return found


def leaf_text(leaf: PlanLeaf, name: str) -> str:
    """The local SQL of a leaf's column."""
    return next(one.text for one in leaf.columns if one.name == name)


def is_slice_pair(pair: tuple[Value, Value], left: Collection[str], right: Collection[str]) -> bool:
    """Whether two values that are equal are those of a slice, as words of one kind."""
    one, other = pair
    if not (isinstance(one, Stored) and isinstance(other, Stored)) or one.number or other.number:
        return False
    return one.name in left and other.name in right and (one.code.kind, one.code.scale) == (other.code.kind, other.code.scale)  # fmt: skip


# ---------------------------------------------------------------- how many rows


@dataclass(frozen=True)
class SliceSizes:
    """How many rows of each slice sites have, as everyone knows: up to the next power of two.

    Attributes:
        sliced: what is computed in slices.
        keys: the values, as text; ``None`` for the rows that have none.
        counts: site -> rows of each leaf and value: shape ``(leaves, values)``.
    """

    sliced: SlicedRows
    keys: tuple[str | None, ...]
    counts: Mapping[str, Array]

    @classmethod
    def of_replies(cls, sliced: SlicedRows, told: Mapping[str, Any]) -> SliceSizes:
        """What sites told, put together: of each leaf its values and their rows."""
        keys = sorted({key for one in told.values() for leaf in one for key in leaf["keys"]}, key=lambda key: (key is not None, key or ""))  # fmt: skip
        places = {key: k for k, key in enumerate(keys)}
        counts = {}
        for site, leaves in told.items():
            counts[site] = np.zeros((len(sliced.columns), len(keys)), np.int64)
            for row, leaf in zip(counts[site], leaves, strict=True):
                row[[places[key] for key in leaf["keys"]]] = [int(one) for one in leaf["rows"]]
        return cls(sliced, tuple(keys), counts)

    @classmethod
    def of_request(cls, sliced: SlicedRows, told: Mapping[str, Any]) -> SliceSizes:
        """The same from a request."""
        keys = tuple(None if key is None else str(key) for key in told["keys"])
        counts = {str(site): np.asarray(rows, np.int64).reshape(len(sliced.columns), len(keys)) for site, rows in told["counts"].items()}  # fmt: skip
        return cls(sliced, keys, counts)

    @classmethod
    def guess(cls, sliced: SlicedRows, sites: Sequence[str]) -> SliceSizes:
        """A guess, as long as nobody has told: half of a site's values no other site has."""
        n, m = _GUESSED_KEYS, len(sliced.columns)
        counts = {}
        for k, site in enumerate(sites):
            counts[site] = np.zeros((m, n * (1 + len(sites))), np.int64)
            counts[site][:, :n] = counts[site][:, n * (k + 1) : n * (k + 2)] = _GUESSED_ROWS
        return cls(sliced, tuple(str(k) for k in range(n * (1 + len(sites)))), counts)

    def told(self) -> dict[str, Any]:
        """As a request says it."""
        return {"keys": list(self.keys), "counts": {site: rows.tolist() for site, rows in self.counts.items()}}

    def every(self, times: int) -> SliceSizes:
        """Every second, fourth … slice alone."""
        return replace(self, keys=self.keys[::times], counts={site: rows[:, ::times] for site, rows in self.counts.items()})  # fmt: skip

    @property
    def joint(self) -> NDArray[np.bool_]:
        """Which slices several sites have."""
        held = np.array([rows.any(axis=0) for rows in self.counts.values()])
        return np.asarray(held.sum(axis=0) > 1)

    def shared_places(self, site: str, place: int) -> Array:
        """The slice of each row of a leaf that a site shares; -1 for a row that is none, as a table has one at least."""
        rows = self.counts[site][self.sliced.places.index(place)] * self.joint
        made = np.repeat(np.arange(len(self.keys)), rows)
        return made if len(made) else np.full(1, -1)

    def leaf_places(self, place: int) -> Array:
        """The same of the leaf's table, of all sites."""
        return np.concatenate([self.shared_places(site, place) for site in self.counts])

    def with_rows(self, sizes: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Rows of each leaf that sites share, for those that they have."""
        return {site: [len(self.shared_places(site, place)) if place in self.sliced.places else int(rows) for place, rows in enumerate(own)] for site, own in sizes.items()}  # fmt: skip

    def result_rows(self, site: str) -> int:
        """Rows of the result of the slices that a site alone has, up to a power of two; 0 if it has none."""
        alone = (self.counts[site] * ~self.joint).astype(np.int64)
        rows = int(self._measure(dict(zip(self.sliced.places, alone, strict=True)))[0][id(self.sliced.source)].sum())  # fmt: skip
        return fill_up(rows) if rows else 0

    def bounds(self, *, joint: bool) -> tuple[dict[int, int], dict[int, int]]:
        """``id`` of each operator -> rows of all slices, or those of several sites, and pairs of rows that it looks at."""
        every = sum(self.counts.values())
        kept = every * self.joint if joint else every
        rows, pairs = self._measure(dict(zip(self.sliced.places, np.asarray(kept), strict=True)))
        return tuple({key: int(one.sum()) for key, one in found.items()} for found in (rows, pairs))  # type: ignore[return-value]

    def _measure(self, leaves: Mapping[int, Array]) -> tuple[dict[int, Array], dict[int, Array]]:
        rows, pairs = dict[int, Array](), dict[int, Array]()
        for op in walk_operators(self.sliced.source):
            if isinstance(op, LeafRows):
                rows[id(op)] = leaves[op.place]
            elif isinstance(op, Stacked):
                rows[id(op)] = np.sum([rows[id(one)] for one in op.sources], axis=0)
            elif isinstance(op, JoinedRows):
                n, m = rows[id(op.left)], rows[id(op.right)]
                pairs[id(op)] = _pairs_of(n, m, op.left_most, op.right_most)
                if op.side == "left":  # rows without a match stay
                    pairs[id(op)] = pairs[id(op)] + n
                rows[id(op)] = pairs[id(op)]
            elif isinstance(op, Looked):
                rows[id(op)] = rows[id(op.source)]
                pairs[id(op)] = _pairs_of(rows[id(op.source)], rows[id(op.inner)], op.source_most, op.inner_most)
            else:
                rows[id(op)] = rows[id(op.source)]  # type: ignore[attr-defined]
        return rows, pairs


def _pairs_of(left: Array, right: Array, left_most: int, right_most: int) -> Array:
    """Most pairs of rows of each slice."""
    found = left * right
    found = np.minimum(found, left * right_most) if right_most else found
    return np.minimum(found, right * left_most) if left_most else found


class SliceExtents(Extents):
    """How many rows the tables of a plan in slices have, for rows that all sites have together.

    Args:
        slices: the slices.
        sizes: rows of each leaf; of those that are sliced, what the slices say counts.
        shrink: as in `Extents`.
    """

    def __init__(self, slices: SliceSizes, sizes: Sequence[int], shrink: Callable[[Operator, int], int] | None = None) -> None:  # fmt: skip
        self._rows, self._pairs = slices.bounds(joint=False)
        own = {op.place: self._rows[id(op)] for op in walk_operators(slices.sliced.source) if isinstance(op, LeafRows)}
        super().__init__([max(1, own.get(place, rows)) for place, rows in enumerate(sizes)], shrink)

    def _measured(self, operator: Operator) -> tuple[int, Any]:
        before = self.largest
        rows, bounds = super()._measured(operator)
        if id(operator) in self._pairs:  # pairs of one slice alone are looked at
            self.largest = max(before, self._pairs[id(operator)])
        return min(rows, max(1, self._rows.get(id(operator), rows))), bounds


# ---------------------------------------------------------------- at a party


class SlicedTables(SecureTables):
    """The tables of a plan in slices.

    Args:
        trio: the three parties.
        leaves: the shared rows of each leaf; of those that are sliced, the ones of slices that several sites have.
        slices: the slices.
        alone: the rows that sites computed by themselves.
        most: rows of a join at most.
    """

    def __init__(self, trio: Trio, leaves: Sequence[SharedTable], slices: SliceSizes, alone: Sequence[SharedTable], most: int = 1 << 31) -> None:  # fmt: skip
        super().__init__(trio, leaves, None, most)
        self._slices, self._alone = slices, list(alone)
        self._inside = {id(one) for one in walk_operators(slices.sliced.source)}
        _, self._pairs_at_most = slices.bounds(joint=True)
        self._places: dict[int, Array] = {}
        """The slice of each row of an operator's table, where everyone knows it."""

    async def _table_of(self, op: Operator) -> SharedTable:
        if isinstance(op, SlicedRows):
            made = await self._table(op.source)
            return concatenate_tables([made, *(one.keep_columns(list(made.columns)) for one in self._alone)])
        made = await super()._table_of(op)
        if isinstance(op, LeafRows) and op.place in self._slices.sliced.places:
            self._places[id(op)] = self._slices.leaf_places(op.place)
        elif isinstance(op, Filtered | Expanded | Looked) and id(op.source) in self._places:
            self._places[id(op)] = self._places[id(op.source)]
        return made

    def _bound(self, op: JoinedRows | Looked, rows: int) -> int:
        pairs = self._pairs_at_most.get(id(op))
        return rows if pairs is None else max(1, min(rows, pairs))

    async def _inner(self, op: JoinedRows | Looked, left: SharedTable, right: SharedTable, on: Any) -> SharedTable:
        sides = (op.left, op.right) if isinstance(op, JoinedRows) else (op.source, op.inner)
        known = [self._places.get(id(side)) for side in sides]
        if id(op) not in self._inside or known[0] is None or known[1] is None:
            return await super()._inner(op, left, right, on)
        one, other, places = pair_slices(known[0], known[1], self._slices.keys)
        if len(one) > self._bound(
            op, len(left) * len(right)
        ):  # few of these pairs can be equal in what else is compared
            return await super()._inner(op, left, right, on)
        empty = not len(one)
        a, b = (table.take_rows(np.zeros(1, np.int64) if empty else rows) for table, rows in ((left, one), (right, other)))  # fmt: skip
        valid = await self.trio.conjoin(a.valid, b.valid)
        made = SharedTable({**a.columns, **b.columns}, valid)
        if empty:
            return await made.filter_rows(self._bits(1, 0))
        rest = self._slices.sliced.compared_beside(op)
        if rest:
            made = await made.filter_rows((await self._truth(made, Connected(True, rest)))[0])
        if isinstance(op, JoinedRows) and op.side == "inner":
            self._places[id(op)] = places
        return made


def pair_slices(left: Array, right: Array, keys: Sequence[str | None]) -> tuple[Array, Array, Array]:
    """All pairs of rows of one slice: rows of the first table, of the second, and the slice. Rows without a value pair with none.

    Args:
        left: the slice of each row of one table; -1 for none.
        right: the same of another table.
        keys: the values of the slices.
    """
    order = np.argsort(right, kind="stable")
    begin, end = (np.searchsorted(right[order], left, side) for side in ("left", "right"))
    paired = np.array([*(key is not None for key in keys), False])[left]
    counts = np.where(paired, end - begin, 0)
    one = np.repeat(np.arange(len(left)), counts)
    copy = np.arange(len(one)) - np.repeat(np.cumsum(counts) - counts, counts)
    return one, order[np.repeat(begin, counts) + copy], left[one]


# ---------------------------------------------------------------- at a site


def slice_texts(plan: SecurePlan) -> list[str]:
    """Local SQL of the values of each sliced leaf, with how many rows each has."""
    sliced = sliced_rows(plan)
    columns = () if sliced is None else sliced.columns
    return [f"SELECT {leaf_text(plan.leaves[place], name)} AS k, count(*) AS n {plan.leaves[place].size.removeprefix(_COUNTED)} GROUP BY 1" for place, name in columns]  # fmt: skip


def tell_slices(rows: Any) -> dict[str, Any]:
    """What a site tells of the values of one leaf: their rows, up to the next power of two."""
    counts = [int(one) for one in rows.column(1).to_pylist()]
    return {"keys": read_keys(rows.column(0)), "rows": [fill_up(n) for n in counts]}


def read_keys(values: Any) -> list[str | None]:
    """The values of slices in a column of Arrow, as text."""
    return [None if value is None else str(value) for value in values.to_pylist()]


def place_rows(values: Sequence[str | None], slices: SliceSizes, site: str, place: int) -> tuple[Array, Array]:
    """Which rows of a leaf a site shares, and at which places of its table.

    Args:
        values: the value of each row that its condition keeps.
        slices: the slices.
        site: the site.
        place: the leaf.
    """
    numbers = {key: k for k, key in enumerate(slices.keys)}
    own = np.array([numbers[key] for key in values], np.int64)
    rows = np.flatnonzero(slices.joint[own]) if len(own) else own
    rows = rows[np.argsort(own[rows], kind="stable")]
    mine, table = own[rows], slices.shared_places(site, place)
    return rows, np.searchsorted(table, mine) + np.arange(len(mine)) - np.searchsorted(mine, mine)


def result_layout(sliced: SlicedRows, layouts: Sequence[Layout]) -> Layout:
    """The columns of the rows that slices make, for those of all leaves: a rehearsal on tables of one row tells."""
    rehearsal = ShareRehearsal()
    leaves = [empty_table(rehearsal.trio, layout, 1) for layout in layouts]

    async def work() -> SharedTable:
        return await SecureTables(rehearsal.trio, leaves).make(sliced.source)

    made: SharedTable = rehearsal.play(work())
    return made.layout


def empty_table(trio: Trio, layout: Layout, rows: int) -> SharedTable:
    """A table of zeros, for a rehearsal."""

    def column(bits: int | None) -> Any:
        return trio.numbers.constant(np.zeros(rows, np.int64)) if bits is None else trio.constant(np.zeros(rows, np.uint64), bits)  # fmt: skip

    return SharedTable({name: column(bits) for name, bits in layout.items()}, column(1))


def compute_alone(plan: SecurePlan, sliced: SlicedRows, leaves: Mapping[int, Mapping[str, Array]], layout: Layout) -> dict[str, Array]:  # fmt: skip
    """The rows that a site makes of the slices that it alone has, in plaintext, as `atoll.secure.tables.send_table` takes them.

    Args:
        plan: the plan.
        sliced: what is computed in slices.
        leaves: the columns of each sliced leaf, of these slices.
        layout: the columns of the result.
    """
    trace = AccessTrace()
    tables = []
    for place in range(len(plan.leaves)):
        columns = {name: np.asarray(x).astype(np.int64 if x.dtype == np.int64 else np.uint64).view(np.uint64) for name, x in leaves.get(place, {}).items()}  # fmt: skip
        n = len(next(iter(columns.values()), ()))
        filled = columns if n else {name: np.zeros(1, np.uint64) for name in columns}
        tables.append(EnclaveTable(filled, np.ones(n, bool) if n else np.zeros(1, bool), trace))
    found = EnclaveTables(tables, trace, told=True).make(sliced.source)
    rows = np.flatnonzero(found.valid)
    made = {}
    for name, bits in layout.items():
        words = found.columns.get(name, np.zeros(len(found), np.uint64))[rows]  # texts here may need fewer words
        made[name] = words.view(np.int64) if bits is None else words.astype(np.uint8) if bits == 1 else words
    return made
