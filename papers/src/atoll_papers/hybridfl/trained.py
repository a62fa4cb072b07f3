"""Verdicts on HybridFL's trainings: accuracy, rounds and time to the target against FedAvg and HierFAVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atoll.reproduce import Claim

from .judges import HybridFound
from .paper import OFFSET, HybridCell, Key, table_of
from .setting import AEROFOIL, SHARES, HybridSetting

__all__ = ["judge_trained"]

_BASELINES = ("FedAvg", "HierFAVG")


def judge_trained(setting: HybridSetting, found: Mapping[Key, HybridFound]) -> list[Claim]:
    """Accuracy, rounds and time to the target, for the cells trained with all three methods."""
    cells = sorted(
        {
            (drop, share)
            for (_, drop, share) in found
            if all((m, drop, share) in found and found[m, drop, share].best is not None for m in OFFSET)
        }
    )
    made = [claim for cell in cells for claim in _cell(setting, found, *cell)] + _order(setting, found)
    return made + (_said_of_task_1(found) if setting.name == "aerofoil" else _energy(setting, found, cells))


def _said_of_task_1(found: Mapping[Key, HybridFound]) -> list[Claim]:
    """Section 4.5.2 on Task 1 at ``E[dr] = 0.6``: a third of HierFAVG's rounds; and with C = 0.1, baselines that hardly converge."""
    claims, table = [], table_of(AEROFOIL)
    pairs = [(table["HybridFL", 0.6, c], table["HierFAVG", 0.6, c]) for c in SHARES]
    ours = [(found.get(("HybridFL", 0.6, c)), found.get(("HierFAVG", 0.6, c))) for c in SHARES]
    ratios = [h.rounds / o.rounds for h, o in ours if h and o and h.rounds and o.rounds]
    if all(h and o and h.best is not None and o.best is not None for h, o in ours):
        claims.append(
            Claim(
                "aerofoil: at E[dr] = 0.6 HybridFL needs about a third of HierFAVG's rounds",
                ", ".join(f"{h.rounds / o.rounds:.2f}" for h, o in pairs),
                ", ".join(f"{r:.2f}" for r in ratios) or "HierFAVG or HybridFL never reaches it",
                bool(ratios) and float(np.mean(ratios)) <= 0.45,
                "share of HierFAVG's rounds at C = 0.1, 0.3, 0.5 where both reach the target; holds if their mean is at most 0.45, the thesis's largest",
            )
        )
    trio = {m: found.get((m, 0.6, 0.1)) for m in OFFSET}
    if any(cell is None or cell.best is None for cell in trio.values()):
        return claims
    rounds = {m: cell.rounds for m, cell in trio.items() if cell}
    own = rounds["HybridFL"]
    claims.append(
        Claim(
            "aerofoil: at E[dr] = 0.6 and C = 0.1 both baselines hardly converge in 600 rounds, HybridFL in 200",
            "FedAvg 599, HierFAVG 600, HybridFL 161",
            ", ".join(f"{m} {_said(r)}" for m, r in rounds.items()),
            own is not None and own <= 200 and all((rounds[m] or np.inf) >= 500 for m in _BASELINES),
            "rounds to 0.70; holds if HybridFL's are at most 200 and the baselines' at least 500",
        )
    )
    return claims


def _said(value: float | None) -> str:
    return "never" if value is None else f"{value:.4g}"


