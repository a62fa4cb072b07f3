"""Window functions under shares.

Parties number, count, add up, compare and shift the rows of a partition (`atoll.secure.tables.window_columns`); the rest is written with these. With r the number of a row in its partition and N their count:

=====================================  =========================================================================================================================
``LAG(x, n, d)``                       d if r <= n, and else x of n rows above
``FIRST_VALUE``, ``NTH_VALUE(x, n)``   the least x of the rows with r = n that the frame has: it is one row
``LAST_VALUE``                         the same with r = N; up to a row's equals, of the last of these
``PERCENT_RANK``, ``CUME_DIST``        (rank - 1) / (N - 1), and the rows up to a row's equals / N
``NTILE(n)``                           the last tile that begins at r or before: tile b begins after b q + min(b, N - n q) rows, with q = N // n found bit by bit
a sum from row r + s to row r + e      P(r + e) - P(r + s - 1), with P the running sum, shifted; MIN and MAX compare the rows that the frame has
=====================================  =========================================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..aggregates import read_aggregate
from ..column_codes import ColumnCode
from ..scopes import find_outermost
from .joins import JoinPlanner
from .names import SelectNames, refuse
from .operators import (
    ChosenValue,
    Compared,
    Computed,
    Connected,
    Fixed,
    MissingValue,
    Negated,
    Order,
    Quotient,
    Ranked,
    RowCondition,
    Stored,
    Value,
    WindowColumn,
)

__all__ = ["WindowPlanner"]

_WHOLE = ColumnCode("whole", "BIGINT")
_DOUBLE = ColumnCode("whole", "DOUBLE")
_WIDEST = 32
"""Most rows of a frame that MIN and MAX compare one by one."""
_MOST_TILES = 1 << 20
_BITS = 24
"""Bits of the size of a tile: parties hold fewer rows than that."""


@dataclass(frozen=True)
class WindowFrame:
    """Which rows of a partition a function sees.

    Attributes:
        kind: ``"whole"``, ``"peers"`` up to the last row that is equal in the order, ``"rows"`` up to this row, or ``"span"``.
        start: of a span: its first row, as rows below this one; ``None`` for the partition's first.
        end: its last row; ``None`` for the partition's last.
    """

    kind: str
    start: int | None = None
    end: int | None = None


@dataclass
class _Window:
    """A window in the making: the names of its SELECT, its partition and order as columns, and its text."""

    names: SelectNames
    keys: list[Stored]
    order: Order
    frame: WindowFrame
    text: str
    bases: frozenset[tuple[str, str]]


class WindowPlanner(JoinPlanner):
    """Window functions."""

    def outermost(self, node: Any, kinds: tuple[type, ...]) -> list[Any]:
        """The outermost nodes of some kinds, the expression itself too, and none of a subquery."""
        return [node] if isinstance(node, kinds) else list(find_outermost(node, kinds, (self.exp.Query,)))

    def add_windows(self, names: SelectNames) -> None:
        """Window functions of SELECT and QUALIFY, and then QUALIFY."""
        exp, select = self.exp, names.select
        places = [*select.expressions, *(select.args[name] for name in ("qualify", "order") if select.args.get(name))]
        nodes = list(dict.fromkeys(node for place in places for node in self.outermost(place, (exp.Window,))))
        for node in nodes:
            self.require_sites(f"the parties compute {node.sql('duckdb')}")
            self._add_window(node, names)
        if select.args.get("qualify"):
            self.filter(names, select.args["qualify"].this)

    def _add_window(self, node: Any, names: SelectNames) -> None:
        exp, at = self.exp, node.this
        partition, order, spec = node.args.get("partition_by") or [], node.args.get("order"), node.args.get("spec")
        name = node.args.get("alias")
        if name is not None:
            known = next((one for one in names.select.args.get("windows") or () if one.name == name.name), None)
            if known is None:
                raise refuse(f"the window {name.name}", "define it with WINDOW")
            partition, order, spec = known.args.get("partition_by") or partition, known.args.get("order") or order, known.args.get("spec") or spec  # fmt: skip
        text = node.sql("duckdb")
        frame = WindowFrame("whole" if order is None else "peers") if spec is None else self._read_frame(spec, text, order is None)  # fmt: skip
        if isinstance(at, exp.IgnoreNulls | exp.RespectNulls):
            raise refuse(f"{at.sql('duckdb')} in a window", "leave IGNORE NULLS and RESPECT NULLS out")
        parts = [self.value(one, names) for one in partition]
        names.operator, keys = self.store(names.operator, parts, text, words=True)
        sorted_by = [(self.value(one.this, names), bool(one.args.get("desc")), bool(one.args.get("nulls_first"))) for one in (order.expressions if order is not None else ())]  # fmt: skip
        names.operator, by = self.store(names.operator, [value for value, _, _ in sorted_by], text, words=True)
        ordered = tuple((column, down, first) for column, (_, down, first) in zip(by, sorted_by, strict=True))
        # Who sees a rank or a running sum sees by what rows are ordered, and which rows are equal.
        bases = frozenset(base for value in (*parts, *(one for one, _, _ in sorted_by)) for base in value.bases)
        window = _Window(names, keys, ordered, frame, text, bases)
        make: Any = {
            "RowNumber": self._give_rank, "Rank": self._give_rank, "DenseRank": self._give_rank, "PercentRank": self._relative_rank, "CumeDist": self._relative_rank, "Ntile": self._tile, "Lag": self._lag, "Lead": self._lag,
            "FirstValue": self._value_at, "LastValue": self._value_at, "NthValue": self._value_at,
        }.get(type(at).__name__, self._aggregate)  # fmt: skip
        names.values[text] = make(at, window)

    def _read_frame(self, spec: Any, text: str, whole: bool) -> WindowFrame:
        if spec.args.get("exclude"):
            raise refuse(f"the frame of {text} has EXCLUDE", "leave it out")
        unit = str(spec.args.get("kind") or "").upper()
        start, end = (self._read_edge(spec, name, unit, text) for name in ("start", "end"))
        if start is None and end is None:
            return WindowFrame("whole")
        if whole:
            raise refuse(f"the frame of {text} depends on an order", "add ORDER BY to the window")
        if start is None and end == 0:
            return WindowFrame("rows" if unit == "ROWS" else "peers")
        if unit != "ROWS":
            raise refuse(f"the frame of {text} begins at equal values", "use ROWS, or RANGE UNBOUNDED PRECEDING")
        return WindowFrame("span", start, end)

    def _read_edge(self, spec: Any, name: str, unit: str, text: str) -> int | None:
        """Where a frame begins or ends, as rows below a row; ``None`` at the edge of the partition."""
        at, side = spec.args.get(name) or "CURRENT ROW", str(spec.args.get(f"{name}_side") or "").upper()
        word = at.upper() if isinstance(at, str) else ""
        if word == "CURRENT ROW":
            return 0
        if word == "UNBOUNDED":
            if (name == "start") != (side == "PRECEDING"):
                raise refuse(f"the frame of {text}", "begin at UNBOUNDED PRECEDING, or end at UNBOUNDED FOLLOWING")
            return None
        if unit != "ROWS" or not isinstance(at, self.exp.Literal) or at.is_string or not at.name.isdigit():
            raise refuse(f"the frame of {text} goes by values, or by no whole number of rows", "use ROWS with whole numbers, such as ROWS BETWEEN 2 PRECEDING AND CURRENT ROW")  # fmt: skip
        return int(at.name) * (-1 if side == "PRECEDING" else 1)

    # ------------------------------------------------------------------ what all of them are made of

    def _run(self, window: _Window, columns: Sequence[WindowColumn], order: Order | None = None, keys: Sequence[Stored] | None = None) -> list[Stored]:  # fmt: skip
        """Columns beside the rows; by default of the window's own partition and order."""
        at = window.names
        at.operator = Ranked(at.operator, tuple(window.keys if keys is None else keys), window.order if order is None else order, tuple(columns), what=window.text)  # fmt: skip
        return [one.column for one in columns]

    def _new_column(self, code: ColumnCode, bases: frozenset[tuple[str, str]], *, number: bool = False) -> Stored:
        return Stored(code, bases, self.new_name("g"), number)

    def _number_rows(self, window: _Window) -> tuple[WindowColumn, WindowColumn]:
        """What numbers the rows of a partition, and counts them."""
        columns = [self._new_column(_WHOLE, window.bases, number=True) for _ in range(2)]
        return WindowColumn(columns[0], "row_number"), WindowColumn(columns[1], "count")

    def _keep(self, window: _Window, value: Value) -> Stored:
        """A value as a column."""
        window.names.operator, (made,) = self.store(
            window.names.operator, [value], ""
        )  # EXPLAIN shows the rows that are numbered and shifted
        return made

    # ------------------------------------------------------------------ ranks

    def _give_rank(self, at: Any, window: _Window) -> Value:
        operation = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}[type(at).__name__]
        return self._run(window, [WindowColumn(self._new_column(_WHOLE, window.bases, number=True), operation)])[0]

    def _relative_rank(self, at: Any, window: _Window) -> Value:
        first, every = (self._new_column(_WHOLE, window.bases, number=True) for _ in range(2))
        if isinstance(at, self.exp.CumeDist):
            frame = "peers" if window.order else "whole"
            self._run(window, [WindowColumn(first, "count", frame=frame), WindowColumn(every, "count")])
            return Quotient(_DOUBLE, window.bases, over=first, under=every)
        self._run(window, [WindowColumn(first, "rank"), WindowColumn(every, "count")])
        one = Fixed(_WHOLE, value=1)
        over, under = (Computed(_WHOLE, window.bases, "-", left=column, right=one) for column in (first, every))
        under = self._keep(window, ChosenValue(_WHOLE, window.bases, cases=((Compared(True, every, one), one),), default=under))  # type: ignore[assignment]  # fmt: skip
        return Quotient(_DOUBLE, window.bases, over=self._keep(window, over), under=under)

    def _tile(self, at: Any, window: _Window) -> Value:
        tiles = self._whole(at.this, window.text, "NTILE")
        if tiles > _MOST_TILES:
            raise refuse(f"{window.text} has more than {_MOST_TILES:,} tiles", f"use at most {_MOST_TILES:,}")
        number, every = self._run(window, self._number_rows(window))
        one, zero, bases = Fixed(_WHOLE, value=1), Fixed(_WHOLE, value=0), window.bases
        before = self._keep(window, Computed(_WHOLE, bases, "-", left=number, right=one))

        def search(bits: int, fits: Any) -> Value:
            found: Value = zero
            for bit in reversed(range(bits)):
                step = Fixed(_WHOLE, value=1 << bit)
                more = Computed(_WHOLE, bases, "+", left=found, right=step)
                found = self._keep(window, Computed(_WHOLE, bases, "+", left=found, right=ChosenValue(_WHOLE, bases, cases=((fits(more), step),), default=zero)))  # fmt: skip
            return found

        def times(value: Value, factor: Value) -> Value:
            return Computed(_WHOLE, bases, "*", left=value, right=factor)

        count = Fixed(_WHOLE, value=tiles)
        size = search(_BITS, lambda more: Negated(Compared(False, every, times(more, count))))
        longer = self._keep(window, Computed(_WHOLE, bases, "-", left=every, right=times(size, count)))

        def begins(tile: Value) -> RowCondition:
            least = ChosenValue(_WHOLE, bases, cases=((Compared(False, tile, longer), tile),), default=longer)
            start = Computed(_WHOLE, bases, "+", left=times(tile, size), right=least)
            return Connected(True, (Compared(False, tile, count), Negated(Compared(False, before, start))))

        tile = search((tiles - 1).bit_length(), begins)
        return self._keep(window, Computed(_WHOLE, bases, "+", left=tile, right=one))

    def _whole(self, node: Any, text: str, what: str) -> int:
        """A whole number above 0 that stands in the statement."""
        if not isinstance(node, self.exp.Literal) or node.is_string or not node.name.isdigit() or int(node.name) < 1:
            raise refuse(f"{what} of {node.sql('duckdb')} in {text}", "write a whole number above 0")
        return int(node.name)

    # ------------------------------------------------------------------ values of other rows

    def _lag(self, at: Any, window: _Window) -> Value:
        step, default, up = at.args.get("offset"), at.args.get("default"), isinstance(at, self.exp.Lag)
        if step is not None and (not isinstance(step, self.exp.Literal) or step.is_string or not step.name.isdigit()):
            raise refuse(f"{window.text} with an offset that is no number", "write a whole number of rows")
        offset = int(step.name) if step is not None else 1
        nodes = [at.this] if default is None or isinstance(default, self.exp.Null) else [at.this, default]
        value, *rest = [self.value(at.this, window.names)] if len(nodes) == 1 else self.unify(nodes, window.names)
        lagged = WindowColumn(self._new_column(value.code, value.bases | window.bases), "lag", value, offset=offset if up else -offset)  # fmt: skip
        if not rest:
            return self._run(window, [lagged])[0]
        number, every, found = self._run(window, [*self._number_rows(window), lagged])
        steps = Fixed(_WHOLE, value=offset)
        left: Value = number if up else Computed(_WHOLE, window.bases, "-", left=every, right=number)
        there = Compared(False, steps, left) if up else Negated(Compared(False, left, steps))
        code = replace(value.code, scale=max(value.code.scale, rest[0].code.scale))
        return self._keep(window, ChosenValue(code, found.bases | rest[0].bases, cases=((there, found),), default=rest[0]))  # fmt: skip

    def _value_at(self, at: Any, window: _Window) -> Value:
        """The value of the first row of a frame, its last, or its n-th."""
        names, frame, exp = window.names, window.frame, self.exp
        value = self.value(at.this, names)
        if value.code.kind == "text" or isinstance(value, Quotient):
            raise refuse(f"{window.text} of text or averages", "use numbers or dates, or LAG")
        value = self._keep(window, value)
        last = isinstance(at, exp.LastValue)
        place = self._whole(at.args.get("offset"), window.text, "NTH_VALUE") if isinstance(at, exp.NthValue) else 1
        if frame.kind == "rows" and last:
            return value
        if frame.kind == "span":
            return self._value_in_span(value, window, place, last=last)
        if frame.kind == "peers" and last:
            keys = [*window.keys, *(column for column, _, _ in window.order)]
            return self._one_row(value, replace(window, keys=keys), None, "whole")
        return self._one_row(value, window, None if last else place, frame.kind)

    def _one_row(self, value: Value, window: _Window, place: int | None, frame: str) -> Stored:
        """The value of the row of a number, of the last row if there is none, to rows whose frame has it."""
        number, every = self._run(window, self._number_rows(window))
        at: Value = every if place is None else Fixed(_WHOLE, value=place)
        return self._at_number(value, window, number, at, frame)

    def _at_number(self, value: Value, window: _Window, number: Stored, at: Value, frame: str) -> Stored:
        bases = value.bases | window.bases
        own = self._keep(window, ChosenValue(value.code, bases, cases=((Compared(True, number, at), value),), default=Fixed(value.code, value=None)))  # fmt: skip
        order = ((number, False, False),) if frame == "rows" else window.order  # of equal rows, in the same order
        return self._run(window, [WindowColumn(self._new_column(value.code, bases), "min", own, frame)], order)[0]

    def _value_in_span(self, value: Value, window: _Window, place: int, *, last: bool) -> Value:
        """The value of a row of a frame from r + s to r + e: of r + e or the partition's last row, or of the n-th row from r + s or from the partition's first one."""
        start, end, bases = window.frame.start, window.frame.end, value.bases | window.bases
        none = Fixed(value.code, value=None)
        if start is not None and end is not None and end - start < (0 if last else place - 1):
            return self._keep(window, none)
        number, every = self._run(window, self._number_rows(window))
        whole = self._at_number(value, window, number, every if last else Fixed(_WHOLE, value=place), "whole")
        bound = start if last else end
        if bound is not None:  # the frame may end before that row, or begin after it
            edge = _plus(number, bound, window)
            beyond = Compared(False, every, edge) if last else Compared(False, edge, Fixed(_WHOLE, value=place))
            whole = self._keep(window, ChosenValue(value.code, bases, cases=((beyond, none),), default=whole))
        moved = end if last else start
        if moved is None:
            return whole
        within = Negated(Compared(False, every, _plus(number, moved, window))) if last else Compared(False, Fixed(_WHOLE, value=-moved), number)  # fmt: skip
        (other,) = self._shift(value, window, number, [moved if last else moved + place - 1])
        return self._keep(window, ChosenValue(value.code, bases, cases=((within, other),), default=whole))

    def _shift(self, value: Value, window: _Window, number: Stored, steps: Sequence[int]) -> list[Stored]:
        """The values of the rows so many below; none where the partition has none."""
        columns = [WindowColumn(self._new_column(value.code, value.bases | window.bases), "lag", value, offset=-step) for step in steps]  # fmt: skip
        return self._run(window, columns, ((number, False, False),))

    # ------------------------------------------------------------------ aggregates

    @staticmethod
    def sum_code(value: Value) -> ColumnCode:
        """The code of a sum."""
        scale = value.code.scale
        return ColumnCode("whole", f"DECIMAL(38,{scale})" if scale else "HUGEINT", scale)

    def _aggregate(self, at: Any, window: _Window) -> Value:
        name, args = read_aggregate(self.exp, at)
        if name not in ("count", "sum", "avg", "min", "max"):
            raise refuse(f"{window.text} under shares", "use ROW_NUMBER, RANK, DENSE_RANK, PERCENT_RANK, CUME_DIST, NTILE, LAG, LEAD, FIRST_VALUE, LAST_VALUE, NTH_VALUE, COUNT, SUM, AVG, MIN or MAX")  # fmt: skip
        names, frame, bases = window.names, window.frame.kind, window.bases
        if name in ("min", "max"):
            value = self.value(args[0], names)
            if value.code.kind == "text" or isinstance(value, Quotient):
                raise refuse(f"{window.text} of text or averages", "use numbers or dates")
            if frame == "span":
                return self._best_of_span(name, self._keep(window, value), window)
            return self._run(window, [WindowColumn(self._new_column(value.code, value.bases | bases), name, value, frame)])[0]  # fmt: skip
        if name == "count":
            counted = self.value(args[0], names) if args else None
            if frame == "span":
                return self._sum_of_span([WindowColumn(self._new_column(_WHOLE, bases, number=True), "count", counted)], window)[0]  # fmt: skip
            return self._run(window, [WindowColumn(self._new_column(_WHOLE, bases, number=True), "count", counted, frame)])[0]  # fmt: skip
        self.scopes.require_released(self.bases_of(args[0], names), window.text)
        number = self.number(args[0], names, adds=window.text)
        added = bases | (self.bases_of(args[0], names) if self.strict else frozenset())
        total = WindowColumn(self._new_column(self.sum_code(number), added, number=True), "sum", number, frame)
        count = WindowColumn(self._new_column(_WHOLE, bases, number=True), "count", number, frame)
        if frame == "span":
            found, many = self._sum_of_span([total, count], window)
            there = Compared(False, Fixed(_WHOLE, value=0), many)
            none = Fixed(found.code, value=None)
            found = self._keep(window, ChosenValue(found.code, added, cases=((there, found),), default=none))
        else:
            found, *rest = self._run(window, [total, *([count] if name == "avg" else [])])
            many = rest[0] if rest else found
        return found if name == "sum" else Quotient(_DOUBLE, found.bases, over=found, under=many)

    def _sum_of_span(self, columns: Sequence[WindowColumn], window: _Window) -> list[Stored]:
        """Counts and sums over the rows from r + s to r + e, as the difference of two running ones."""
        start, end = window.frame.start, window.frame.end
        if start is not None and end is not None and end < start:
            end = start - 1
        made = []
        for one in columns:
            value = one.value
            if one.operation == "sum" and value is not None:  # a running sum of no value is 0 here
                zero = Fixed(value.code, value=0)
                value = self._keep(window, ChosenValue(value.code, value.bases, cases=((Negated(MissingValue(value)), value),), default=zero))  # fmt: skip
            running, whole = (replace(one, column=self._new_column(one.column.code, one.column.bases, number=True), value=value, frame=frame) for frame in ("rows", "whole"))  # fmt: skip
            made += [running, whole]
        number, _, *sums = self._run(window, [*self._number_rows(window), *made])
        found = []
        for k, one in enumerate(columns):
            first, every = sums[2 * k : 2 * k + 2]
            code, zero = one.column.code, Fixed(one.column.code, value=0)
            above = self._running_at(first, every, end, every, window, number)
            below = self._running_at(first, every, None if start is None else start - 1, zero, window, number)
            found.append(self._keep(window, Computed(code, one.column.bases, "-", left=above, right=below)))
        return found

    def _running_at(self, running: Stored, whole: Stored, step: int | None, edge: Value, window: _Window, number: Stored) -> Value:  # fmt: skip
        """A running sum up to the row so many below: 0 before the partition, and the whole sum beyond it; without a number that at the edge."""
        if not step:
            return edge if step is None else running
        (moved,) = self._shift(running, window, number, [step])
        beyond: Value = whole if step > 0 else Fixed(running.code, value=0)
        return ChosenValue(running.code, running.bases, cases=((Negated(MissingValue(moved)), moved),), default=beyond)

    def _best_of_span(self, name: str, value: Stored, window: _Window) -> Value:
        """The least or largest value of the rows from r + s to r + e: of so many shifted values, or of a running one where the frame has no end."""
        start, end, bases = window.frame.start, window.frame.end, value.bases | window.bases
        none = Fixed(value.code, value=None)
        number, every = self._run(window, self._number_rows(window))
        if start is not None and end is not None:
            if end - start >= _WIDEST:
                raise refuse(f"{window.text} compares {end - start + 1} rows", f"use a frame of at most {_WIDEST} rows, or UNBOUNDED")  # fmt: skip
            return self._best(name, self._shift(value, window, number, range(start, end + 1)), window) if start <= end else self._keep(window, none)  # fmt: skip
        # Seen from its unbounded side, the frame is a running one that ends some rows below.
        columns = [WindowColumn(self._new_column(value.code, bases), name, value, frame) for frame in ("rows", "whole")]
        running, whole = self._run(window, columns, ((number, start is not None, False),))
        step = end if start is None else start
        if not step:
            return running
        (moved,) = self._shift(running, window, number, [step])
        if (step > 0) != (start is None):  # where the shift leaves the partition, the frame has no row
            return moved
        return self._keep(window, self._or_whole(moved, whole, number, every, step, window))

    def _or_whole(self, moved: Stored, whole: Stored, number: Stored, every: Stored, step: int, window: _Window) -> Value:  # fmt: skip
        """The shifted value, or that of the whole partition where the shift leaves it."""
        left = Compared(False, every, _plus(number, step, window)) if step > 0 else Negated(Compared(False, Fixed(_WHOLE, value=-step), number))  # fmt: skip
        return ChosenValue(moved.code, moved.bases, cases=((left, whole),), default=moved)

    def _best(self, name: str, values: list[Stored], window: _Window) -> Stored:
        """The least or largest of values of a row; NULL does not count."""
        while len(values) > 1:
            made: list[Stored] = []
            for one, other in zip(values[::2], values[1::2], strict=False):
                less = Compared(False, one, other) if name == "min" else Compared(False, other, one)
                cases: tuple[tuple[RowCondition, Value], ...] = ((MissingValue(one), other), (MissingValue(other), one), (less, one))  # fmt: skip
                made.append(self._keep(window, ChosenValue(one.code, one.bases | other.bases, cases=cases, default=other)))  # fmt: skip
            values = [*made, *([values[-1]] if len(values) % 2 else [])]
        return values[0]


def _plus(value: Value, rows: int, window: _Window) -> Value:
    """The number of the row so many below."""
    return Computed(_WHOLE, window.bases, "+", left=value, right=Fixed(_WHOLE, value=rows)) if rows else value
