"""Verdicts on the thesis's statements about FedProf's rounds: time and energy can be judged without training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from atoll.reproduce import Claim

from .paper import GROUPS, Key, table_of
from .reference import Expected, expected_round
from .setting import FedProfSetting

__all__ = ["judge_ratios", "judge_rounds", "rounds_of"]

_FEW = 0.15
"""Tolerance of a cell's time and energy per round: cells of four to sixteen rounds are few draws, and energy is printed to 0.01 Wh."""
_RULES = {"FedProx": "sizes", "CFCFM": "first"}


def rounds_of(setting: FedProfSetting, seed: int = 0, draws: int = 200) -> dict[tuple[str, float], Expected]:
    """Return the expected time and energy of a round, ``(method, C) ->``; FedProf's with all clients equally likely."""
    methods = dict.fromkeys(method for group in GROUPS.values() for method in group)
    return {
        (method, share): expected_round(
            setting,
            share,
            np.random.default_rng(seed),
            rule=_RULES.get(method, "uniform"),
            profiles=method == "FedProf",
            draws=draws,
        )
        for method in methods
        for share in setting.shares
    }


def judge_rounds(setting: FedProfSetting, rounds: Mapping[tuple[str, float], Expected]) -> list[Claim]:
    """Judge the mean time and energy of a round, cell by cell."""
    claims = []
    for (group, method, share), cell in table_of(setting).items():
        ours = rounds[method, share]
        apart = [ours.seconds / cell.length - 1, ours.watt_hours / (cell.watt_hours / cell.rounds) - 1]
        note = f"expectation over draws of clients; {cell.rounds} rounds in the table; within {_FEW:.0%}".replace(
            "%", " %"
        )
        if method == "FedProx":
            note += "; drawn with replacement, and whoever is drawn twice is charged once"
        claims.append(
            Claim(
                f"{setting.name}, {group}, {method}, C={share:g}: seconds and Wh a round",
                f"{cell.length:.2f} s, {cell.watt_hours / cell.rounds:.4f} Wh",
                f"{ours.seconds:.2f} s, {ours.watt_hours:.4f} Wh",
                max(map(abs, apart)) <= _FEW,
                note,
            )
        )
    return claims


def judge_ratios(setting: FedProfSetting) -> list[Claim]:
    """Judge the text's statements about its own tables."""
    table = table_of(setting)
    first = {group: methods[0] for group, methods in GROUPS.items()}

    def against(of: str, key: Key) -> float:
        mine, base = table[key], table[key[0], first[key[0]], key[2]]
        return float(getattr(mine, of) / getattr(base, of))

    own = [key for key in table if key[1] == "FedProf"]
    cut = 1 - min(against("rounds", key) for key in own)
    speed = 1 / min(against("seconds", key) for key in own)
    saved = [1 - against("watt_hours", key) for key in own]
    gain = max(table[key].best - table[key[0], first[key[0]], key[2]].best for key in own)
    said = {
        "gasturbine": [
            ("rounds to the target fall by up to 77 %", 0.77, cut, 0.005),
            ("4.5 times as fast", 4.5, speed, 0.05),
            ("accuracy gains up to 2.5 points", 0.025, gain, 0.0005),
            ("energy falls by up to 62 % with partial aggregation", 0.62, max(saved[2:]), 0.005),
        ],
        "images": [("accuracy gains up to 2.5 points", 0.025, gain, 0.0005)],
    }[setting.name]
    claims = [
        Claim(
            f"{setting.name}: {text} (section 5.6.2), by its own table",
            paper,
            round(ours, 4),
            abs(ours - paper) <= t,
            basis="derived",
        )
        for text, paper, ours, t in said
    ]
    claims.append(
        Claim(
            f"{setting.name}: energy falls by 29 % to 53 % in all cases (section 5.6.2), by its own table",
            "29 % to 53 %",
            f"{100 * min(saved):.0f} % to {100 * max(saved):.0f} %",
            min(saved) >= 0.285 and max(saved) <= 0.535,
            "against FedAvg or FedAvg-RP",
            basis="derived",
        )
    )
    return claims