def _cell(setting: HybridSetting, found: Mapping[Key, HybridFound], drop: float, share: float) -> list[Claim]:
    table, where = table_of(setting), f"{setting.name}, E[dr]={drop:g}, C={share:g}"
    ours = {m: found[m, drop, share] for m in OFFSET}
    paper = {m: table[m, drop, share] for m in OFFSET}
    best = {m: ours[m].best or 0.0 for m in OFFSET}
    hybrid, others = ours["HybridFL"], [ours[m] for m in _BASELINES]
    claims = [
        Claim(
            f"{where}: HybridFL's best accuracy is at least that of both baselines",
            ", ".join(f"{m} {paper[m].best:.3f}" for m in OFFSET),
            ", ".join(f"{m} {best[m]:.3f}" for m in OFFSET),
            best["HybridFL"] >= max(best[m] for m in _BASELINES) - 0.0005,
            "to the third decimal",
        ),
        Claim(
            f"{where}: HybridFL needs fewer rounds to {setting.target:g} than both baselines",
            ", ".join(f"{m} {paper[m].rounds}" for m in OFFSET),
            ", ".join(f"{m} {_said(ours[m].rounds)}" for m in OFFSET),
            hybrid.rounds is not None and all(o.rounds is None or hybrid.rounds < o.rounds for o in others),
            "rounds counted from 1, the thesis's corrected; HierFAVG is evaluated once in ten",
        ),
    ]
    return claims if hybrid.seconds is None else [*claims, _sooner(setting, where, ours, paper)]


def _sooner(
    setting: HybridSetting, where: str, ours: Mapping[str, HybridFound], paper: Mapping[str, HybridCell]
) -> Claim:
    said = f"{where}: HybridFL reaches {setting.target:g} sooner, by this factor against the slower baseline"
    theirs = max(paper[m].seconds for m in _BASELINES) / paper["HybridFL"].seconds
    own = ours["HybridFL"].seconds
    times = [seconds for m in _BASELINES if (seconds := ours[m].seconds) is not None]
    if own is None or not times:
        return Claim(said, round(theirs, 1), "neither baseline reaches it", None, "no factor, then")
    factor = max(times) / own
    return Claim(
        said,
        round(theirs, 1),
        round(factor, 1),
        own < min(times) and factor >= 0.75 * theirs,
        "holds from three quarters of the thesis's factor, if sooner than both; baselines that never reach the target are left out",
    )


def _energy(
    setting: HybridSetting, found: Mapping[Key, HybridFound], cells: Sequence[tuple[float, float]]
) -> list[Claim]:
    """Section 4.5.2 on Figure 4.9: the energy of a client to the target is lowest with HybridFL, in the cells where all methods reach it."""
    spent = {cell: [found[m, *cell].watt_hours for m in OFFSET] for cell in cells}
    known = {cell: [value for value in values if value is not None] for cell, values in spent.items()}
    full = {cell: values for cell, values in known.items() if len(values) == len(OFFSET)}
    if not cells:
        return []
    least = sum(values[-1] < min(values[:-1]) for values in full.values())
    return [
        Claim(
            f"{setting.name}: trained to {setting.target:g}, HybridFL's clients use least energy",
            "all cells",
            f"{least}/{len(full)}" if full else None,
            least == len(full) if full else None,
            ", ".join(
                f"E[dr]={drop:g}, C={share:g}: {' '.join(f'{v:.3f}' for v in values)}"
                for (drop, share), values in full.items()
            )
            + f" Wh a client for {', '.join(OFFSET)}; cells in which one never reaches it are left out; a drop-out is charged half of its round",
        )
    ]


def _order(setting: HybridSetting, found: Mapping[Key, HybridFound]) -> list[Claim]:
    """At ``E[dr] = 0.6``: fewer rounds with C = 0.5 than with 0.3, but more time."""
    table = table_of(setting)
    pair = [("HybridFL", 0.6, share) for share in (0.3, 0.5)]
    if not all(key in found and found[key].rounds is not None and found[key].seconds is not None for key in pair):
        return []
    (some, most), (few, many) = [found[key] for key in pair], [table[key] for key in pair]
    return [
        Claim(
            f"{setting.name}: at E[dr] = 0.6 HybridFL needs fewer rounds with C = 0.5 than with 0.3, but more time",
            f"{few.rounds} -> {many.rounds} rounds, {few.seconds:.0f} -> {many.seconds:.0f} s",
            f"{some.rounds:g} -> {most.rounds:g} rounds, {some.seconds:.0f} -> {most.seconds:.0f} s",
            (most.rounds or 0) < (some.rounds or 0) and (most.seconds or 0) > (some.seconds or 0),
            "both orders",
        )
    ]
