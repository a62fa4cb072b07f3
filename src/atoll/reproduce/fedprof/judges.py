"""Verdicts on what the thesis says of FedProf.

Time and energy of a round can be judged without training. The thesis gives neither layers, batch size, noise levels nor seeds, so of trained figures only
orders and ratios are judged; a ratio holds from three quarters of the thesis's, as medians over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..entry import Claim
from .found import Found
from .paper import GROUPS, Key, table_of
from .reference import Expected, expected_round
from .setting import Setting

__all__ = ["judge_ratios", "judge_rounds", "judge_sooner", "judge_trained", "rounds_of"]

_FEW = 0.15
"""Tolerance of a cell's time and energy a round: cells of four to sixteen rounds are few draws, and energy is printed to 0.01 Wh."""
_RULES = {"FedProx": "sizes", "CFCFM": "first"}


def rounds_of(setting: Setting, seed: int = 0, draws: int = 200) -> dict[tuple[str, float], Expected]:
    """Expected time and energy of a round, ``(method, C) ->``; FedProf's with everybody equally likely."""
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


def judge_rounds(setting: Setting, rounds: Mapping[tuple[str, float], Expected]) -> list[Claim]:
    """Mean time and energy of a round, cell by cell."""
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


def judge_ratios(setting: Setting) -> list[Claim]:
    """What the text says of its own tables."""
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
            f"{setting.name}: {text} (section 5.6.2), by its own table", paper, round(ours, 4), abs(ours - paper) <= t
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
        )
    )
    return claims


def judge_trained(setting: Setting, found: Mapping[Key, Found]) -> list[Claim]:
    """FedProf beside every method of its group, for the cells that were trained; who arrives first is undecided where neither does."""
    claims = []
    for key, own, other in _pairs(setting, found):
        claims += _pair(setting, key, own, other)
    return claims + _groups(setting, found)


def judge_sooner(setting: Setting, found: Mapping[Key, Found], target: float) -> list[Claim]:
    """Rounds to a target that the thesis has no numbers for, FedProf's beside those of every method of its group.

    Args:
        setting: the task.
        found: cells with rounds to this target.
        target: accuracy.
    """
    return [
        Claim(
            f"{_where(setting, key)}: fewer rounds to {target:g}",
            None,
            f"{own.told('rounds')} against {other.told('rounds')}",
            _sooner(own, other),
            "medians over seeds; not a target of the thesis",
        )
        for key, own, other in _pairs(setting, found)
    ]


def _pairs(setting: Setting, found: Mapping[Key, Found]) -> list[tuple[Key, Found, Found]]:
    """Every trained rival's key, FedProf's cell and the rival's."""
    keys = [
        (group, method, share)
        for group, methods in GROUPS.items()
        for share in setting.shares
        for method in methods[:-1]
    ]
    pairs = ((key, found.get((key[0], "FedProf", key[2])), found.get(key)) for key in keys)
    return [(key, own, other) for key, own, other in pairs if own is not None and other is not None]


def _where(setting: Setting, key: Key) -> str:
    return f"{setting.name}, {key[0]}, C={key[2]:g}: FedProf against {key[1]}"


def _sooner(own: Found, other: Found) -> bool | None:
    if own.rounds is None and other.rounds is None:
        return None
    return own.rounds is not None and (other.rounds is None or own.rounds < other.rounds)


def _pair(setting: Setting, key: Key, own: Found, other: Found) -> list[Claim]:
    table, where = table_of(setting), _where(setting, key)
    mine, theirs = table[key[0], "FedProf", key[2]], table[key]
    claims = [
        Claim(
            f"{where}: higher best accuracy",
            f"{mine.best:.3f} against {theirs.best:.3f}",
            f"{own.told('best', '.3f')} against {other.told('best', '.3f')}",
            own.best > other.best,
            "medians over seeds",
        ),
        Claim(
            f"{where}: fewer rounds to {setting.target:g}",
            f"{mine.rounds} against {theirs.rounds}",
            f"{own.told('rounds')} against {other.told('rounds')}",
            _sooner(own, other),
            "medians over seeds",
        ),
    ]
    for of, word in (("seconds", "time"), ("watt_hours", "energy")):
        a, b = getattr(own, of), getattr(other, of)
        paper = getattr(theirs, of) / getattr(mine, of)
        if a is not None and b is not None:
            claims.append(
                Claim(
                    f"{where}: the other's {word} to {setting.target:g}, as a multiple",
                    round(paper, 2),
                    round(b / a, 2),
                    b / a >= max(1.0, 0.75 * paper),
                    "holds from three quarters of the thesis's multiple, but not below 1",
                )
            )
    return claims


def _groups(setting: Setting, found: Mapping[Key, Found]) -> list[Claim]:
    """Partial aggregation needs fewer rounds than full."""
    claims = []
    for share in setting.shares:
        full, partial = found.get(("full", "FedAvg", share)), found.get(("partial", "FedAvg-RP", share))
        if full is not None and partial is not None:
            table = table_of(setting)
            claims.append(
                Claim(
                    f"{setting.name}, C={share:g}: partial aggregation needs fewer rounds to {setting.target:g} than full",
                    f"{table['partial', 'FedAvg-RP', share].rounds} against {table['full', 'FedAvg', share].rounds}",
                    f"{partial.told('rounds')} against {full.told('rounds')}",
                    _sooner(partial, full),
                    "FedAvg-RP against FedAvg, medians over seeds",
                )
            )
    return claims
