"""Expressions and conditions of SQL as values and conditions on shares; what one leaf alone is read for, sites compute."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from atoll.core.errors import CompositionError

from ..column_codes import ColumnCode
from ..spatial import distance_of
from .limits.value_bounds import CAPS, BoundReader
from .names import LeafDraft, SelectNames, refuse
from .operators import (
    UNBOUNDED,
    ChosenValue,
    ColumnBound,
    Compared,
    Computed,
    Connected,
    Fixed,
    MissingValue,
    Negated,
    Quotient,
    RowCondition,
    SameTruth,
    TruthValue,
    Value,
)
from .units import UnitPlanner

__all__ = ["ValuePlanner"]

_WHOLE = ColumnCode("whole", "BIGINT")
_TRUTH = ColumnCode("whole", "BOOLEAN")


class ValuePlanner(UnitPlanner):
    """Values and conditions of one row."""

    # ------------------------------------------------------------------ values

    def value(self, node: Any, names: SelectNames, kind: str = "") -> Value:
        """An expression of one row.

        Args:
            node: the expression.
            names: what its names stand for.
            kind: DuckDB's type to which it is cast, if sites compute it.

        Raises:
            CompositionError: the parties cannot compute it.
        """
        text = node.sql("duckdb")
        if text in names.values:
            return names.values[text]
        if self.is_constant(node):
            return self._constant(text, kind or self.describe(f"SELECT {text} AS x"))
        leaf = self.leaf_of(node, names)
        if leaf is not None:
            own = kind or self.kind(node, names)
            code = self.code(own, text)
            local = self.guarded(node)
            return self._guarded(leaf, node, code, self._coded_text(code.local(f"CAST({local} AS {code.type})" if kind or code.type != own else local), node, code), names)  # fmt: skip
        if distance_of(node) is not None and not names.grouped:
            raise self._refuse_distance(node, names)
        make = next((method for kinds, method in self._makers() if isinstance(node, kinds)), None)
        if make is not None:
            return make(node, names)
        where = sorted(self.aliases(node, names))
        if names.grouped:
            raise refuse(f"{text} stands beside aggregates and is no group key", "add it to GROUP BY")
        raise refuse(f"{text} reads columns of {' and '.join(where) or 'a subquery'}, which lie at different sites", "compute with columns of one table, and compare the results; the parties add, subtract, multiply, compare and choose")  # fmt: skip

    def _refuse_distance(self, node: Any, names: SelectNames) -> CompositionError:
        where = sorted(self.aliases(node, names) | self.outer_aliases(node, names))
        remedy = "join the two tables ON DWithin(…) in the outermost SELECT, with DISTINCT where a subquery asks whether there is such a row"  # fmt: skip
        if "between" not in node.meta:
            remedy = "join the two tables in the outermost SELECT, and let the sites make the columns of one of them public, or the table replicated: then hufu computes any distance"  # fmt: skip
        return refuse(f"a distance between rows of {' and '.join(where) or 'a subquery'}, which lie at different sites{node.meta.get('at', '')}", remedy)  # fmt: skip

    def _makers(self) -> list[tuple[tuple[type, ...], Callable[[Any, SelectNames], Value]]]:
        """Kinds of nodes, and what makes a value of one that parties compute."""
        exp = self.exp
        return [
            ((exp.Column,), self._column),
            ((exp.Paren, exp.Alias), lambda node, names: self.value(node.this, names)),
            ((exp.Subquery, exp.Select), self.look_up_value),
            ((exp.Neg,), self._negative),
            ((exp.Add, exp.Sub, exp.Mul), self._arithmetic),
            ((exp.Div,), self._quotient),
            ((exp.Case, exp.If, exp.Coalesce, exp.Nullif), self._chosen),
            ((exp.Cast,), self._cast),
            ((exp.DateDiff,), self._days),
            ((exp.Predicate, exp.Connector, exp.Not), self._truth),
        ]

    def _negative(self, node: Any, names: SelectNames) -> Value:
        part = self.number(node.this, names)
        if isinstance(part, Quotient):
            raise refuse(f"{node.sql('duckdb')} of an average", "compare it with a negative number instead")
        return Computed(part.code, part.bases, "-", left=Fixed(_WHOLE, value=0), right=part)

    def _days(self, node: Any, names: SelectNames) -> Value:
        left, right = self.value(node.this, names), self.value(node.expression, names)
        unit = str(node.args.get("unit") or "DAY").upper().strip("'")
        if unit != "DAY" or not left.code.type == right.code.type == "DATE":
            raise refuse(f"{node.sql('duckdb')} on rows of different sites", "ask for the days between two dates")
        self.mark([left, right])
        return Computed(_WHOLE, left.bases | right.bases, "-", left=left, right=right)

    def _truth(self, node: Any, names: SelectNames) -> Value:
        return TruthValue(_TRUTH, self.bases_of(node, names), condition=self.condition(node, names))

    def _guarded(self, leaf: LeafDraft, node: Any, code: ColumnCode, text: str, names: SelectNames) -> Value:
        """A leaf's expression; where an outer join found no row, what it is of NULLs."""
        column = self.share(leaf, text, code, self.scopes.bases(node, names.scope), bound=self.read_bound(node, names, code))  # fmt: skip
        if not leaf.nullable:
            return column
        known = self.of_nothing(node, names)
        if known is None:
            return column
        present = self.share(leaf, "CAST(1 AS BIGINT)", _WHOLE, (), bound=ColumnBound((1,) * len(CAPS)))
        return ChosenValue(code, column.bases, cases=((MissingValue(present), Fixed(code, value=self._coded(known, code))),), default=column)  # fmt: skip

    def of_nothing(self, node: Any, names: SelectNames) -> str | None:
        """Text of an expression whose columns are all NULL; ``None`` for NULL."""
        copy = node.copy()
        if copy.find(self.exp.Query) is not None:
            return None
        for column in list(copy.find_all(self.exp.Column)):
            null = self.exp.Cast(this=self.exp.Null(), to=self.exp.DataType.build(self.kind(column, names), dialect="duckdb"))  # fmt: skip
            if column is copy:
                return None
            column.replace(null)
        text = copy.sql("duckdb")
        try:
            (found,) = self.connection.execute(f"SELECT {text} IS NULL").fetchone()
        except Exception:  # it fails of NULLs: it has no value
            return None
        return None if found else text

    def _coded(self, text: str, code: ColumnCode) -> Any:
        try:
            return self.connection.execute(f"SELECT {code.local(f'CAST({text} AS {code.type})')}").fetchone()[0]
        except Exception as error:  # a constant: there are no rows
            raise refuse(f"{text} is no {code.type}: {str(error).partition(chr(10))[0]}", "correct the constant") from None  # fmt: skip

    def _constant(self, text: str, kind: str) -> Fixed:
        kind = "INTEGER" if kind.strip('"') == "NULL" else kind
        code = self.code(kind, text)
        if code.kind == "real":
            return Fixed(code, value=self._coded(text, code))
        return Fixed(code, value=self._coded(text, code))

    def _column(self, node: Any, names: SelectNames) -> Value:
        """A column of a derived table."""
        source = None if names.grouped else names.sources.get(node.table)
        if isinstance(source, dict) and node.name.lower() in source:
            return source[node.name.lower()]
        if names.grouped:
            raise refuse(f"{node.sql('duckdb')} stands beside aggregates and is no group key", "add it to GROUP BY")
        raise refuse(f"{node.sql('duckdb')} of a table around the subquery", "use it in WHERE of the subquery alone")

    def number(self, node: Any, names: SelectNames, *, adds: str = "") -> Value:
        """An expression as a number that parties compute with.

        Args:
            node: the expression.
            names: what its names stand for.
            adds: what adds it up, for errors.
        """
        text = node.sql("duckdb")
        leaf = None if text in names.values else self.leaf_of(node, names)
        if leaf is None or (leaf.nullable and self.of_nothing(node, names) is not None):
            return self._as_number(self.value(node, names), text, adds)
        kind = self.kind(node, names)
        code, local = self.code(kind, text), self.guarded(node)
        if code.kind == "real":
            scale = self._scale_of(node, names)
            if scale is None:
                raise refuse(f"{adds or text} adds doubles, and parties add whole numbers" if adds else f"{text} is a double, and parties compute with whole numbers", f"cast: ({text})::DECIMAL(18,4), or let the sites declare scale: 0.01")  # fmt: skip
            code = ColumnCode("whole", kind, scale)
            local = f"CAST(round(({local}) * {10**scale}) AS BIGINT)"
        elif code.kind != "whole" or (kind == "BOOLEAN" and adds) or (adds and (kind == "DATE" or kind.startswith("TIMESTAMP"))):  # fmt: skip
            raise refuse(f"{adds or text} is of type {kind}", "cast to a number")
        else:
            local = code.local(f"CAST({local} AS {code.type})" if code.type != kind else local)
        bound = self.read_bound(node, names, code)
        return self.share(leaf, self._coded_text(local, node, code), code, self.scopes.bases(node, names.scope), number=True, bound=bound)  # fmt: skip

    def _coded_text(self, text: str, node: Any, code: ColumnCode) -> str:
        """Local SQL of a coded expression: if few rows must not show, NULL where it has no code."""
        if not self.strict or (isinstance(node, self.exp.Column) and code.kind != "real"):
            return text
        if code.kind == "text":
            return f"CASE WHEN instr({text}, chr(0)) = 0 THEN {text} END"
        return f"TRY({text})" if node.find(self.exp.Query) is None else text

    def read_bound(self, node: Any, names: SelectNames, code: ColumnCode) -> ColumnBound:
        """How large an expression that sites compute may be, if that must not depend on rows."""
        if not self.strict:
            return UNBOUNDED
        tables = {table: {name.lower(): kind for name, kind in columns.items()} for table, columns in self.catalog.tables.items()}  # fmt: skip
        reader = BoundReader(self.exp, self.scopes, tables, self._evaluate, lambda part: self.kind(part, names))
        return reader.read_bound(node, names.scope, code)

    def _evaluate(self, text: str) -> Any:
        try:
            return self.connection.execute(text).fetchone()
        except Exception:  # a constant that is no number: there are no rows
            return None

    def _as_number(self, found: Value, text: str, adds: str = "") -> Value:
        if isinstance(found, Fixed) and found.code.kind == "real" and found.value is not None:
            exact = decimal.Decimal(repr(found.value))
            digits = max(0, -int(exact.as_tuple().exponent))
            if digits <= 9 and abs(exact) < 10**9:
                return Fixed(ColumnCode("whole", f"DECIMAL(18,{digits})", digits), value=int(exact.scaleb(digits)))
        if found.code.kind != "whole":
            raise refuse(f"{adds or text} is of type {found.code.type}, and parties compute with whole numbers", "cast it to DECIMAL inside the table")  # fmt: skip
        self.mark([found])
        return found

    def _scale_of(self, node: Any, names: SelectNames) -> int | None:
        """Digits after the point that the policy declares of a column."""
        bases = self.scopes.bases(node, names.scope)
        scales = {self.scopes.column_policy(base).scale for base in bases} if isinstance(node, self.exp.Column) else {None}  # fmt: skip
        found = scales.pop() if len(scales) == 1 else None
        return next((k for k in range(10) if found is not None and abs(found * 10**k - round(found * 10**k)) < 1e-9 and round(found * 10**k) >= 1), None)  # fmt: skip

    def _arithmetic(self, node: Any, names: SelectNames) -> Value:
        exp = self.exp
        if isinstance(node.right, exp.Interval) or isinstance(node.left, exp.Interval):
            return self._shifted(node, names)
        left, right = self.number(node.left, names), self.number(node.right, names)
        operation = "+" if isinstance(node, exp.Add) else "-" if isinstance(node, exp.Sub) else "*"
        bases = left.bases | right.bases
        if isinstance(left, Quotient) or isinstance(right, Quotient):
            return self._scaled_quotient(node, operation, left, right)
        scale = left.code.scale + right.code.scale if operation == "*" else max(left.code.scale, right.code.scale)
        dates = [one.code.type == "DATE" for one in (left, right)]
        kind = "DATE" if dates[0] != dates[1] else f"DECIMAL(18,{scale})" if scale else "BIGINT"
        if scale > 9:
            raise refuse(f"{node.sql('duckdb')} has {scale} digits after the point", "round the values first: x::DECIMAL(18,2)")  # fmt: skip
        return Computed(ColumnCode("whole", kind, scale), bases, operation, left=left, right=right)

    def _scaled_quotient(self, node: Any, operation: str, left: Value, right: Value) -> Value:
        """A quotient times or by a constant."""
        one, other = (left, right) if isinstance(left, Quotient) else (right, left)
        if operation != "*" or isinstance(other, Quotient) or not isinstance(one, Quotient):
            raise refuse(f"{node.sql('duckdb')} adds averages", "compare sums, or show the averages and compute with them yourself")  # fmt: skip
        over = Computed(ColumnCode("whole", "BIGINT", one.over.code.scale + other.code.scale), one.bases | other.bases, "*", left=one.over, right=other)  # fmt: skip
        return Quotient(one.code, over.bases, over=over, under=one.under)

    def _shifted(self, node: Any, names: SelectNames) -> Value:
        """A date and an interval of days."""
        exp = self.exp
        moved, by = (node.left, node.right) if isinstance(node.right, exp.Interval) else (node.right, node.left)
        found = self.value(moved, names)
        unit, count = str(by.args.get("unit") or "").upper(), str(by.this.name if by.this is not None else "")
        micro = {"DAY": 86_400_000_000, "HOUR": 3_600_000_000, "MINUTE": 60_000_000, "SECOND": 1_000_000, "WEEK": 7 * 86_400_000_000}.get(unit.removesuffix("S"))  # fmt: skip
        if micro is None or not count.lstrip("-").isdigit() or found.code.type not in ("DATE", "TIMESTAMP"):
            raise refuse(f"{node.sql('duckdb')} on rows of different sites", "add whole days, or compute it in one table")  # fmt: skip
        self.mark([found])
        if found.code.type == "DATE":  # DuckDB makes a timestamp of it
            day = Fixed(_WHOLE, value=86_400_000_000)
            found = Computed(ColumnCode("whole", "TIMESTAMP"), found.bases, "*", left=found, right=day)
        step = Fixed(_WHOLE, value=int(count) * micro)
        return Computed(ColumnCode("whole", "TIMESTAMP"), found.bases, "-" if isinstance(node, exp.Sub) else "+", left=found, right=step)  # fmt: skip

    def _quotient(self, node: Any, names: SelectNames) -> Value:
        over, under = self.number(node.left, names), self.number(node.right, names)
        if isinstance(under, Fixed) and isinstance(under.value, int) and under.value > 0 and not isinstance(over, Quotient):  # fmt: skip
            return Quotient(ColumnCode("whole", "DOUBLE"), over.bases, over=over, under=under)
        raise refuse(f"{node.sql('duckdb')} divides by a value of a row", "divide by a constant, or compare products: a > 2 * b in place of a / b > 2")  # fmt: skip

    def _chosen(self, node: Any, names: SelectNames) -> Value:
        """CASE and what is written like it."""
        exp = self.exp
        if isinstance(node, exp.Coalesce):
            parts = [node.this, *node.expressions]
            values = self.unify(parts, names)
            cases: Any = tuple((Negated(MissingValue(one)), one) for one in values[:-1])
        elif isinstance(node, exp.Nullif):
            values = [*self.unify([node.this, node.expression], names)]
            cases = ((Compared(True, values[0], values[1]), Fixed(values[0].code, value=None)),)
            values = [cases[0][1], values[0]]
        else:
            ifs = node.args["ifs"] if isinstance(node, exp.Case) else [node]
            default = node.args.get("default") if isinstance(node, exp.Case) else node.args.get("false")
            results = [one.args["true"] for one in ifs]
            values = self.unify([*results, default if default is not None else exp.Null()], names)
            tests = [one.this if node.this is None or isinstance(node, exp.If) else exp.EQ(this=node.this.copy(), expression=one.this.copy()) for one in ifs]  # fmt: skip
            cases = tuple((self.condition(test, names), value) for test, value in zip(tests, values[:-1], strict=True))
        bases = frozenset(base for one in values for base in one.bases) | self.bases_of(node, names)
        scale = max(one.code.scale for one in values)
        code = replace(values[0].code, scale=scale) if values[0].code.kind == "whole" else values[0].code
        return ChosenValue(code, bases, cases=cases, default=values[-1])

    def _cast(self, node: Any, names: SelectNames) -> Value:
        found = self.value(node.this, names)
        kind = node.args["to"].sql("duckdb").upper().replace(" ", "")
        kind = {"INT": "INTEGER", "TEXT": "VARCHAR"}.get(kind, kind)
        scale = int(kind.partition(",")[2].rstrip(")") or 0) if kind.startswith("DECIMAL") else 0
        plain = kind in ("INTEGER", "BIGINT", "HUGEINT", "SMALLINT") or kind.startswith("DECIMAL")
        if found.code.type == kind or (kind == "DOUBLE" and isinstance(found, Quotient)):
            return found
        if plain and found.code.kind == "whole" and scale >= found.code.scale and not isinstance(found, Quotient) and found.code.type not in ("DATE", "TIMESTAMP"):  # fmt: skip
            if scale == found.code.scale:
                return found
            self.mark([found])
            return Computed(ColumnCode("whole", kind, scale), found.bases, "+", left=found, right=Fixed(ColumnCode("whole", kind, scale), value=0))  # fmt: skip
        raise refuse(f"{node.sql('duckdb')} on what parties hold", "cast the column inside its table")

    def unify(self, nodes: Sequence[Any], names: SelectNames) -> list[Value]:
        """Expressions as values that compare, in the type that DuckDB casts them to."""
        kinds = [self.kind(node, names) for node in nodes]
        plain = [self.is_constant(node) or (node.sql("duckdb") not in names.values and self.leaf_of(node, names) is not None) for node in nodes]  # fmt: skip
        made = [None if one else self.value(node, names) for node, one in zip(nodes, plain, strict=True)]
        known = [kind for node, kind in zip(nodes, kinds, strict=True) if not isinstance(node, self.exp.Null)]
        common = self.common_type(known or kinds)
        code = self.code(common, nodes[0].sql("duckdb"))
        numeric = any(one is not None and (one.arithmetic or one.code.kind == "whole" != code.kind or (code.kind == "whole" and one.code.scale != code.scale)) for one in made)  # fmt: skip
        found: list[Value] = []
        for node, one in zip(nodes, made, strict=True):
            if one is None and isinstance(node, self.exp.Null):
                found.append(Fixed(next((x.code for x in made if x is not None), code), value=None))
            elif one is not None:
                found.append(self._as_number(one, node.sql("duckdb")) if numeric else one)
            else:
                found.append(self.number(node, names) if numeric else self.value(node, names, code.type))
        families = {one.code.kind for one in found}
        if len(families) > 1:
            raise refuse(f"{' and '.join(node.sql('duckdb') for node in nodes)} are of types {' and '.join(kinds)}", "cast one of them inside its table")  # fmt: skip
        return found

    # ------------------------------------------------------------------ conditions

    def condition(self, node: Any, names: SelectNames, *, positive: bool = False) -> RowCondition:
        """A condition on a row.

        Args:
            node: the condition.
            names: what its names stand for.
            positive: whether NULL may count as false.
        """
        exp = self.exp
        if isinstance(node, exp.Paren):
            return self.condition(node.this, names, positive=positive)
        text = node.sql("duckdb")
        if text not in names.values and (self.is_constant(node) or self.leaf_of(node, names) is not None):
            return self._stated(self.value(node, names, "BOOLEAN"))
        if isinstance(node, exp.Not):
            return Negated(self.condition(node.this, names))
        if isinstance(node, exp.And | exp.Or):
            parts = tuple(self.condition(one, names, positive=positive) for one in node.flatten())
            return Connected(isinstance(node, exp.And), parts)
        if isinstance(node, exp.In):
            return self.look_up_member(node, names, positive=positive)
        if isinstance(node, exp.EQ) and isinstance(node.expression, exp.Any):
            inner = node.expression.this
            return self.look_up_member(exp.In(this=node.left.copy()), names, positive=positive, query=inner)
        make = next((method for kinds, method in self._testers() if isinstance(node, kinds)), None)
        return self._stated(self.value(node, names)) if make is None else make(node, names)

    def _testers(self) -> list[tuple[tuple[type, ...], Callable[[Any, SelectNames], RowCondition]]]:
        """Kinds of nodes, and what makes a condition of one that parties compute."""
        exp = self.exp
        return [
            ((exp.Exists,), lambda node, names: self.look_up_rows(node.this, names)),
            ((exp.Is,), self._is),
            ((exp.Between,), self._between),
            ((exp.NullSafeEQ, exp.NullSafeNEQ), self._same),
            ((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), self._compared),
            ((exp.Like, exp.StartsWith), self._prefix),
        ]

    def _between(self, node: Any, names: SelectNames) -> RowCondition:
        value, low, high = self.unify([node.this, node.args["low"], node.args["high"]], names)
        return Connected(True, (Negated(Compared(False, value, low)), Negated(Compared(False, high, value))))

    def _same(self, node: Any, names: SelectNames) -> RowCondition:
        """IS [NOT] DISTINCT FROM."""
        one, other = self.unify([node.left, node.right], names)
        both = Connected(True, (MissingValue(one), MissingValue(other)))
        equal = Connected(True, (Negated(MissingValue(one)), Negated(MissingValue(other)), Compared(True, one, other)))
        same = Connected(False, (both, equal))
        return same if isinstance(node, self.exp.NullSafeEQ) else Negated(same)

    def _compared(self, node: Any, names: SelectNames) -> RowCondition:
        exp = self.exp
        if node.find(exp.Any, exp.All) is not None:
            raise refuse(node.sql("duckdb"), "write EXISTS, or compare with MIN or MAX of the subquery")
        left, right = self.unify([node.left, node.right], names)
        if isinstance(node, exp.GT | exp.LTE):
            left, right = right, left
        made: RowCondition = Compared(isinstance(node, exp.EQ | exp.NEQ), left, right)
        return Negated(made) if isinstance(node, exp.NEQ | exp.LTE | exp.GTE) else made

    def _stated(self, value: Value) -> RowCondition:
        if isinstance(value, TruthValue):
            return value.condition
        if isinstance(value, Fixed):
            return SameTruth(None if value.value is None else bool(value.value))
        return Compared(True, value, Fixed(_TRUTH, value=1))

    def _is(self, node: Any, names: SelectNames) -> RowCondition:
        exp = self.exp
        if isinstance(node.expression, exp.Null):
            return MissingValue(self.value(node.this, names))
        if isinstance(node.expression, exp.Boolean):
            part = self.condition(node.this, names)
            wanted = part if node.expression.this else Negated(part)
            # NULL is neither: a choice has no NULL where its condition has one.
            chosen = ChosenValue(_TRUTH, cases=((wanted, Fixed(_TRUTH, value=1)),), default=Fixed(_TRUTH, value=0))
            return Compared(True, chosen, Fixed(_TRUTH, value=1))
        raise refuse(node.sql("duckdb"), "use IS NULL, IS TRUE or IS FALSE")

    def _prefix(self, node: Any, names: SelectNames) -> RowCondition:
        """LIKE 'abc%' on text that parties hold."""
        pattern = node.expression
        text = pattern.name if isinstance(pattern, self.exp.Literal) and pattern.is_string else None
        like = isinstance(node, self.exp.Like)
        plain = text is not None and ((like and text.endswith("%") and not set(text[:-1]) & set("%_\\")) or not like)
        value = self.value(node.this, names)
        if not plain or text is None or value.code.kind != "text":
            raise refuse(f"{node.sql('duckdb')} on rows of different sites", "ask for a prefix, LIKE 'abc%', or do it inside the table")  # fmt: skip
        head = text[:-1] if like else text
        code = ColumnCode("text", "VARCHAR")
        first = Negated(Compared(False, value, Fixed(code, value=head)))
        # The largest letter of UTF-8, twice: what is not below that does not begin with the prefix.
        last = Compared(False, value, Fixed(code, value=head + "\U0010ffff" * 2))
        return Connected(True, (first, last))
