"""Verdicts on what the thesis says of HybridFL, from cells that were measured or simulated.

Without training one can judge time and energy; accuracy and rounds to a target need it. The thesis gives no batch size, optimiser, layers or seeds, so of
trained figures only orders and ratios are judged, at the thesis's own thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..entry import Claim
from .paper import DOUBTFUL, ENERGY, OFFSET, Key, table_of
from .reference import backhaul_seconds, limit
from .setting import Setting

__all__ = ["Found", "judge_energy", "judge_lengths", "judge_limits", "judge_table", "judge_trained"]

_BASELINES = ("FedAvg", "HierFAVG")
_LENGTHS = 0.15
"""Tolerance of the baselines' mean round lengths: fifteen clients are few, and one draw of them moves a cell by up to this much."""


@dataclass(frozen=True)
class Found:
    """What we found of a cell; ``None`` where it was not trained, or the target was not reached.

    Attributes:
        length: mean round length in seconds.
        best: best accuracy in all rounds.
        rounds: rounds to the target accuracy, counted from 1.
        seconds: to the target.
        watt_hours: a client's mean energy to the target.
    """

    length: float
    best: float | None = None
    rounds: int | None = None
    seconds: float | None = None
    watt_hours: float | None = None


def judge_limits(setting: Setting) -> list[Claim]:
    """The constants that the tables show to two decimals."""
    table, cap, way = table_of(setting), limit(setting), backhaul_seconds(setting)
    shown = {
        "FedAvg": cap,
        "HierFAVG": cap + way / setting.kappa,
        **({"HybridFL": cap + way} if setting.name == "mnist" else {}),
    }
    return [
        Claim(
            f"{setting.name}: a {method} round lasts this long when somebody drops out of it or the quota cannot be met",
            max(table[method, 0.6, share].length for share in (0.1, 0.3, 0.5)),
            round(ours, 2),
            abs(ours - max(table[method, 0.6, share].length for share in (0.1, 0.3, 0.5))) < 0.015,
            "T_lim plus the way between cloud and edges, by the equations; within 0.015 s of the table's largest round length",
        )
        for method, ours in shown.items()
    ]


def judge_table(setting: Setting) -> list[Claim]:
    """Whether the thesis's table agrees with itself."""
    table = table_of(setting)
    cap = max(cell.length for key, cell in table.items() if key[0] == "FedAvg")
    way = {"FedAvg": 0.0, "HierFAVG": backhaul_seconds(setting) / setting.kappa, "HybridFL": backhaul_seconds(setting)}
    claims = []
    for method, offset in OFFSET.items():
        still = [cell for key, cell in table.items() if key[0] == method and cell.length >= cap + way[method] - 0.02]
        if not still:
            continue
        apart = max(abs(cell.rounds * cell.length / cell.seconds - 1) for cell in still)
        claims.append(
            Claim(
                f"{setting.name}, {method}: the printed time is that of {offset} more rounds than printed",
                0.0,
                round(apart, 5),
                apart < 3e-4,
                f"largest relative difference over the {len(still)} cells whose rounds all last until the limit",
            )
        )
    return claims


def judge_lengths(setting: Setting, found: Mapping[Key, Found]) -> list[Claim]:
    """Mean round lengths: cell by cell for the baselines, as a range of cuts for HybridFL."""
    table = table_of(setting)
    claims = [_length(setting, key, found[key].length) for key in table if key in found]
    cuts = [
        1 - found["HybridFL", drop, share].length / found[base, drop, share].length
        for (method, drop, share) in table
        if method == "HybridFL"
        for base in _BASELINES
        if {("HybridFL", drop, share), (base, drop, share)} <= set(found)
    ]
    if cuts and setting.name == "aerofoil":
        claims.append(
            Claim(
                "aerofoil: HybridFL shortens rounds by 6 % to 42 % (section 4.5.2)",
                "6 % to 42 %",
                f"{100 * min(cuts):.0f} % to {100 * max(cuts):.0f} %",
                min(cuts) >= 0.055 and max(cuts) >= 0.415,
                "holds if the smallest and the largest cut are at least the thesis's",
            )
        )
    elif cuts:
        most = ("HybridFL", 0.6, 0.5)
        if most in found:
            ours = found[most].length
            claims.append(
                Claim(
                    "mnist: at E[dr] = 0.6 half of the clients cannot be had, and every HybridFL round lasts until the limit",
                    table[most].length,
                    round(ours, 2),
                    abs(ours - table[most].length) < 0.015,
                    "mean round length at C = 0.5",
                )
            )
    return claims


