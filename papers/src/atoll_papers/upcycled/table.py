"""A table: tune, run, and judge the paper's statements about it by rules fixed before anything ran; and comparisons that the paper lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from atoll.reproduce import Claim, Entry, Lab, NotKept

from .data import KINDS
from .trainings import (
    BASES,
    COEFFICIENTS,
    COLUMNS,
    SEEDS,
    Chosen,
    Key,
    PairedCells,
    UpcycledCell,
    UpcycledProtocol,
    at_base_rate,
    cell,
    chosen_at,
    decided,
    over_populations,
    pairs_of,
    settings,
)

__all__ = [
    "Gains",
    "Paper",
    "SOURCE",
    "contacts",
    "folds",
    "gains_of",
    "judge_bases",
    "judge_gains",
    "judge_level",
    "larger",
    "scaffold",
    "small_table",
    "synthetic",
    "table",
]


# ------------------------------------------------------------------ the paper's statements about a whole table

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


# ------------------------------------------------------------------ comparisons that the paper lacks: a server learning rate, other coefficients, counted contacts

_FOLDS = ("FedAvg", "FedAvgM", "FedProx", "pFedMe", "FedYogi")
"""Bases whose server adds a multiple of a direction that the model itself does not enter: a pair of rounds is one with rate ``1 + u``."""


def _server(lab: Lab, protocol: UpcycledProtocol, kind: str, pair: PairedCells) -> UpcycledCell | None:
    """Run ``T`` rounds of the base with server learning rate ``1 + u``, at the settings of its Upcycled version."""
    try:
        return cell(lab, replace(pair.upcycled.method, way="server"), kind, protocol)
    except NotKept:
        return None


def folds(lab: Lab, protocol: UpcycledProtocol, pairs: Mapping[Key, PairedCells]) -> Claim:
    """Judge the identity with the server learning rate, on the first seed."""
    one = replace(protocol, seeds=1)
    found = {
        key: (_server(lab, one, key[1], pair), float(pair.upcycled.values[0]))
        for key, pair in pairs.items()
        if key[0] in _FOLDS
    }
    apart = [abs(float(server.values[0]) - value) for server, value in found.values() if server is not None]
    return Claim(
        "Upcycled is more than its base with server learning rate 1 + u",
        None,
        max(apart, default=None),
        max(apart) > 1e-3 if apart else None,
        f"largest difference in accuracy, over {len(apart)} cells of {', '.join(_FOLDS)}, between T rounds of the base with server learning rate 1 + u "
        "and 2 T of Upcycled at the same settings, first seed; by algebra they are the same method, and 0 says so. The paper does not compare",
    )


def scaffold(lab: Lab, protocol: UpcycledProtocol, pairs: Mapping[str, PairedCells]) -> Claim:
    """Judge Scaffold, whose Upcycled version also moves the control variate, which a server learning rate does not.

    Judged as a cell is: a seed's value is its mean over the populations, each with equal weight.

    Args:
        lab: runs and keeps trainings.
        protocol: how much is run.
        pairs: Scaffold's, by population.
    """
    servers = {kind: _server(lab, protocol, kind, pair) for kind, pair in pairs.items()}
    found = {
        kind: PairedCells.of(server, pairs[kind].upcycled) for kind, server in servers.items() if server is not None
    }
    claim = "Upcycled-Scaffold, which moves the control variate along, is better than Scaffold with server learning rate 1 + u"
    if not found:
        return Claim(claim, None, None, None)
    gains, error = over_populations([pair.gains for pair in found.values()])
    each = "; ".join(f"({kind}) {', '.join(f'{gain:+.2f}' for gain in pair.gains)}" for kind, pair in found.items())
    return Claim(
        claim,
        None,
        f"{gains.mean():+.2f} ± {error:.2f}",
        decided(gains, error),
        f"mean difference in points ± its standard error over the seeds, decided as cells are; seed by seed {each}",
    )


def contacts(lab: Lab, protocol: UpcycledProtocol, pairs: Mapping[Key, PairedCells]) -> Claim:
    """Judge contacts and bytes at equal iterations, in the first cell and seed."""
    (_, kind), pair = next(iter(pairs.items()))
    sums = []
    for found in (pair.base, pair.upcycled):
        rows = lab.train(settings(found.method, kind, protocol, tuning=False, seed=0)).rows[: protocol.rounds]
        sums.append([sum(float(row[name]) for row in rows) for name in ("selected", "bytes_up", "bytes_down")])
    shares = np.array(sums[1]) / np.array(sums[0])
    return Claim(
        "at equal iterations half of the contacts and half of the bytes (section 4)",
        0.5,
        [round(float(share), 4) for share in shares],
        bool(np.abs(shares - 0.5).max() < 0.01),
        f"contacts, bytes up and bytes down of Upcycled over those of the base in {protocol.rounds} iterations",
    )


def larger(lab: Lab, protocol: UpcycledProtocol, kind: str, where: str, pair: PairedCells) -> Claim:
    """Judge a base with every coefficient, at its own learning rate; ``where`` is the population in words."""
    tried = {u: at_base_rate(lab, protocol, kind, pair, u) for u in COEFFICIENTS}
    found = {u: made for u, made in tried.items() if made is not None}
    best = max(found.values(), key=lambda made: float(made.gains.mean()), default=None)
    return Claim(
        f"Upcycled-FedAvg is better than FedAvg on {where} at the learning rate of FedAvg, with one u or another",
        None,
        ", ".join(f"u={u:g}: {made.gains.mean():+.2f} ± {made.error:.2f}" for u, made in found.items()),
        None if best is None else decided(best.gains, best.error),
        f"gain in points ± its standard error at lr={pair.base.method.lr:g}; judged by the better u, although it is picked on the test rows",
    )


# ------------------------------------------------------------------ tables

SOURCE = "Yin et al., Federated Learning with Reduced Information Leakage and Computation"
"""The paper."""
_LEVEL = "at the base's learning rate"
_CELLS = "Cells: accuracy in % ± deviation over the seeds (the gain in points ± its standard error); decided where four seeds gain or lose by more than two standard errors"
_LEVEL_CELLS = "Cells whose two methods were given other learning rates, with the base's for both"
_LARGER = "FedAvg with other coefficients"


def table(
    lab: Lab,
    protocol: UpcycledProtocol,
    paper: Paper,
    kinds: Sequence[str],
    bases: Sequence[str] = tuple(BASES),
    chosen: Chosen | None = None,
) -> list[Claim]:
    """Run a table and judge it.

    Args:
        lab: runs and keeps trainings.
        protocol: how much is run.
        paper: its numbers.
        kinds: populations.
        bases: some of the seven bases.
        chosen: settings instead of tuning.
    """
    every = pairs_of(lab, protocol, kinds, bases, chosen)
    pairs = {key: pair for key, pair in every.items() if pair is not None}
    level = {key: at_base_rate(lab, protocol, key[1], pair) for key, pair in pairs.items()}
    claims = (
        _together(lab, protocol, pairs, {key: pair for key, pair in level.items() if pair}, paper, len(every))
        if pairs
        else []
    )
    claims += [_one(key, pair, paper.get(key)) for key, pair in every.items()]
    claims += [
        _level(key, pairs[key], pair) for key, pair in level.items() if pair is None or _differs(pairs[key], pair)
    ]
    alone = {kind: pairs["FedAvg", kind] for kind in kinds if ("FedAvg", kind) in pairs}
    return claims + [
        replace(larger(lab, protocol, kind, title(kind), pair), part=_LARGER) for kind, pair in alone.items()
    ]


def _together(
    lab: Lab,
    protocol: UpcycledProtocol,
    pairs: Mapping[Key, PairedCells],
    level: Mapping[Key, PairedCells],
    paper: Paper,
    cells: int,
) -> list[Claim]:
    claims = judge_gains(gains_of(pairs), paper, cells - len(pairs))
    if level:
        said = judge_gains(gains_of(level), paper, cells - len(level))
        claims += [replace(claim, claim=f"{_LEVEL}: {claim.claim}") for claim in said]
    claims += [
        judge_bases(gains_of(pairs), cells - len(pairs)),
        folds(lab, protocol, pairs),
        contacts(lab, protocol, pairs),
    ]
    drifting = {kind: pair for (base, kind), pair in pairs.items() if base == "Scaffold"}
    claims += [scaffold(lab, protocol, drifting)] if drifting else []
    return [*claims, judge_level(pairs, paper)]


def synthetic(number: int, late: float, paper: Paper) -> Entry:
    """Return the entry of one of the paper's tables on its four synthetic populations.

    Args:
        number: of the table.
        late: share of stragglers.
        paper: its numbers.
    """

    def run(lab: Lab, quick: bool) -> list[Claim]:
        if not quick:
            return table(lab, UpcycledProtocol(late=late), paper, tuple(KINDS))
        small = UpcycledProtocol(late=late, rounds=8, seeds=2, epochs=3, rows=100)
        kinds, bases = ("iid", "0.5,0.5"), ("FedAvg", "FedProx", "Scaffold", "FedYogi")
        chosen = chosen_at({(base, kind): (0.03, 0.03) for kind in kinds for base in bases}, 0.5)
        return table(lab, small, paper, kinds, bases, chosen)

    return Entry(
        name=f"upcycled-table{number}",
        title=f"Upcycled-FL on synthetic data, {late:.0%} stragglers: seven bases with and without".replace("%", " %"),
        source=f"{SOURCE}, Table {number}",
        run=run,
        folder="upcycled",
    )


def small_table(lab: Lab, late: float, paper: Paper) -> list[Claim]:
    """Run two bases on digits by writer for a few rounds: the ``--quick`` form of the columns with real data."""
    protocol = UpcycledProtocol(late=late, rounds=3, seeds=1, epochs=2, rows=600)
    bases = ("FedAvg", "FedProx")
    chosen = chosen_at({(base, "qmnist"): (0.03, 0.03) for base in bases})
    return table(lab, protocol, paper, ("qmnist",), bases, chosen)


def title(kind: str) -> str:
    """Describe a population in words."""
    return f"our {COLUMNS[kind][0]}, {kind}" if kind in COLUMNS else f"Syn({kind})"


def _one(key: Key, pair: PairedCells | None, paper: tuple[float, float] | None) -> Claim:
    base, kind = key
    claim = f"Upcycled-{base} is better than {base} on {title(kind)}"
    theirs = None if paper is None else f"{paper[0]:.2f} -> {paper[1]:.2f}"
    if pair is None:
        return Claim(claim, theirs, None, None, part=_CELLS)
    up = pair.upcycled.method
    each = ", ".join(f"{gain:+.2f}" for gain in pair.gains)
    note = f"gain of each seed: {each}; lr={pair.base.method.lr:g} -> lr={up.lr:g}, u={up.u:g}"
    return Claim(claim, theirs, str(pair), decided(pair.gains, pair.error), note, _CELLS)


def _differs(pair: PairedCells, level: PairedCells) -> bool:
    return pair.upcycled.method != level.upcycled.method


def _level(key: Key, found: PairedCells, pair: PairedCells | None) -> Claim:
    base, kind = key
    claim = f"{_LEVEL}: Upcycled-{base} is better than {base} on {title(kind)}"
    note = f"both at lr={found.base.method.lr:g}, which was picked for the base"
    if pair is None:
        return Claim(claim, None, None, None, note, _LEVEL_CELLS)
    note += f"; u={pair.upcycled.method.u:g}"
    return Claim(claim, None, str(pair), decided(pair.gains, pair.error), note, _LEVEL_CELLS)
