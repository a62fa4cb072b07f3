"""Boosted trees by sums of packed gradients: the rules of `test_boosted_trees`, and what they give in one place."""

from __future__ import annotations

import numpy as np

SCALE, SHIFT, BINS, LAMBDA, TREES, DEPTH, RATE, ROWS = 10**4, 2**48, 4, 1.0, 3, 2, 0.5, 24


def gradients(y, margin):
    p = 1 / (1 + np.exp(-margin))
    return np.round((p - y) * SCALE).astype(np.int64), np.round(p * (1 - p) * SCALE).astype(np.int64)


def packed(g, h):
    return [int(a) * SHIFT + int(b) for a, b in zip(g, h, strict=True)]


def apart(total):
    """``(g, h)`` of a packed sum; hessians are not negative, and their sum is below SHIFT."""
    h = total % SHIFT
    return (total - h) // SHIFT / SCALE, h / SCALE


def best(histograms):
    """``(feature, bin)`` of the best cut; a histogram has a packed sum for each bin."""
    gain = lambda g, h: g * g / (h + LAMBDA)  # noqa: E731
    cuts = []
    for feature, sums in sorted(histograms.items()):
        for cut in range(1, BINS):
            (gl, hl), (g, h) = apart(sum(sums[:cut])), apart(sum(sums))
            cuts.append((round(gain(gl, hl) + gain(g - gl, h - hl), 9), feature, cut))
    return max(cuts, key=lambda one: (one[0], one[1], -one[2]))[1:]


def summed(values, nodes, bins, add):
    """Packed sums by node and bin."""
    return {
        n: [add(v for v, m, b in zip(values, nodes, bins, strict=True) if (m, b) == (n, k)) for k in range(BINS)]
        for n in sorted(set(nodes))
    }


def leaves(m, nodes, margin):
    for node in set(nodes.tolist()):
        g, h = apart(sum(v for v, n in zip(m, nodes, strict=True) if n == node))
        margin[nodes == node] -= RATE * g / (h + LAMBDA)
    return margin


def in_one_place(columns, y):
    margin, trees = np.zeros(ROWS), []
    for _ in range(TREES):
        m, nodes, cuts = packed(*gradients(y, margin)), np.zeros(ROWS, dtype=np.int64), []
        for _ in range(DEPTH):
            sums = {name: summed(m, nodes.tolist(), bins, sum) for name, bins in columns.items()}
            chosen = {n: best({name: sums[name][n] for name in columns}) for n in sums["guest"]}
            nodes = 2 * nodes + np.array(
                [columns[chosen[n][0]][i] >= chosen[n][1] for i, n in enumerate(nodes.tolist())]
            )
            cuts.append(sorted((n, *cut) for n, cut in chosen.items()))
        margin, trees = leaves(m, nodes, margin.copy()), [*trees, cuts]
    return margin, trees
