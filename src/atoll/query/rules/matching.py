"""The heaviest matching of the rows of two tables, and the condition of a JOIN that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atoll.core.errors import ConfigError

from .registry import Rewriting, RuleCall, rule

__all__ = ["expand_matched", "has_matching", "weight_of", "write_matching"]

_MARK = "matched"


@rule("Matching(left, right, weight)")
def write_matching(call: RuleCall) -> Rewriting:
    """Pairs of rows of two tables, each row in one at most, that weigh as much as any such pairs can: riders and drivers of several fleets, ``Matching(riders, drivers, riders.fare - drivers.cost)``.

    The weight is an expression of both rows; pairs that weigh nothing, less than nothing or NULL are never matched. The result has the columns of both tables. Of several heaviest matchings it is one; conditions
    in WHERE choose among its pairs, and a subquery as an argument chooses who takes part.

    It stands for ``left JOIN right ON Matched(weight)``, which `smcql` answers by an auction under shares: weights, prices and bids stay hidden, and the parties see, of rows in a secret order, which ones bid in each round
    (`atoll.secure.tables.match_rows`). Weights are whole numbers or decimals, so that the result is the optimum, and no approximation. A side has at most 512 rows, filled up as all tables are.
    """
    one, other = call.source(0), call.source(1)
    if one.alias.lower() == other.alias.lower():
        raise call.refuse(f"both tables are called {one.alias}", f"name one of them: {one.alias} AS other", 1)
    return Rewriting(f"{one.text} JOIN {other.text} ON Matched({call.expression(2, one, other)})")


def expand_matched(tree: Any, at: Callable[[Any], str]) -> bool:
    """Write ``Matched(weight)`` out as a marked condition, in place: ``weight > 0``, which every pair of the matching meets.

    Args:
        tree: the statement, before names are resolved.
        at: the line of a node, and a caret below it, for errors.

    Returns:
        Whether there was one.

    Raises:
        ConfigError: it stands elsewhere than in ON of the first JOIN.
    """
    from sqlglot import exp

    found: list[Any] = [node for node in tree.find_all(exp.Anonymous) if node.name.lower() == _MARK]
    for node in found:
        join: Any = node.parent
        select: Any = join.parent
        first = isinstance(join, exp.Join) and id(join.args.get("on")) == id(node) and select.args["joins"][0] is join
        if not first or join.side or (join.kind or "").upper() not in ("", "INNER") or len(node.expressions) != 1:
            raise ConfigError(f"Matched outside of its place{at(node)}", where="sql", remedy="write it alone, with one weight, in ON of the first JOIN: FROM riders JOIN drivers ON matched(fare)")  # fmt: skip
        made = exp.GT(this=exp.paren(node.expressions[0].copy()), expression=exp.Literal.number(0))
        made.meta[_MARK] = True
        node.replace(made)
    return bool(found)


def weight_of(join: Any) -> Any:
    """The weight of a JOIN that is a matching; ``None`` for another one."""
    on = join.args.get("on")
    return on.this.unnest() if on is not None and on.meta.get(_MARK) else None


def has_matching(node: Any) -> bool:
    """Whether there is a matching in a part of a statement."""
    return any(one.meta.get(_MARK) for one in node.walk())