def _length(setting: Setting, key: Key, ours: float) -> Claim:
    cell = table_of(setting)[key]
    method, drop, share = key
    doubt = DOUBTFUL.get((setting.name, key), "") if "a round" in DOUBTFUL.get((setting.name, key), "") else ""
    implied = cell.seconds / cell.rounds
    note = f"within {_LENGTHS:.0%} of the table".replace("%", " %")
    if method == "HybridFL":
        note += f"; the estimator behind the table is not known; the table's time to the target makes {implied:.1f} s a round"
    return Claim(
        f"{setting.name}, {method}, E[dr]={drop:g}, C={share:g}: mean round length in s",
        cell.length,
        round(ours, 2),
        abs(ours / cell.length - 1) <= _LENGTHS,
        note + (f"; {doubt}" if doubt else ""),
    )


def judge_energy(found: Mapping[Key, Found]) -> list[Claim]:
    """Figure 4.9 (MNIST), and who uses least."""
    claims = [
        Claim(
            f"mnist, {key[0]}, E[dr]={key[1]:g}, C={key[2]:g}: energy of a client in Wh to accuracy 0.90",
            paper,
            round(ours, 4),
            abs(ours / paper - 1) <= 0.1,
            "within 10 % of Figure 4.9; a drop-out is charged half of its round"
            + ("" if key[2] == 0.1 else "; the figure's numbers were assigned to bars with the help of such a model"),
        )
        for key, paper in ENERGY.items()
        if key in found and (ours := found[key].watt_hours) is not None
    ]
    cells = [(drop, share) for (method, drop, share) in ENERGY if method == "HybridFL"]
    least = [
        min((found[m, *cell].watt_hours or float("inf"), m) for m in OFFSET)[1] == "HybridFL"
        for cell in cells
        if all((m, *cell) in found and found[m, *cell].watt_hours is not None for m in OFFSET)
    ]
    if least:
        claims.append(
            Claim(
                "mnist: HybridFL keeps the energy of the devices at the lowest level (section 4.5.2)",
                f"{len(least)}/{len(least)}",
                f"{sum(least)}/{len(least)}",
                all(least),
                "cells in which HybridFL's clients use least",
            )
        )
    return claims


def judge_trained(setting: Setting, found: Mapping[Key, Found]) -> list[Claim]:
    """Accuracy, rounds and time to the target, for the cells that were trained with all three methods."""
    cells = sorted(
        {
            (drop, share)
            for (_, drop, share) in found
            if all((m, drop, share) in found and found[m, drop, share].best is not None for m in OFFSET)
        }
    )
    return [claim for cell in cells for claim in _cell(setting, found, *cell)] + _order(setting, found)


def _cell(setting: Setting, found: Mapping[Key, Found], drop: float, share: float) -> list[Claim]:
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
            ", ".join(f"{m} {ours[m].rounds}" for m in OFFSET),
            hybrid.rounds is not None and all(o.rounds is None or hybrid.rounds < o.rounds for o in others),
            "rounds counted from 1, the thesis's corrected; None: not reached",
        ),
    ]
    times = [o.seconds for o in others if o.seconds is not None]
    if hybrid.seconds is not None and times:
        theirs = max(paper[m].seconds for m in _BASELINES) / paper["HybridFL"].seconds
        mine = max(times) / hybrid.seconds
        claims.append(
            Claim(
                f"{where}: HybridFL reaches {setting.target:g} sooner, by this factor against the slower baseline",
                round(theirs, 1),
                round(mine, 1),
                hybrid.seconds < min(times) and mine >= 0.75 * theirs,
                "holds from three quarters of the thesis's factor, if sooner than both; baselines that never reach the target are left out",
            )
        )
    return claims


def _order(setting: Setting, found: Mapping[Key, Found]) -> list[Claim]:
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
            f"{some.rounds} -> {most.rounds} rounds, {some.seconds:.0f} -> {most.seconds:.0f} s",
            (most.rounds or 0) < (some.rounds or 0) and (most.seconds or 0) > (some.seconds or 0),
            "both orders",
        )
    ]
