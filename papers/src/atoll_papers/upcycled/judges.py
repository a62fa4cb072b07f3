"""The paper's statements about a whole table, judged by rules fixed before anything ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from atoll.reproduce import Claim

from .pairs import SEEDS, Key, PairedCells, decided

__all__ = ["Gains", "Paper", "gains_of", "judge_bases", "judge_gains", "judge_level"]

Paper = Mapping[Key, tuple[float, float]]
"""``(base, kind) -> (accuracy of the base, accuracy of its Upcycled version)``, in percent."""
Gains = Mapping[Key, tuple[np.ndarray, float]]
"""``(base, kind) -> (gains of each seed in points, standard error of their mean)``."""
_NEAR = 2.0
"""Points within which an accuracy counts as the paper's; set after seeing them."""


def gains_of(pairs: Mapping[Key, PairedCells]) -> Gains:
    """Return the gain of each cell."""
    return {key: (pair.gains, pair.error) for key, pair in pairs.items()}


def judge_gains(gains: Gains, paper: Paper, absent: int = 0) -> list[Claim]:
    """Judge the three statements about all cells together.

    Args:
        gains: of each cell that was run, at least one.
        paper: its numbers.
        absent: cells that were not run; a verdict that they could change stays open.
    """
    means = {key: float(found.mean()) for key, (found, _) in gains.items()}
    theirs = [b - a for key, (a, b) in paper.items() if key in gains]
    better, average = sum(mean > 0 for mean in means.values()), float(np.mean(list(means.values())))
    share = f"{sum(g > 0 for g in theirs)}/{len(theirs)}" if theirs else None
    return [
        Claim(
            "the mean gain over all cells is positive",
            round(float(np.mean(theirs)), 2) if theirs else None,
            round(average, 2),
            None if absent else average > 0,
            f"percentage points of {len(means)} cells ({absent} were not run), median {np.median(list(means.values())):+.2f}; the paper's are the mean of the same cells",
        ),
        Claim(
            "consistent improvements for all settings (section 7)",
            share,
            f"{better}/{len(means)}",
            None if absent and better == len(means) else better == len(means),
            "cells that gain; holds if every cell does, which the paper's own do not",
        ),
        _not_worse(gains),
    ]


def _not_worse(gains: Gains) -> Claim:
    claim = "at least 80 % of the cells are not worse beyond noise"
    judged = {key: found for key, found in gains.items() if len(found[0]) >= SEEDS}
    if not judged:
        return Claim(claim, None, None, None, f"no cell has the {SEEDS} seeds that it takes to say what noise is")
    worse, better = ([key for key, found in judged.items() if decided(*found) is sign] for sign in (False, True))
    return Claim(
        claim,
        None,
        f"{len(judged) - len(worse)}/{len(judged)}",
        len(worse) <= 0.2 * len(judged),
        f"beyond noise: by more than two standard errors, of the cells with {SEEDS} seeds or more; worse: {_named(worse)}; better: {_named(better)}",
    )


def _named(keys: Iterable[Key]) -> str:
    return ", ".join(f"{base} on ({kind})" for base, kind in keys) or "none"


def judge_bases(gains: Gains, absent: int = 0) -> Claim:
    """Judge whether each base gains on average; open while none loses and ``absent`` cells were not run."""
    by: dict[str, list[float]] = {}
    for (base, _), (found, _) in gains.items():
        by.setdefault(base, []).append(float(found.mean()))
    means = {base: float(np.mean(some)) for base, some in by.items()}
    return Claim(
        "every base gains on average",
        None,
        ", ".join(f"{base} {mean:+.2f}" for base, mean in means.items()),
        None if absent and min(means.values()) > 0 else min(means.values()) > 0,
        "points, the mean over its cells",
    )


def judge_level(pairs: Mapping[Key, PairedCells], paper: Paper) -> Claim:
    """Judge whether the bases alone are as accurate as the paper's."""
    off = {key: 100 * float(pair.base.values.mean()) - paper[key][0] for key, pair in pairs.items() if key in paper}
    near = sum(abs(distance) <= _NEAR for distance in off.values())
    far = sorted(off, key=lambda key: -abs(off[key]))[:4]
    return Claim(
        f"bases alone are as accurate as the paper's, within {_NEAR:g} points",
        None,
        f"{near}/{len(off)}",
        near == len(off) if off else None,
        "our populations are other draws of the same recipe, whose few large clients decide the accuracy; two points: set after seeing them. Farthest: "
        + ", ".join(f"{base} on ({kind}) {off[base, kind]:+.1f}" for base, kind in far),
    )
