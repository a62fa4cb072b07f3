"""FROM and WHERE: which tables sites join by themselves, and how the parties join the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atoll.core.errors import CompositionError, PolicyError

from ..plan import split_conditions
from ..policy import ColumnPolicy
from ..rules.matching import weight_of
from .lookups import LookupPlanner
from .names import JoinPart, LeafDraft, SelectNames, refuse
from .operators import (
    Connected,
    Filtered,
    Flag,
    GroupedRows,
    JoinedRows,
    LeafRows,
    Looked,
    MatchedRows,
    Negated,
    Operator,
    Quotient,
    RowCondition,
    Stored,
)

__all__ = ["JoinPlanner"]


class JoinPlanner(LookupPlanner):
    """FROM and WHERE."""

    # ------------------------------------------------------------------ FROM and WHERE

    def read_rows(self, names: SelectNames, conditions: Sequence[Any]) -> None:
        """The rows of FROM for which conditions hold; then `names` has what their columns stand for."""
        select = names.select
        if select.args.get("from_") is None:
            raise refuse("no table is read", "add FROM and a table")
        left = list(conditions)
        parts, waiting = self._parts(names, left)
        names.operator = self._combine(names, parts, waiting)
        for part in left:
            self.filter(names, part)

    def filter(self, names: SelectNames, node: Any, *, shown: bool = False) -> None:
        """Keep the rows for which a condition holds.

        Args:
            names: what names stand for.
            node: the condition.
            shown: whether it chooses among groups that may all be shown.
        """
        if not shown:
            self.require_seen(node, names)
        condition = self.condition(node, names, positive=True)
        names.operator = Filtered(names.operator, condition, what=node.sql("duckdb"))

    def _parts(self, names: SelectNames, left: list[Any]) -> tuple[list[JoinPart], list[Any]]:
        """The tables of FROM, outer joins done, and the conditions that join the others; takes from ``left`` what it uses."""
        select, scope = names.select, names.scope
        joins = list(select.args.get("joins") or ())
        if not any(weight_of(join) is not None for join in joins) and self._is_local_from(scope):
            first = select.args["from_"].this
            text = self.local(first) + "".join(_joined(self.local(join)) for join in joins)
            aliases = set(self.scopes.sources_of(scope))
            leaf = self._leaf([text], aliases, names, not any(self.scopes.is_source_divided(s) for _, s in self.scopes.sources_of(scope).values()))  # fmt: skip
            if leaf.lone and not self.everywhere:
                for part in (part for one in joins for part in self._conjuncts(one.args.get("on"))):
                    self.require_seen(part, names)
            if all(one.args.get("on") is None and not one.side for one in joins):
                leaf.items = [self.local(one.this) for one in (select.args["from_"], *joins)]
                self._link(leaf, left, names)
            return [JoinPart(LeafRows(-1), aliases, leaf)], self._take(left, aliases, names)
        parts = [self._part(select.args["from_"].this, names)]
        waiting: list[Any] = []
        for join in joins:
            side, kind = (join.side or "").upper(), (join.kind or "").upper()
            if join.args.get("method") or join.args.get("using") or kind in ("POSITIONAL", "ASOF"):
                raise refuse(f"{join.args.get('method') or kind or 'USING'} JOIN of rows that lie at different sites", "write ON a.x = b.x")  # fmt: skip
            part = self._part(join.this, names)
            if (weight := weight_of(join)) is not None:
                parts = [self._match(names, parts[0], part, weight)]
                continue
            on = self._conjuncts(join.args.get("on"))
            if not side and kind in ("", "INNER", "CROSS"):
                parts.append(part)
                waiting += on
                continue
            if side in ("", "LEFT"):
                known = set().union(*(one.aliases for one in parts))
                waiting += self._take(left, known, names)
            before = JoinPart(self._combine(names, parts, waiting), set().union(*(one.aliases for one in parts)))
            parts, waiting = [self._outer(names, before, part, on, side, kind)], []
        waiting += self._take(left, set().union(*(one.aliases for one in parts)), names)
        return parts, waiting

    def _conjuncts(self, node: Any) -> list[Any]:
        return [] if node is None else list(node.flatten()) if isinstance(node, self.exp.And) else [node]

    def _take(self, left: list[Any], aliases: set[str], names: SelectNames) -> list[Any]:
        """The conditions without further subqueries that read some tables alone, taken from a list."""
        taken = [one for one in left if self.aliases(one, names) <= aliases and not self.outer_aliases(one, names) and all(self.is_local_query(q) for q in self.queries(one))]  # fmt: skip
        left[:] = [one for one in left if not any(one is other for other in taken)]
        return taken

    def _is_local_from(self, scope: Any) -> bool:
        try:
            self.scopes.require_local_joins(scope)
        except CompositionError:
            return False
        return all(isinstance(source, self.exp.Table) or (not self.needs_units(source) and self.is_local_scope(source)) for _, source in self.scopes.sources_of(scope).values())  # fmt: skip

    def _leaf(self, items: Sequence[str], aliases: set[str], names: SelectNames, lone: bool) -> LeafDraft:
        leaf = LeafDraft(items, aliases, lone)
        for alias in sorted(aliases):
            names.sources[alias] = leaf
            source = self.scopes.sources_of(names.scope)[alias][1]
            if self.strict and isinstance(source, self.exp.Table) and (self.everywhere or self.scopes.is_source_divided(source)):  # fmt: skip
                leaf.released.append(self.released(alias, source.name.lower()))
        return leaf

    def _settle(self, part: JoinPart) -> None:
        """Give a leaf its place in the plan."""
        if part.leaf is not None and part.leaf.place < 0:
            part.leaf.place = len(self.leaves)
            self.leaves.append(part.leaf)
            part.operator = LeafRows(part.leaf.place, what=", ".join(sorted(part.leaf.aliases)))

    def _part(self, item: Any, names: SelectNames) -> JoinPart:
        alias = item.alias_or_name
        if alias not in self.scopes.sources_of(names.scope):
            raise refuse(f"{item.sql('duckdb')} in FROM", "read tables and subqueries")
        source = self.scopes.sources_of(names.scope)[alias][1]
        if isinstance(source, self.exp.Table) or (not self.needs_units(source) and self.is_local_scope(source)):
            leaf = self._leaf([self.local(item)], {alias}, names, not self.scopes.is_source_divided(source))
            return JoinPart(LeafRows(-1), {alias}, leaf)
        operator, outputs, unique = self.query(source.expression, source, None)
        renamed = item.args.get("alias").columns if item.args.get("alias") is not None else []
        columns = {(renamed[k].name if k < len(renamed) else name).lower(): value for k, (name, value) in enumerate(outputs)}  # fmt: skip
        names.sources[alias] = columns
        names.units[alias] = self.query_units.get(id(source.expression.unnest()), [])
        if unique is not None:
            names.uniques[alias] = frozenset(name for name in columns if columns[name] in unique)
            if len(names.uniques[alias]) < len(unique):
                del names.uniques[alias]
        return JoinPart(operator, {alias})

    # ------------------------------------------------------------------ joins

    def _link(self, leaf: LeafDraft, conditions: list[Any], names: SelectNames) -> None:
        """Put conditions of equal columns that join the tables of a leaf beside its FROM: the size that sites tell is that of the join."""
        for one in list(conditions):
            if isinstance(one, self.exp.EQ) and len(self.aliases(one, names)) == 2 and self.aliases(one, names) <= leaf.aliases and all(isinstance(x.unnest(), self.exp.Column) for x in (one.left, one.right)):  # fmt: skip
                leaf.links.append(self.local(one))
                conditions[:] = [other for other in conditions if other is not one]

    def _combine(self, names: SelectNames, parts: list[JoinPart], conditions: list[Any]) -> Operator:
        """One table of several, joined by conditions."""
        parts = self._merge_leaves(names, parts, conditions)
        for part in parts:
            mine = [one for one in conditions if self.aliases(one, names) <= part.aliases]
            conditions = [one for one in conditions if not any(one is other for other in mine)]
            self._push(names, part, mine)
        now = parts.pop(0)
        while parts:
            best = max(range(len(parts)), key=lambda k: (*self._rank(names, now, parts[k], conditions), -k))
            part = parts.pop(best)
            pairs, conditions = self._equal(names, now.aliases, part.aliases, conditions)
            now = self._join(names, now, part, pairs)
            mine = [one for one in conditions if self.aliases(one, names) <= now.aliases]
            conditions = [one for one in conditions if not any(one is other for other in mine)]
            self._push(names, now, mine)
        self._push(names, now, conditions)
        return now.operator

    def _push(self, names: SelectNames, part: JoinPart, conditions: Sequence[Any]) -> None:
        """Keep the rows of a part for which conditions hold: at the sites, if they can tell."""
        for one in conditions:
            if part.leaf is not None and not part.leaf.nullable and (self.is_constant(one) or self.leaf_of(one, names) is part.leaf):  # fmt: skip
                if (
                    part.leaf.lone and not self.everywhere
                ):  # rows that every site has choose among others, and nobody's record has them
                    self.require_seen(one, names)
                part.leaf.kept.append(self.guarded(one))
            else:
                kept, names.operator = names.operator, part.operator
                self.filter(names, one)
                part.operator, part.leaf, names.operator = names.operator, None, kept

    def _merge_leaves(self, names: SelectNames, parts: list[JoinPart], conditions: list[Any]) -> list[JoinPart]:
        """Join leaves within sites, where equal values lie at one site, or each site has all rows of one."""
        found = list(parts)
        changed = True
        while changed:
            changed = False
            for a, one in enumerate(found):
                for b in range(a + 1, len(found)):
                    other = found[b]
                    x, y = one.leaf, other.leaf
                    if x is None or y is None or x.nullable or y.nullable or x is y:
                        continue
                    links = [c for c in conditions if isinstance(c, self.exp.EQ) and self.aliases(c, names) & one.aliases and self.aliases(c, names) & other.aliases and all(isinstance(s.unnest(), self.exp.Column) for s in (c.left, c.right))]  # fmt: skip
                    near = [c for c in links if x.lone or y.lone or all(self.scopes.is_local(s.unnest(), names.scope) for s in (c.left, c.right))]  # fmt: skip
                    if not near:
                        continue
                    for alias in other.aliases:
                        names.sources[alias] = x
                    x.items += y.items
                    x.links += y.links
                    x.kept += y.kept
                    x.released += y.released
                    x.aliases |= y.aliases
                    x.lone = x.lone and y.lone
                    self._link(x, conditions, names)
                    one.aliases |= other.aliases
                    del found[b]
                    changed = True
                    break
                if changed:
                    break
        for part in found:
            self._settle(part)
        return found

    def _equal(self, names: SelectNames, here: set[str], there: set[str], conditions: list[Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:  # fmt: skip
        """Pairs of expressions of two sides that conditions say are equal, and the other conditions."""
        pairs, rest = [], []
        for one in conditions:
            sides = [x.unnest() for x in (one.left, one.right)] if isinstance(one, self.exp.EQ) else []
            read = [self.aliases(x, names) for x in sides]
            if sides and all(read) and read[0] <= here and read[1] <= there:
                pairs.append((sides[0], sides[1]))
            elif sides and all(read) and read[1] <= here and read[0] <= there:
                pairs.append((sides[1], sides[0]))
            else:
                rest.append(one)
        return pairs, rest

    def _rank(self, names: SelectNames, now: JoinPart, part: JoinPart, conditions: list[Any]) -> tuple[int, int]:
        """How good it is to join a part next: unique keys first, all pairs last."""
        pairs, _ = self._equal(names, now.aliases, part.aliases, conditions)
        if not pairs:
            return -1, 0
        right, left = (
            self.count_rows_of_key([b for _, b in pairs], names),
            self.count_rows_of_key([a for a, _ in pairs], names),
        )
        return (3 if right == 1 else 2 if left == 1 else 1 if right or left else 0), -(right or 99)

    def count_rows_of_key(self, nodes: Sequence[Any], names: SelectNames) -> int:
        """How many rows of a table may have equal values of some columns, as far as policies say; 0 if they do not."""
        found: list[int] = []
        by: dict[str, list[Any]] = {}
        for node in nodes:
            if isinstance(node, self.exp.Column):
                by.setdefault(node.table, []).append(node)
        for alias, columns in by.items():
            source = names.sources.get(alias)
            if isinstance(source, dict):
                unique = names.uniques.get(alias)
                if unique is not None and unique <= {one.name.lower() for one in columns} and not names.grouped:
                    found.append(1)
            elif source is not None:
                found += [most for most in (self._leaf_most(source, one, names) for one in columns) if most]
        return min(found, default=0)

    def _column_most(self, node: Any, names: SelectNames) -> int:
        source = self.scopes.sources_of(names.scope).get(node.table, (None, None))[1]
        if not isinstance(source, self.exp.Table):
            return 0
        found: ColumnPolicy = self.scopes.column_policy((source.name.lower(), node.name.lower()))
        return found.at_most or 0

    def _leaf_most(self, leaf: LeafDraft, node: Any, names: SelectNames) -> int:
        """The same of the rows of a leaf: what its further tables multiply them by counts too."""
        most = self._column_most(node, names)
        reached, claims = {node.table}, [node]
        while most and reached < leaf.aliases:
            step = next(((a, b) for a, b in self._leaf_links(leaf, names) if a.table in reached and b.table not in reached and self._column_most(b, names)), None)  # fmt: skip
            if step is None:
                return 0
            most *= self._column_most(step[1], names)
            reached.add(step[1].table)
            claims.append(step[1])
        if most:
            for one in claims:
                source = self.scopes.sources_of(names.scope)[one.table][1]
                leaf.claims[(source.name.lower(), one.name.lower())] = self._column_most(one, names)
        return most

    def _leaf_links(self, leaf: LeafDraft, names: SelectNames) -> list[tuple[Any, Any]]:
        """Pairs of equal columns of a leaf's tables, both ways."""
        select, found = names.select, []
        parts = list(split_conditions(self.exp, select.args.get("where")))
        for join in select.args.get("joins") or ():
            parts += self._conjuncts(join.args.get("on"))
        for one in parts:
            if isinstance(one, self.exp.EQ):
                x, y = one.left.unnest(), one.right.unnest()
                if isinstance(x, self.exp.Column) and isinstance(y, self.exp.Column) and {x.table, y.table} <= leaf.aliases:  # fmt: skip
                    found += [(x, y), (y, x)]
        return found

    def _join(self, names: SelectNames, left: JoinPart, right: JoinPart, pairs: Sequence[tuple[Any, Any]]) -> JoinPart:
        self._require_join(names, [one for pair in pairs for one in pair], f"the parties join {', '.join(sorted(right.aliases))}")  # fmt: skip
        values = [self.pair(a, names, b, names) for a, b in pairs]
        most = [
            self.count_rows_of_key([a for a, _ in pairs], names),
            self.count_rows_of_key([b for _, b in pairs], names),
        ]
        single = isinstance(right.operator, GroupedRows) and not right.operator.keys
        if not pairs and not single and isinstance(left.operator, GroupedRows) and not left.operator.keys:
            left, right, most = right, left, most[::-1]
        what = " and ".join(f"{a.sql('duckdb')} = {b.sql('duckdb')}" for a, b in pairs) or "all pairs"
        made = JoinedRows(left.operator, right.operator, tuple(values), most[0], most[1], what=f"join {', '.join(sorted(right.aliases))} on {what}")  # fmt: skip
        return JoinPart(made, left.aliases | right.aliases)

    def _require_join(self, names: SelectNames, nodes: Sequence[Any], what: str) -> None:
        """Refuse a join of the parties whose conditions policies do not allow."""
        self.require_sites(what)
        for one in nodes:
            self.require_seen(one, names, also=True)

    def _match(self, names: SelectNames, left: JoinPart, right: JoinPart, weight: Any) -> JoinPart:
        """The heaviest matching of two parts. No condition is done before: those around it choose among its pairs."""
        if self.strict:
            raise PolicyError(f"min_count is {self.policy.min_count}, and a matching shows pairs of single rows", where="smcql", remedy="let sites set min_count: 1")  # fmt: skip
        for part in (left, right):
            self._settle(part)
        value, text = self.number(weight, names), weight.sql("duckdb")
        if isinstance(value, Quotient):
            raise refuse(f"the weight {text} is a quotient", "multiply it: a matching is the same for weights ten times as large")  # fmt: skip
        self.mark([value])
        one, other = (", ".join(sorted(part.aliases)) for part in (left, right))
        shows = f"which rows of {one} and of {other}, in a secret order, bid in each round of an auction; and the largest {text}, up to a power of two"
        made = MatchedRows(left.operator, right.operator, value, what=f"match {one} and {other} by an auction, so that the sum of {text} is as large as can be", shows=shows)  # fmt: skip
        return JoinPart(made, left.aliases | right.aliases)

    def _outer(
        self, names: SelectNames, left: JoinPart, right: JoinPart, on: list[Any], side: str, kind: str
    ) -> JoinPart:
        """A LEFT, RIGHT, FULL, SEMI or ANTI JOIN."""
        self._settle(right)
        alone = [one for one in on if self.aliases(one, names) and self.aliases(one, names) <= right.aliases]
        if side in ("", "LEFT") and alone:
            self._push(names, right, alone)
            on = [one for one in on if not any(one is other for other in alone)]
        pairs, rest = self._equal(names, left.aliases, right.aliases, on)
        self._require_join(names, on, f"the parties do a {side or kind} JOIN of {', '.join(sorted(right.aliases))}")
        values = [self.pair(a, names, b, names) for a, b in pairs]
        most = [
            self.count_rows_of_key([a for a, _ in pairs], names),
            self.count_rows_of_key([b for _, b in pairs], names),
        ]
        condition = Connected(True, tuple(self.condition(one, names) for one in rest)) if rest else None
        what = (
            f"{side or kind} JOIN {', '.join(sorted(right.aliases))} on {' and '.join(one.sql('duckdb') for one in on)}"
        )
        if kind in ("SEMI", "ANTI"):
            flag = self.new_name("f")
            made: Operator = Looked(
                left.operator, right.operator, tuple(values), flag, (), condition, most[0], most[1], what=what
            )
            hidden: RowCondition = Flag(flag)
            return JoinPart(Filtered(made, hidden if kind == "SEMI" else Negated(hidden), what=what), left.aliases)
        for part, lost in ((left, side in ("RIGHT", "FULL")), (right, side in ("LEFT", "FULL"))):
            if lost:
                self._lose(names, part)
        ends = (left.operator, right.operator)
        if side == "RIGHT":
            ends, values, most = ends[::-1], [(b, a) for a, b in values], most[::-1]
        kept = "full" if side == "FULL" else "left"
        made = JoinedRows(ends[0], ends[1], tuple(values), most[0], most[1], kept, condition, what=what)
        return JoinPart(made, left.aliases | right.aliases)

    def _lose(self, names: SelectNames, part: JoinPart) -> None:
        """A part whose columns are NULL where an outer join found no row of it."""
        for alias in part.aliases:
            source = names.sources[alias]
            if isinstance(source, LeafDraft):
                source.nullable = True
                continue
            loose = [name for name, value in source.items() if not isinstance(value, Stored)]
            part.operator, made = self.store(part.operator, [source[name] for name in loose], alias)
            source.update(zip(loose, made, strict=True))


def _joined(text: str) -> str:
    return text if text.startswith(",") else f" {text}"
