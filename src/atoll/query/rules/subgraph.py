"""The places where a small pattern occurs in a graph whose edges lie at several sites."""

from __future__ import annotations

import itertools
import re

from ..databases.silo import quote
from .registry import Rewriting, RuleCall, rule

__all__ = ["write_subgraph"]

MOST_NODES = 4
_STEP = re.compile(r"\s*(->|<-|-)\s*")
Edge = tuple[str, str, bool]
"""Two nodes of a pattern, and whether the edge has a direction."""


@rule("Subgraph(edges, source, target, pattern)")
def write_subgraph(call: RuleCall) -> Rewriting:
    """All ways to find a pattern of up to 4 nodes in a graph, whose edges are rows: ``Subgraph(calls, caller, callee, 'a->b->c, a->c')``.

    A row of the result has a column for each node of the pattern, in the order in which it names them. Nodes that have different names are different; edges that the pattern does not name may be there too. ``a-b`` is
    an edge in either direction. Two sites may have the same edge: then it counts once.

    Edges that reach a new node become joins, and edges between nodes that are known become ``EXISTS``, so that a triangle costs no more pairs than a path of two edges. Declare how many edges a node has
    (``at_most`` of both columns), or let the number of places be told (``smcql:joins=told``): without either `smcql` holds all pairs of edges.
    """
    edges, pattern = call.source(0), call.word(3)
    ends = (call.column(1, edges), call.column(2, edges))
    found = _parse_pattern(call, pattern)
    names = list(dict.fromkeys(name for a, b, _ in found for name in (a, b)))
    both = f"(SELECT {ends[0]}, {ends[1]} FROM {edges.inner} AS e UNION ALL SELECT {ends[1]} AS {ends[0]}, {ends[0]} AS {ends[1]} FROM {edges.inner} AS e)"
    known: dict[str, str] = {}
    joins, conditions, waiting = list[str](), list[str](), list(found)
    while waiting:
        # An edge that touches what is known comes first: patterns hang together.
        number = len(found) - len(waiting)
        a, b, directed = waiting.pop(next((k for k, (x, y, _) in enumerate(waiting) if not known or x in known or y in known), 0))  # fmt: skip
        if known and a not in known and b not in known:
            raise call.refuse(f"{pattern!r} falls apart into two patterns", "ask for each of them in a call of its own", 3)  # fmt: skip
        table = edges.inner if directed else both
        here = {a: f"e{number}.{ends[0]}", b: f"e{number}.{ends[1]}"}
        links = [f"{here[name]} = {known[name]}" for name in (a, b) if name in known]
        if len(links) == 2:
            conditions.append(f"EXISTS (SELECT 1 FROM {table} AS e{number} WHERE {' AND '.join(links)})")
            continue
        for name in (a, b):
            if name not in known:
                conditions += [f"{here[name]} <> {there}" for other, there in known.items()]
        joins.append(f"{table} AS e{number}" + (f" ON {links[0]}" if links else ""))
        fresh = [name for name in (a, b) if name not in known]
        if len(fresh) == 2:
            conditions.append(f"{here[a]} <> {here[b]}")
        known |= {name: here[name] for name in fresh}
    shown = ", ".join(f"{known[name]} AS {quote(name)}" for name in names)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return Rewriting(f"(SELECT DISTINCT {shown} FROM {' JOIN '.join(joins)}{where}) AS {quote(call.alias or 'subgraph')}")  # fmt: skip


def _parse_pattern(call: RuleCall, pattern: str) -> list[Edge]:
    """The edges of ``'a->b->c, a-c'``, each once.

    Raises:
        ConfigError: it cannot be read, or has too many nodes.
    """
    found: list[Edge] = []
    for part in pattern.split(","):
        words = _STEP.split(part.strip())
        names, steps = words[::2], words[1::2]
        if not steps or not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in names):
            raise call.refuse(f"the pattern {pattern!r} cannot be read at {part.strip()!r}", "write edges between names: 'a->b->c, a-c'", 3)  # fmt: skip
        for (one, other), step in zip(itertools.pairwise(names), steps, strict=True):
            a, b = (other, one) if step == "<-" else (one, other)
            if a.lower() == b.lower():
                raise call.refuse(f"the pattern {pattern!r} has an edge from {a} to itself", "name two nodes", 3)
            found.append((a.lower(), b.lower(), step != "-"))
    nodes = {name for a, b, _ in found for name in (a, b)}
    if len(nodes) > MOST_NODES:
        raise call.refuse(f"the pattern {pattern!r} has {len(nodes)} nodes", f"use at most {MOST_NODES}", 3)
    return list(dict.fromkeys(found))
