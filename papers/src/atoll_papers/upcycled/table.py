"""A table: tune, run, and judge the paper's statements about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from atoll.reproduce import Claim, Entry, Lab

from .cells import UpcycledProtocol
from .columns import COLUMNS
from .controls import contacts, folds, larger, scaffold
from .data import KINDS
from .judges import Paper, gains_of, judge_bases, judge_gains, judge_level
from .methods import BASES
from .pairs import Chosen, Key, PairedCells, at_base_rate, chosen_at, decided, pairs_of

__all__ = ["SOURCE", "Paper", "small_table", "synthetic", "table"]

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
