"""The graph of a masked sum: whose masks cancel with whose, and who holds shares of whose seeds (Bell et al. 2020).

In a complete graph every two parties share a mask (Bonawitz et al. 2017). In a sparse one a party has ``degree`` neighbours on a ring of random order, half of them on
each side: a Harary graph, which stays in one piece under random loss. The order follows from a public number, so every party can check that
the graph is the one that was announced.
"""

from __future__ import annotations

import functools
import hashlib

__all__ = ["in_one_piece", "neighbours_of", "rings"]


@functools.lru_cache(maxsize=64)
def rings(parties: int, degree: int, order: int) -> tuple[tuple[int, ...], ...]:
    """The neighbours of each party, ascending.

    Args:
        parties: number of parties, which are named by their places.
        degree: neighbours of each, at least; an odd one counts as the next even one. With ``parties - 1`` or more the graph is complete.
        order: public number that the random order follows from.
    """
    if degree >= parties - 1:
        return tuple(tuple(j for j in range(parties) if j != i) for i in range(parties))

    def rank(i: int) -> bytes:
        return hashlib.sha256(b"atoll graph %d %d" % (order, i)).digest()

    ring = sorted(range(parties), key=rank)
    half = -(-degree // 2)
    found: list[tuple[int, ...]] = [()] * parties
    for place, i in enumerate(ring):
        near = {ring[(place + step) % parties] for step in range(-half, half + 1)} - {i}
        found[i] = tuple(sorted(near))
    return tuple(found)


def neighbours_of(i: int, parties: int, degree: int, order: int) -> tuple[int, ...]:
    """The neighbours of one party; see `rings`."""
    return rings(parties, degree, order)[i]


def in_one_piece(kept: frozenset[int], graph: tuple[tuple[int, ...], ...]) -> bool:
    """Whether every two parties that are kept are joined by a path of such parties: otherwise the sum of each piece can be told apart."""
    if not kept:
        return False
    reached, edge = set[int](), [next(iter(kept))]
    while edge:
        i = edge.pop()
        if i not in reached:
            reached.add(i)
            edge += [j for j in graph[i] if j in kept and j not in reached]
    return len(reached) == len(kept)
