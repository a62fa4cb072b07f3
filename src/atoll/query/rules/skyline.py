"""The rows that no other row beats."""

from __future__ import annotations

from .registry import Rewriting, RuleCall, rule

__all__ = ["write_skyline"]


@rule("Skyline(table, value, …)")
def write_skyline(call: RuleCall) -> Rewriting:
    """The rows that no other row beats: none is as good in all values and better in one. Smaller values are better; write ``-stars`` where larger ones are.

    ``Skyline(hotels, price, -stars)`` keeps a hotel unless another one is at most as dear, has at least as many stars, and is cheaper or has more. Rows with a missing value are left out.
    The values of a row may lie at different sites: give a subquery that joins them (a skyline over a vertical federation, after Börzsönyi, Kossmann, Stocker 2001)::

        FROM Skyline((SELECT p.id, p.price, r.stars FROM prices p JOIN ratings r ON p.id = r.id) AS h, price, -stars)

    It stands for ``NOT EXISTS`` over all pairs of rows, so that `smcql` compares as many pairs and values, and opens the rows that are left.
    """
    from sqlglot import exp

    one = call.source(0)
    shown, other = one.named(call.alias or one.alias), one.named(f"{call.alias or one.alias}_2")
    # Parties compare doubles, and do not compute with them: -stars is stars, compared the other way round.
    turned = [isinstance(node, exp.Neg) for node in call.arguments]
    call.arguments = [node.this if down else node for node, down in zip(call.arguments, turned, strict=True)]
    places = range(1, len(call.arguments))
    mine = [call.expression(k, one, of=[shown]) for k in places]
    theirs = [call.expression(k, one, of=[other]) for k in places]
    there = " AND ".join(f"({a}) IS NOT NULL" for a in mine)
    sides = [(a, b) if turned[k] else (b, a) for k, a, b in zip(places, mine, theirs, strict=True)]
    as_good = " AND ".join(f"({low}) <= ({high})" for low, high in sides)
    better = " OR ".join(f"({low}) < ({high})" for low, high in sides)
    return Rewriting(shown.text, f"{there} AND NOT EXISTS (SELECT 1 FROM {other.text} WHERE {as_good} AND ({better}))")
