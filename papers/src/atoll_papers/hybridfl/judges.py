"""Verdicts on the thesis's statements about HybridFL, from measured or simulated cells.

Time and energy can be judged without training; accuracy and rounds to a target need it. The thesis gives no batch size,
optimiser, layers or seeds, so of trained figures only orders and ratios are judged, at the thesis's own thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atoll.reproduce import Claim

from .paper import DOUBTFUL, ENERGY, OFFSET, HybridSetting, Key, table_of
from .reference import backhaul_seconds, limit

__all__ = [
    "HybridFound",
    "judge_energy",
    "judge_estimator",
    "judge_half",
    "judge_lengths",
    "judge_limits",
    "judge_table",
]


_BASELINES = ("FedAvg", "HierFAVG")
_LENGTHS = 0.15
"""Tolerance of the baselines' mean round lengths: with only fifteen clients, one draw of them moves a cell by up to this much."""


@dataclass(frozen=True)
class HybridFound:
    """Our results for a cell; ``None`` if it was not trained, or the target was not reached.

    Attributes:
        length: mean round length in seconds.
        best: best accuracy in all rounds.
        rounds: rounds to the target accuracy, counted from 1.
        seconds: to the target.
        watt_hours: a client's mean energy to the target.
    """

    length: float
    best: float | None = None
    rounds: float | None = None
    seconds: float | None = None
    watt_hours: float | None = None

    @classmethod
    def median(cls, runs: Sequence[HybridFound]) -> HybridFound:
        """Return the median of runs; a run that never reached the target is later than all others, so the median may be ``None``."""

        def middle(values: list[float | None]) -> float | None:
            made = float(np.median([np.inf if value is None else value for value in values]))
            return made if np.isfinite(made) else None

        return cls(
            float(np.median([run.length for run in runs])),
            middle([run.best for run in runs]),
            middle([run.rounds for run in runs]),
            middle([run.seconds for run in runs]),
            middle([run.watt_hours for run in runs]),
        )


def judge_limits(setting: HybridSetting) -> list[Claim]:
    """Judge the constants that the tables show to two decimals."""
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
            basis="derived",
        )
        for method, ours in shown.items()
    ]


def judge_table(setting: HybridSetting) -> list[Claim]:
    """Judge whether the thesis's table agrees with itself."""
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
                basis="derived",
            )
        )
    return claims


def judge_lengths(setting: HybridSetting, found: Mapping[Key, HybridFound]) -> list[Claim]:
    """Judge mean round lengths: cell by cell for the baselines, as a range of cuts for HybridFL."""
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


def judge_estimator(
    setting: HybridSetting, name: str, found: Mapping[Key, HybridFound], baselines: Mapping[Key, HybridFound]
) -> Claim:
    """Judge mean round lengths of HybridFL with one of the estimators; the thesis does not say which one its table uses.

    Args:
        setting: the task.
        name: of the estimator.
        found: HybridFL's cells with it.
        baselines: cells of the other methods, on the same clients.
    """
    table, cells = table_of(setting), [key for key in found if key[0] == "HybridFL"]
    near = sum(abs(found[key].length / table[key].length - 1) <= _LENGTHS for key in cells)
    cuts = [1 - found[key].length / baselines[base, *key[1:]].length for key in cells for base in _BASELINES]
    return Claim(
        f"{setting.name}, HybridFL with {name}: mean round lengths of the table",
        f"{len(cells)} of {len(cells)} cells",
        f"{near} of {len(cells)} cells; rounds {round(100 * min(cuts))} % to {round(100 * max(cuts))} % shorter than the baselines'",
        near == len(cells),
        f"within {_LENGTHS:.0%} of the table".replace("%", " %") + "; the thesis' estimator is not known",
    )


def _length(setting: HybridSetting, key: Key, ours: float) -> Claim:
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


def judge_half(found: Mapping[Key, HybridFound]) -> list[Claim]:
    """Judge section 4.5.2 on Figure 4.7, whose numbers are unreadable: half of the energy in Task 1 at ``E[dr] = 0.6`` and C = 0.1, for the rounds that the thesis needed."""
    spent = {m: found[m, 0.6, 0.1].watt_hours or np.nan for m in OFFSET}
    cut = 1 - spent["HybridFL"] / max(spent[m] for m in _BASELINES)
    return [
        Claim(
            "aerofoil: at E[dr] = 0.6 and C = 0.1 HybridFL cuts the energy of a client by about half (Figure 4.7)",
            "about -50 %",
            ", ".join(f"{m} {value:.3f}" for m, value in spent.items()) + f" Wh: {-100 * cut:+.0f} %",
            0.4 <= cut <= 0.6,
            "simulated, for the thesis's 599, 600 and 161 rounds to 0.70; a drop-out is charged half of its round; holds from -40 % to -60 %",
            basis="derived",
        )
    ]


def judge_energy(found: Mapping[Key, HybridFound]) -> list[Claim]:
    """Judge Figure 4.9 (MNIST) for the thesis's rounds, and which method uses least.

    The numbers of C = 0.3 and 0.5 were assigned to the figure's bars with the help of our model: they are shown, and not judged.
    """
    claims = [
        Claim(
            f"mnist, {key[0]}, E[dr]={key[1]:g}, C={key[2]:g}: energy of a client in Wh to accuracy 0.90",
            paper,
            round(ours, 4),
            abs(ours / paper - 1) <= 0.1 if key[2] == 0.1 else None,
            "within 10 % of Figure 4.9, for the thesis's rounds; a drop-out is charged half of its round"
            + ("" if key[2] == 0.1 else "; the figure's numbers were assigned to bars with the help of such a model"),
            basis="derived" if key[2] == 0.1 else "circular",
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
                "cells in which HybridFL's clients use least, by our simulation for the thesis's rounds",
                basis="derived",
            )
        )
    return claims
